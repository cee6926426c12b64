"""What a reader needs to repeat a run: the settings of its cells, and the tables [timing] and [train] of its sweep."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pandas import DataFrame

from attnbench.report.tables import NOT_ASKED
from attnbench.report.writers import Table
from attnbench.settings import size
from attnbench.wording import shown as as_toml

Environments = Mapping[str, Mapping[str, Any]]  # what each run says of itself, by the name of the run
ALONE = ""  # the name of a run that is not beside another
COLUMNS = (
    "role",
    "level",
    "phase",
    "task",
    "n_training",
    "pretrain",
    "T",
    "S",
    "d_model",
    "B",
    "n_heads",
    "max_T",
    "n_layers",
    "d_ff",
    "embedding_std",
    "positions",
    "cross",
    "dtype",
    "device",
    "device_name",
    "threads",
    "compile",
    "match",
    "seed",
)
TABLES = {"time and memory": "timing", "accuracy": "train"}  # which table of the sweep file governs which cells
LIMITS = ("memory_limit", "timeout")  # of each visit, in bytes and in seconds
GOVERNING = (*TABLES.values(), *LIMITS)  # what an environment holds of settings
MANY = 12  # from so many numbers on, only their ends are said


def settings(frame: DataFrame, environments: Environments) -> Table:
    """Every setting with all the values it has, of timed and of trained cells and of each run apart.

    environments: of their entries GOVERNING is read, where there are any; a run without cells of a kind has no column.
    """
    trained = frame["task"].notna()
    told: dict[str, dict[str, str]] = {}
    for run, facts in environments.items():
        own = frame["run"] == run if run != ALONE else frame["cell"].notna()
        for kind, of_kind in (("time and memory", ~trained), ("accuracy", trained)):
            if (own & of_kind).any():
                head = f"{kind}, {run}" if run != ALONE else kind
                told[head] = dict(_told(frame[own & of_kind], facts, TABLES[kind]))
    known = dict.fromkeys(name for column in told.values() for name in column)
    names = sorted(known, key=lambda name: COLUMNS.index(name) if name in COLUMNS else len(COLUMNS))
    rows = [[name, *(column.get(name, NOT_ASKED) for column in told.values())] for name in names]
    shown = DataFrame(rows, columns=["setting", *told], dtype="object")
    return Table("settings", "Settings", shown, shown)


def _told(cells: DataFrame, facts: Mapping[str, Any], table: str) -> Iterator[tuple[str, str]]:
    """Name and values of each setting of some cells, variants' and tasks' options among them.

    facts: of their run. table: the one of the sweep file that governs them.
    """
    for column in COLUMNS:
        if text := _values(cells[column].dropna()):
            yield column, text
    homes = [("label", "options", "options of"), ("task", "task_options", "options of task")]
    for key, options, what in [*homes, ("pretrain", "pretrain_options", "options of pretraining on")]:
        for label, part in cells.groupby(key, sort=False):
            if text := _options(part[options].dropna().unique()):
                yield f"{what} {label}", text
    for key, value in (facts.get(table) or {}).items():
        yield f"{table}.{key}", _values(value if isinstance(value, list) else [value]) or "none"
    units: Mapping[str, Callable[[Any], str]] = {"memory_limit": size, "timeout": lambda seconds: f"{seconds:g} s"}
    for key in LIMITS:
        if key in facts:
            yield key, "none" if facts[key] is None else units[key](facts[key])


def _options(found: Iterable[str]) -> str:
    """Options of all cells of one variant: "window = 16; block = 8, 16"."""
    values: dict[str, list[Any]] = {}
    for text in found:
        for name, value in json.loads(text).items():
            values.setdefault(name, []).append(value)
    return "; ".join(f"{name} = {_values(of_name)}" for name, of_name in values.items())


def _values(found: Iterable[Any]) -> str:
    """Distinct values, numbers ascending: "64, 128, 256", and many of them as "64 to 4096 (30 values)"."""
    distinct = list(dict.fromkeys(as_toml(value) if isinstance(value, dict) else value for value in found))
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in distinct):
        return ", ".join(_text(value) for value in distinct)
    texts = [f"{int(value) if float(value).is_integer() else value}" for value in sorted(distinct)]
    return ", ".join(texts) if len(texts) <= MANY else f"{texts[0]} to {texts[-1]} ({len(texts)} values)"


def _text(value: Any) -> str:
    """As a sweep file writes it: true, none, 0.5."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)

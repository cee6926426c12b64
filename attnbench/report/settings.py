"""What a reader needs to repeat a run: the settings of its cells, and the tables [timing] and [train] of its sweep."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
from pandas import DataFrame

from attnbench.report.tables import NOT_ASKED
from attnbench.report.writers import Table

COLUMNS = (
    "role",
    "level",
    "phase",
    "task",
    "T",
    "d_model",
    "B",
    "n_heads",
    "n_layers",
    "d_ff",
    "embedding_std",
    "positions",
    "cross",
    "dtype",
    "device",
    "threads",
    "seed",
)
TABLES = {"time and memory": "timing", "accuracy": "train"}  # which table of the sweep file governs which cells
MANY = 12  # from so many numbers on, only their ends are said


def settings(frame: DataFrame, environment: Mapping[str, Any]) -> Table:
    """Every setting with all the values it has in the run, of timed and of trained cells apart.

    environment: of the run; its entries "timing" and "train" are read, where there are any.
    """
    trained = frame["task"].notna()
    parts = {"time and memory": frame[~trained], "accuracy": frame[trained]}
    told = {
        kind: dict(_told(part, environment.get(TABLES[kind]) or {}, TABLES[kind]))
        for kind, part in parts.items()
        if len(part)
    }
    known = dict.fromkeys(name for kind in told.values() for name in kind)
    names = sorted(known, key=lambda name: COLUMNS.index(name) if name in COLUMNS else len(COLUMNS))
    rows = [[name, *(kind.get(name, NOT_ASKED) for kind in told.values())] for name in names]
    shown = DataFrame(rows, columns=["setting", *told], dtype="object")
    return Table("settings", "Settings", shown, shown)


def _told(cells: DataFrame, table: Mapping[str, Any], name: str) -> Iterator[tuple[str, str]]:
    """Name and values of each setting of some cells, variants' and tasks' options among them."""
    for column in COLUMNS:
        if text := _values(cells[column].dropna()):
            yield column, text
    for key, options, what in (("label", "options", "options of"), ("task", "task_options", "options of task")):
        for label, part in cells.groupby(key, sort=False):
            if text := _options(part[options].dropna().unique()):
                yield f"{what} {label}", text
    for key, value in table.items():
        yield f"{name}.{key}", _values(value if isinstance(value, list) else [value])


def _options(found: Iterable[str]) -> str:
    """Options of all cells of one variant: "window = 16; block = 8, 16"."""
    values: dict[str, list[Any]] = {}
    for text in found:
        for name, value in json.loads(text).items():
            values.setdefault(name, []).append(value)
    return "; ".join(f"{name} = {_values(of_name)}" for name, of_name in values.items())


def _values(found: Iterable[Any]) -> str:
    """Distinct values, numbers ascending: "64, 128, 256", and many of them as "64 to 4096 (30 values)"."""
    distinct = list(dict.fromkeys(found))
    if not all(isinstance(value, int | float) and not pd.isna(value) for value in distinct):
        return ", ".join("none" if value is None else str(value) for value in distinct)
    texts = [f"{int(value) if float(value).is_integer() else value}" for value in sorted(distinct)]
    return ", ".join(texts) if len(texts) <= MANY else f"{texts[0]} to {texts[-1]} ({len(texts)} values)"

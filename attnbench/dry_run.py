"""What a sweep would run, in words: every setting in force, what overrides did, each cell, and what cannot run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from attnbench.progress import duration, title
from attnbench.settings import size
from attnbench.wording import shown, toml_key

if TYPE_CHECKING:
    from attnbench.cells import Cell
    from attnbench.execute.plan import Plan

# Settings that a table of cells has as columns; cells that differ in any other are in tables of their own.
MATCHING = ("match", "matched", "match_error")
COLUMNS = ("T", "S", "d_model", "n_heads", "max_T", "d_ff", "positions", *MATCHING, "n_training", "seed")
DIGESTS = ("digest", "pretrain_digest")
NAMED = ("cell", "label", "variant", "options")  # told by the first two columns
WIDTH = 160  # characters, where there is no terminal to ask
N_TOLD = 3


def show(plan: Plan, changes: Sequence[str], workers: int) -> None:
    """Print a plan: the settings of all cells, then the cells in tables of those that differ in COLUMNS alone.

    changes: what overrides did, a line each. workers: visits side by side, for the time that all would take.
    """
    rows = [{key: value for key, value in cell.row().items() if key not in DIGESTS} for cell in plan.cells]
    varying = [key for key in rows[0] if len({repr(row[key]) for row in rows}) > 1]
    for line in (*changes, *repeats(plan.repeated), *_shared(plan, rows[0], varying), *_options(rows)):
        print(line)
    apart = [key for key in varying if key not in (*COLUMNS, *NAMED)]
    tables: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        head = ", ".join(f"{key} = {_text(row[key])}" for key in apart if row[key] is not None)
        tables.setdefault(head, []).append(i)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for head, members in tables.items():
        print(f"\n{_counted(members)}{f': {head}' if head else ''}")
        console.print(_table(plan, rows, members), markup=False)
    print(f"{_counted(plan.cells)}, about {duration(plan.total_s(workers))}; nothing was run")


def changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where two parsed sweep files differ, a line each: "grid[0].T: [64, 128] -> 256"."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from changes(before.get(key), after.get(key), f"{path}.{toml_key(key)}".lstrip("."))
    elif path == "grid" and isinstance(before, list) and isinstance(after, list):
        for i, (one, other) in enumerate(zip_longest(before, after)):
            yield from changes(one, other, f"grid[{i}]")
    elif before != after:
        yield f"override: {path}: {'not given' if before is None else shown(before)} -> {shown(after)}"


def repeats(repeated: Sequence[Cell]) -> Iterator[str]:
    """A line about points whose effective settings are those of earlier ones."""
    if repeated:
        told = "; ".join(title(cell) for cell in repeated[:N_TOLD])
        more = f"; {len(repeated) - N_TOLD} more" if len(repeated) > N_TOLD else ""
        one = len(repeated) == 1
        yield (
            f"note: {len(repeated)} point{' has' if one else 's have'} the effective settings of an earlier one and "
            f"will not run again: {told}{more}"
        )


def _shared(plan: Plan, row: Mapping[str, Any], varying: Sequence[str]) -> Iterator[str]:
    """What holds for every cell, and for the run as a whole."""
    yield "the same in every cell:"
    for key, value in row.items():
        if key not in (*varying, *NAMED) and value is not None:
            yield f"  {key} = {_text(value)}"
    sweep = plan.sweep
    yield f"  baseline = {plan.baseline}"
    yield f"  timeout = {plan.timeout_s:g} s"
    yield f"  memory_limit = {size(sweep.memory_limit) if sweep.memory_limit else 'none'}"
    for name in ("timing", "train"):
        if name == "train" and not any(cell.task for cell in plan.cells):
            continue
        yield f"  {name}: {', '.join(f'{key} {value}' for key, value in getattr(sweep, name))}"


def _options(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The options of each label, those without a value left out."""
    for label, options in {row["label"]: row["options"] for row in rows}.items():
        given = [f"{name} {value}" for name, value in options.items() if value is not None]
        yield f"  {label}: {', '.join(given) or 'no options'}"


def _table(plan: Plan, rows: Sequence[Mapping[str, Any]], members: Sequence[int]) -> Table:
    columns = [key for key in COLUMNS if len({repr(rows[i][key]) for i in members}) > 1]
    columns = [key for key in columns if key == "T" or any(rows[i][key] != rows[i]["T"] for i in members)]
    reasons = {i: f"unsupported: {reason}" for i in members if (reason := plan.judgements[i].reason)}
    table = Table("cell", "label", *columns, *(["note"] if reasons else []))
    for i in members:
        values = [_text(rows[i][key]) for key in ("cell", "label", *columns)]
        table.add_row(*values, *([reasons.get(i, "")] if reasons else []))
    return table


def _counted(cells: Sequence[object]) -> str:
    return f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return shown(value) if value else "none"
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else "–" if value is None else str(value)

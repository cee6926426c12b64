"""An explanation of one cell, or of what tells two apart, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pandas import DataFrame

from attnbench.report import tables, words
from attnbench.report.writers import Table

TOP = 15  # operators in the table; all of them in JSON
Facts = Mapping[str, Any]
ROWS = (  # what is told, the key of its value, and its units
    ("time, in the run", "time_s", words.TIME_UNITS),
    ("time, here", "call_s", words.TIME_UNITS),
    ("operators launched", "n_launched", words.COUNT_UNITS),
    ("operators called in all", "n_calls", words.COUNT_UNITS),
    ("an empty operator", "empty_s", words.TIME_UNITS),
    ("launch overhead", "launch_s", words.TIME_UNITS),
    ("share of time here", "launch_share", None),
    ("allocations", "n_allocations", words.COUNT_UNITS),
    ("allocated in all", "allocated_bytes", words.BYTE_UNITS),
    ("largest allocation", "largest_bytes", words.BYTE_UNITS),
    ("peak, in the run", "peak_bytes", words.BYTE_UNITS),
    ("operations, visible", "flops", words.COUNT_UNITS),
    ("operations, executed", "flops_executed", words.COUNT_UNITS),
    ("share of the peak of products", "roof_share", None),
    ("bytes moved, at the least", "bytes_moved", words.BYTE_UNITS),
    ("share of the bandwidth of a copy", "copy_share", None),
    ("parameters", "n_params", words.COUNT_UNITS),
)
NOTE = (
    "own time is taken under torch's profiler, which slows short operators most; launch overhead: operators launched, "
    "each at the cost of an empty one"
)


def derived(facts: Facts) -> dict[str, Any]:
    """Facts with the shares that follow from them: of launching in a call, and of the copy bandwidth in the run."""
    moved_s = _quotient(facts.get("bytes_moved"), facts.get("roof_bytes_per_s"))
    launch = _quotient(facts.get("launch_s"), facts.get("call_s"))
    return {**facts, "launch_share": launch, "copy_share": _quotient(moved_s, facts.get("time_s"))}


def summary(found: Sequence[tuple[str, Facts]]) -> Table:
    """One row per fact, one column per cell; of two cells also by what factor they differ. found: ids and facts."""
    known = [(name, derived(facts)) for name, facts in found]
    rows = []
    for told, key, units in ROWS:
        values = [facts.get(key) for _, facts in known]
        texts = [tables.NOT_AVAILABLE if value is None else _said(value, units) for value in values]
        factor = _quotient(values[-1], values[0]) if len(values) == 2 else None
        rows.append(
            [told, *texts, *([words.ratio(factor) if factor else tables.NOT_ASKED] if len(values) == 2 else [])]
        )
    heads = ["", *(name for name, _ in known), *(["second ÷ first"] if len(known) == 2 else [])]
    shown = DataFrame(rows, columns=heads)
    return Table("explained", "What it costs", shown, shown)


def operators(found: Sequence[tuple[str, Facts]]) -> Table:
    """One row per operator: calls, own time and its share; of two cells the largest differences first."""
    by_cell = [{one["name"]: one for one in facts["operators"]} for _, facts in found]
    data = differences(found)
    rows = []
    for name, seconds in list(data.items())[:TOP]:
        parts = [_operator(operators.get(name)) for operators in by_cell]
        difference = [f"{'+' if seconds >= 0 else '−'}{words.scaled(abs(seconds), words.TIME_UNITS)}"]
        rows.append([name, *(text for part in parts for text in part), *(difference if len(by_cell) == 2 else [])])
    heads = [
        f"{what} {cell}" if len(by_cell) == 2 else what for cell, _ in found for what in ("calls", "own time", "share")
    ]
    shown = DataFrame(rows, columns=["operator", *heads, *(["difference"] if len(by_cell) == 2 else [])])
    more = f"; {len(data) - TOP} more with less" if len(data) > TOP else ""
    title = "Where its time goes" if len(by_cell) == 1 else "Where their times differ"
    return Table("operators", title, shown, shown, NOTE + more)


def differences(found: Sequence[tuple[str, Facts]]) -> dict[str, float]:
    """Own seconds by operator, of two cells those of the second less those of the first; the largest first."""
    own: dict[str, float] = {}
    for (_, facts), sign in zip(found, (1.0,) if len(found) == 1 else (-1.0, 1.0), strict=True):
        for one in facts["operators"]:
            own[one["name"]] = own.get(one["name"], 0.0) + sign * one["self_s"]
    return dict(sorted(own.items(), key=lambda item: -abs(item[1])))


def _operator(one: Facts | None) -> list[str]:
    """Calls, time and share of one operator in one cell."""
    if one is None:
        return [tables.NOT_ASKED] * 3
    return [str(one["calls"]), words.scaled(one["self_s"], words.TIME_UNITS), words.percent(one["share"])]


def _said(value: float, units: words.Units | None) -> str:
    if units is None:
        return words.percent(value)
    return str(int(value)) if units is words.COUNT_UNITS and value < 1e4 else words.scaled(value, units)


def _quotient(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole

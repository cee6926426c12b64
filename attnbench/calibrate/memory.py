"""Whether a peak is the cell's own: whatever ran before it, whatever its parent holds, and as its formula says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from pandas import DataFrame

from attnbench.calibrate.rows import Line, Row
from attnbench.calibrate.runs import ran

SAME, FORMULA = 0.02, 0.05
GRID: dict[str, Any] = {"measure": "memory", "variant": "full", "d_model": 64}


class Off(NamedTuple):
    """By which share peaks differ: the allocator's, and the resident ones, NaN where the system tells none."""

    allocator: float
    resident: float


def order(long_T: int) -> Row[Off]:
    """The same two cells, the longer or the shorter one first."""

    def take() -> Off:
        return apart(*(ran(GRID | {"T": lengths}).frame for lengths in ([long_T, 64], [64, long_T])))

    return Row(take, (_same(f"peak of T = [{long_T}, 64] and of [64, {long_T}] differ"),))


def parent(held_bytes: int) -> Row[Off]:
    """One cell, once while the parent holds memory; processes are spawned, for these inherit their parent's peak."""

    def take() -> Off:
        alone = ran(GRID | {"T": 64}, start_method="spawn").frame
        held = bytearray(b"\1") * held_bytes  # written, so that it is resident
        beside = ran(GRID | {"T": 64}, start_method="spawn").frame
        del held
        return apart(alone, beside)

    return Row(take, (_same(f"peak with and without a parent that holds {held_bytes // 2**20} MiB differ"),))


def formula(lengths: Sequence[int]) -> Row[float]:
    """The peak of `full` at level core, for which there is a formula."""
    line = Line[float](
        f"peak of a core of `full` and its formula differ, T = {min(lengths)} to {max(lengths)}",
        f"at most {100 * FORMULA:.0f} %",
        lambda found: f"{100 * max(found):.1f} %",
        lambda idle, busy: max([*idle, *busy]) <= FORMULA,
    )
    return Row(lambda: off_formula(ran(GRID | {"level": "core", "T": list(lengths)}).frame), (line,))


def apart(one: DataFrame, other: DataFrame) -> Off:
    """The largest difference of a cell in two runs, by either account."""
    both = one.merge(other, on="cell", suffixes=("", "_other"), validate="one_to_one")
    columns = ("peak_bytes", "rss_peak_bytes")
    return Off(*(_largest(both[column], both[f"{column}_other"]) for column in columns))


def off_formula(frame: DataFrame) -> float:
    """The largest difference of a peak from its formula."""
    return _largest(frame["peak_bytes"], frame["peak_bytes_formula"])


def _largest(values: Any, references: Any) -> float:
    return float((values.astype(float) / references.astype(float) - 1).abs().max())


def _same(what: str) -> Line[Off]:
    return Line(what, f"at most {100 * SAME:.0f} %", _told, _met)


def _told(found: Sequence[Off]) -> str:
    allocator, resident = (max(values) for values in zip(*found, strict=True))
    told = "not told by this system" if math.isnan(resident) else f"{100 * resident:.1f} %"
    return f"allocator {100 * allocator:.1f} %, resident {told}"


def _met(idle: Sequence[Off], busy: Sequence[Off]) -> bool:
    return all(off.allocator <= SAME and not off.resident > SAME for off in (*idle, *busy))

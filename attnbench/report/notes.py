"""What stands under a figure or a table: how many cells it shows, and what weakens them."""

from __future__ import annotations

from pandas import DataFrame

from attnbench.analyse.points import TIME, Measure, good, missing
from attnbench.report import words
from attnbench.visits import is_disturbed


def measured(frame: DataFrame, measure: Measure) -> str:
    """ "2 of 18 cells missing: oom 2; 3 with fewer visits than asked for; 1 without an undisturbed visit"."""
    known = good(frame[measure.column], positive=measure.positive).notna()
    told = [words.missing_note(missing(frame, measure), len(frame))]
    if n_short := int((known & (frame["status"] == "pending")).sum()):
        told.append(f"{n_short} with fewer visits than asked for")
    if measure is TIME and (n := n_disturbed(frame)):
        told.append(f"{n} without an undisturbed visit")
    return "; ".join(told)


def n_disturbed(frame: DataFrame) -> int:
    """Cells whose time comes from visits alone that something else on the machine disturbed."""
    return sum(is_disturbed({"flags": flags}) for flags in frame["flags"] if isinstance(flags, list))

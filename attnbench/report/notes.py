"""What stands under a figure or a table: how many cells it shows, and what weakens them."""

from __future__ import annotations

from pandas import DataFrame

from attnbench.analyse.points import TIME, Measure, disturbed, good, missing
from attnbench.report import words


def measured(frame: DataFrame, measure: Measure) -> str:
    """ "2 of 18 cells missing: oom 2; 3 with fewer visits than asked for; 1 without an undisturbed visit"."""
    known = good(frame[measure.column], positive=measure.positive).notna()
    told = [words.missing_note(missing(frame, measure), len(frame))]
    if n_short := int((known & (frame["status"] == "pending")).sum()):
        told.append(f"{n_short} with fewer visits than asked for")
    if measure is TIME and (n := int(disturbed(frame).sum())):
        told.append(f"{n} without an undisturbed visit")
    return "; ".join(told)

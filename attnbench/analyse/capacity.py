"""Up to which load a variant learns a task: what trainings have shown, and at which load to train next.

One step of a bisection, without a clock or a run of its own: what it is told decides alone, so that a search that was
interrupted goes on with what is measured already.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from pandas import DataFrame

from attnbench.protocol import LEARNED
from attnbench.records import AS_ASKED

FACTOR = 1.15  # that a load learnt and one that is not are apart at most, unless they are neighbours


@dataclass(frozen=True)
class Found:
    """What is known of one variant. scores: accuracy, the mean over seeds, by load. trouble: what ended its search."""

    variant: str
    scores: Mapping[int, float]
    trouble: str | None = None

    @property
    def learnt(self) -> int | None:
        """The largest load that it learnt."""
        return max((load for load, score in self.scores.items() if score >= LEARNED), default=None)

    @property
    def too_many(self) -> int | None:
        """The smallest load above it that it did not learn."""
        return min((load for load in self.scores if load > (self.learnt or 0)), default=None)

    @property
    def is_one(self) -> bool:
        """Whether it is an answer; a variant that says why it cannot run gives one."""
        return self.trouble is None or self.trouble.partition(":")[0] in AS_ASKED


def next_loads(scores: Mapping[int, float], low: int, high: int) -> list[int]:
    """The loads to train at next, given accuracies by load; none: the search is done."""
    if untried := [load for load in (low, high) if load not in scores]:
        return untried
    found = Found("", scores)
    below, above = found.learnt, found.too_many
    if below is None or above is None or above - below <= 1 or above <= FACTOR * below:
        return []
    return [min(max(round(math.sqrt(below * above)), below + 1), above - 1)]


def found_in(frame: DataFrame, variant: str, load: str) -> Found:
    """What the cells of a run say of one variant; a training that diverged has learnt nothing."""
    cells = frame[frame["variant"] == variant]
    bad = cells[~cells["status"].isin(["ok", "diverged"])]
    trouble = f"{bad['status'].iloc[0]}: {bad['reason'].iloc[0]}" if len(bad) else None
    good = cells.drop(bad.index)
    loads = good["task_options"].map(json.loads).map(lambda options: int(options[load]))
    scores = good["accuracy"].astype(float).fillna(0.0).groupby(loads).mean()
    return Found(variant, {int(at): float(score) for at, score in scores.items()}, trouble)

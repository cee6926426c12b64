"""The protocol by which variants are compared: which settings are tried, which trial counts, what a trial has learnt.

Every variant gets the same settings in the same order, whatever it makes of the first ones. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

from attnbench.settings import TrainSettings

LEARNED = 0.9  # a trial, or a cell, from this accuracy on has learnt its task
_SEED = 0  # of the settings that are drawn: they are part of a sweep, not of a cell


@dataclass(frozen=True)
class Setting:
    """What one trial is trained with. lr: the peak of the schedule. weight_decay: of matrices."""

    lr: float
    weight_decay: float


def settings_of(train: TrainSettings) -> list[Setting]:
    """Every learning rate with every weight decay; or n_random pairs, log-uniform between the smallest and the largest.

    A quick run has the first learning rate and the first weight decay alone.
    """
    if train.quick:
        return [Setting(train.lr[0], train.weight_decay[0])]
    if train.n_random is None:
        return [Setting(lr, decay) for lr, decay in product(train.lr, train.weight_decay)]
    random = Random(_SEED)
    return [Setting(_between(train.lr, random), _between(train.weight_decay, random)) for _ in range(train.n_random)]


def _between(ends: Sequence[float], random: Random) -> float:
    """Log-uniform between the ends, uniform where one of them is 0."""
    low, high, share = min(ends), max(ends), random.random()
    if low == 0:
        return high * share
    drawn = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))  # high / low itself may overflow
    return min(max(drawn, low), high)


def rule(train: TrainSettings) -> str:
    """How a cell's score came about, in one sentence."""
    n, step = len(settings_of(train)), {"last": "its last step", "best": "its best step on validation data"}
    chosen = "one trial" if n == 1 else f"the best of {n} trials on validation data"
    return f"{chosen}, with the weights of {step[train.judged_at]}, scored once on test data"


def steps_to_learn(curve: Sequence[Sequence[float]]) -> int | None:
    """The first step at which validation accuracy was seen at LEARNED or above; None where it never was.

    curve: (step, accuracy, …) wherever it was looked at.
    """
    return next((int(step) for step, accuracy, *_ in curve if accuracy >= LEARNED), None)


def best_of(accuracies: Sequence[float | None], n: int) -> float:
    """The accuracy to expect of the best of n trials drawn without replacement from these; a diverged one, None, is 0.

    Dodge et al. 2019, arXiv 1909.03004, but for a finite pool. Raises ValueError unless 1 <= n <= len(accuracies).
    """
    ordered = sorted(accuracy or 0.0 for accuracy in accuracies)
    if not 1 <= n <= len(ordered):
        raise ValueError(f"n must be 1 to {len(ordered)}, the number of trials, got {n}")
    ways = math.comb(len(ordered), n)
    return sum(accuracy * math.comb(i, n - 1) for i, accuracy in enumerate(ordered)) / ways


def working_range(trials: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """The smallest and the largest learning rate that learnt the task; None when none did."""
    works = [trial["lr"] for trial in trials if (trial["validation_accuracy"] or 0.0) >= LEARNED]
    return (min(works), max(works)) if works else None

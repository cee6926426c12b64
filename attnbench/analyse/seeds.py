"""The mean of a figure over seeds, and how sure it is: intervals of Student's t, and differences by Welch's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from scipy.special import stdtrit

TAIL = 0.975


class Interval(NamedTuple):
    """A mean over n seeds and its 95 % interval of Student's t; NaN limits for one seed."""

    mean: float
    low: float
    high: float
    n: int


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of one value per seed."""
    n, mean = len(values), statistics.fmean(values)
    if n < 2:
        return Interval(mean, math.nan, math.nan, n)
    half = float(stdtrit(n - 1, TAIL)) * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def difference(a: Sequence[float], b: Sequence[float]) -> Interval:
    """Of the mean of a less that of b, by Welch's degrees of freedom."""
    mean, n = statistics.fmean(a) - statistics.fmean(b), min(len(a), len(b))
    if n < 2:
        return Interval(mean, math.nan, math.nan, n)
    parts = [statistics.variance(one) / len(one) for one in (a, b)]
    squares = sum(part**2 / (len(one) - 1) for part, one in zip(parts, (a, b), strict=True))
    half = float(stdtrit(sum(parts) ** 2 / squares, TAIL)) * math.sqrt(sum(parts)) if squares else 0.0
    return Interval(mean, mean - half, mean + half, n)

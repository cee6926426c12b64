"""Statistics that a visit and the analysis share, in plain Python: medians and their intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

MIN_SAMPLES = 6  # the fewest whose extremes enclose the median with 95 %


def median(samples: Sequence[float]) -> float:
    """The middle of the samples; one slow sample does not move it."""
    return statistics.median(samples)


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """A distribution-free interval of the median from order statistics, 95 % or the widest the samples allow.

    The k-th smallest and k-th largest sample enclose the median unless fewer than k samples fall on one side of it, a
    binomial event with p = 1/2. Below six samples even the extremes hold less than 95 %, and they are what is returned.
    """
    ordered = sorted(samples)
    k = max(_rank(len(ordered)), 1)
    return ordered[k - 1], ordered[-k]


def _rank(n: int) -> int:
    """Largest k with P(Binomial(n, 1/2) < k) <= 2.5 %; 0 when there is none."""
    if n > 100:  # the normal approximation is within one rank here, and does not sum long binomials
        return math.floor(n / 2 - 1.96 * math.sqrt(n) / 2)
    k, tail = 0, 0.0
    while (tail := tail + math.comb(n, k) / 2**n) <= 0.025:
        k += 1
    return k

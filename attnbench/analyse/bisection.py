"""Which sizes to measure next, so that a few of them say at which T two costs change places.

One step of a search, without a clock: it is told what stands measured and says which T it wants, whoever can measure
does so, and asks again until nothing is wanted. It begins with FIRST; while all sizes are on one side it goes on by
factors of STRIDE beyond the end where the ratio is nearer to 1; a change of sides is then enclosed, ever more closely,
around the place where straight lines in log T and log ratio put it. What it is told decides alone, so that a search
that was interrupted goes on with what is measured already.

A crossing is known well enough when its interval is narrower than FACTOR. That of noisy ratios follows from their own
intervals (see `analyse.crossover`), once measured sizes enclose it within the factor ENCLOSED: by then a straight line
between them is right to a percent. That of exact ratios is the sizes that enclose it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from pandas import DataFrame

from attnbench.analyse.compare import log_ratio
from attnbench.analyse.crossover import Crossing, Crossover, crossings, crossovers

FIRST = (64, 256, 1024)
STRIDE = 4
FACTOR = 1.15
ENCLOSED = 1.5


def next_sizes(compared: DataFrame, T_max: int, T_min: int = 1) -> list[int]:
    """The T to measure next, ascending; one that was measured already is to be measured more. None: it is done.

    compared: one variant at one width, of `attnbench.analyse.compare.verdicts`, columns T, ratio, ratio_low,
    ratio_high and side; a size without a ratio was tried in vain. Sizes lie between T_min and T_max.
    """
    tried = set(compared["T"])
    if not tried:
        return sorted({min(max(T, T_min), T_max) for T in FIRST})
    known = compared[compared["ratio"].notna()].sort_values("T")
    if known.empty:
        return []
    found = _crossings(known)
    sizes = known["T"].tolist()
    if not found:
        return _farther(sizes, log_ratio(known["ratio"]).tolist(), tried, (T_min, T_max))
    return sorted({T for at in found for T in _closer(at, sizes, tried)})


def located(compared: DataFrame) -> list[Crossover]:
    """The crossovers of `verdicts`, each crossing with an interval that is never narrower than what is known of it.

    Where no sizes enclose a crossing closely enough for its own interval, those that enclose it are the interval.
    """
    found = []
    for one in crossovers(compared):
        here = compared["ratio"].notna() & (compared["label"] == one.label) & (compared["d_model"] == one.d_model)
        sizes = sorted(compared.loc[here, "T"])
        found.append(replace(one, crossings=tuple(_bounded(at, sizes) for at in one.crossings)))
    return found


def enclosing(sizes: Sequence[int], T: float) -> tuple[int, int]:
    """The nearest of ascending sizes below T and above it; a size that is T is neither. T lies inside their range."""
    return max(size for size in sizes if size < T * (1 - 1e-9)), min(size for size in sizes if size > T * (1 + 1e-9))


def _crossings(known: DataFrame) -> tuple[Crossing, ...]:
    return crossings(known["T"], known["ratio"], known["side"], known["ratio_low"], known["ratio_high"])


def _farther(sizes: Sequence[int], logs: Sequence[float], tried: Collection[int], limits: tuple[int, int]) -> list[int]:
    """The next size beyond the end at which the ratio is nearer to 1, or beyond the other where that is closed."""
    ends = [
        (abs(logs[-1]), min(sizes[-1] * STRIDE, limits[1])),
        (abs(logs[0]), max(sizes[0] // STRIDE, limits[0])),
    ]
    return [T for _, T in sorted(ends, key=lambda end: end[0]) if T not in tried][:1]


def _closer(at: Crossing, sizes: Sequence[int], tried: Collection[int]) -> list[int]:
    """Sizes that enclose a crossing more closely, or those that do already where their noise is what is left."""
    below, above = enclosing(sizes, at.T)
    if _is_enclosed(at, below, above):
        return [below, above] if at.high > FACTOR * at.low else []
    near = (FACTOR if _is_exact(at) else ENCLOSED) ** 0.45  # a little less than half way, as sizes are whole
    around = [T for T in (round(at.T / near), round(at.T * near)) if below < T < above and T not in tried]
    middle = min(max(round(math.sqrt(below * above)), below + 1), above - 1)
    return around or [T for T in [middle] if T not in tried]


def _is_exact(at: Crossing) -> bool:
    return math.isnan(at.low)


def _is_enclosed(at: Crossing, below: int, above: int) -> bool:
    return above - below <= 1 or above <= below * (FACTOR if _is_exact(at) else ENCLOSED)


def _bounded(at: Crossing, sizes: Sequence[int]) -> Crossing:
    """The crossing, its interval no narrower than the measured sizes around it."""
    below, above = enclosing(sizes, at.T)
    if _is_exact(at):
        return replace(at, low=float(below), high=float(above))
    if _is_enclosed(at, below, above):
        return at
    return replace(at, low=min(at.low, float(below)), high=max(at.high, float(above)))

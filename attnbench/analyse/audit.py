"""A claimed cost against the measured one: confirmed, refuted, or not resolvable at the sizes that were measured.

A claim is an upper bound with a leading power. Measured is how a cost grows over its largest sizes, the exponent
between the largest one and the one SPAN times smaller. The claim is refuted when the whole interval of that exponent
lies above the claimed power by more than a misfit that is known to come from elsewhere, and a time has outgrown the
claim by more than a working set does once, as it leaves the caches; where it has done so and the last doubling is back
to the claim, growth is that of the last doubling. The claim is confirmed when it reaches the
claimed power with its whole interval, exceeds it by no more than that misfit, and leaves no room for one power more;
and otherwise nothing is decided. A term that is claimed and not seen refutes nothing: smaller terms may hide it, and an
additive fit says from which size on they no longer would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from attnbench.analyse.fit import Fit, fit
from attnbench.analyse.terms import Powers

SPAN = 4.0  # the factor in size over which growth is measured
BELOW = 0.25  # an exponent that is no farther below the claimed power has reached it
ABOVE = {"memory": 0.25, "time": 0.4}  # softmax that outgrows the caches was seen to grow by 2.3 in place of 2
LEAVING = {"memory": 1.0, "time": 3.5}  # the factor that costs at most; 2.7 was seen where weights are stored
FARTHEST = 2.0**24  # no size beyond this is named
DISTURBED = "disturbed"  # of a size that has no time of its own: a status, like oom

Cost = Literal["time", "memory"]
Axis = Literal["T", "d"]
Status = Literal["confirmed", "refuted", "not resolvable"]


class Point(NamedTuple):
    """A cost at one size of the axis, T or d, with its interval; of bytes both ends are the value."""

    size: float
    value: float
    low: float
    high: float


class Growth(NamedTuple):
    """The exponent of a cost between two sizes, with its interval."""

    exponent: float
    low: float
    high: float
    smallest: float
    largest: float


@dataclass(frozen=True)
class Verdict:
    """What became of one claim, `cost` in `axis`.

    claimed: the highest power of the axis among its terms. growth: None where too few sizes have a value. why: what
    keeps it from being decided. noisy: whether a narrower interval would decide it. resolved_from: the size that would,
    by the additive fit where smaller terms hide the claimed one; None where none is known.
    """

    cost: Cost
    axis: Axis
    claimed: float
    status: Status
    growth: Growth | None = None
    why: str = ""
    noisy: bool = False
    resolved_from: float | None = None


def growth(points: Sequence[Point], span: float = SPAN, n_least: int = 3) -> Growth | None:
    """How a cost grows over its largest sizes, which span a factor at least; None for fewer than n_least in there.

    The errors of both ends are independent, so that the interval is theirs in quadrature. It has the level of theirs.
    """
    usable = _usable(points)
    if not usable:
        return None
    last = usable[-1]
    first = max((point for point in usable if point.size * span <= last.size), default=None)
    if first is None or len([point for point in usable if point.size >= first.size]) < n_least:
        return None
    length, middle = math.log(last.size / first.size), math.log(last.value / first.value)
    down = math.hypot(math.log(last.value / last.low), math.log(first.high / first.value))
    up = math.hypot(math.log(last.high / last.value), math.log(first.value / first.low))
    ends = (middle - down) / length, (middle + up) / length
    return Growth(middle / length, *ends, first.size, last.size)


def judge(cost: Cost, axis: Axis, claimed: float, points: Sequence[Point], trouble: str = "") -> Verdict:
    """The verdict on a claimed power. trouble: why sizes have no value, told where too few have one."""
    found = growth(points)
    if found is None:
        why = f"fewer than three sizes over a factor of {SPAN:.0f} have a value{trouble and f' ({trouble})'}"
        return Verdict(cost, axis, claimed, "not resolvable", None, why, noisy=DISTURBED in trouble)
    if found.low > claimed + ABOVE[cost]:
        found = _back(points, claimed, cost) or found
    if found.low > claimed + ABOVE[cost] and _excess(points, claimed) > LEAVING[cost]:
        return Verdict(cost, axis, claimed, "refuted", found)
    reached, no_more = claimed - BELOW <= found.low, found.exponent <= claimed + ABOVE[cost]
    if reached and no_more and found.high <= claimed + 1 - BELOW:
        return Verdict(cost, axis, claimed, "confirmed", found)
    undecided = Verdict(cost, axis, claimed, "not resolvable", found)
    if found.exponent < claimed - BELOW:
        return _hidden(undecided, points)
    noisy, faster = cost == "time" and found.low <= claimed + ABOVE[cost], found.exponent > claimed + ABOVE[cost]
    if faster:  # a size beyond the caches tells a cheat from a cost that has just left them
        return replace(
            undecided, why="it grows faster, or has only left the caches", noisy=noisy, resolved_from=2 * found.largest
        )
    low = found.exponent < claimed - BELOW / 2  # so that smaller terms may be what keeps the lower end down
    larger = resolved_from(points, claimed, cost) if low else None
    return replace(undecided, why="the interval is too wide", noisy=noisy, resolved_from=larger)


def _back(points: Sequence[Point], claimed: float, cost: Cost) -> Growth | None:
    """The last doubling of a time, where it grows no faster than claimed: what came before was a step."""
    last = growth(points, 2.0, 2) if cost == "time" else None
    return last if last and last.high <= claimed + ABOVE[cost] else None


def _excess(points: Sequence[Point], claimed: float) -> float:
    """The factor, for certain, by which the largest size has outgrown the claim since the size that was best by it."""
    usable = _usable(points)
    last = usable[-1]
    return max(last.low / point.high / math.pow(last.size / point.size, claimed) for point in usable)


def _usable(points: Sequence[Point]) -> list[Point]:
    return sorted(point for point in points if all(map(math.isfinite, point)) and point.low > 0)


def _hidden(verdict: Verdict, points: Sequence[Point]) -> Verdict:
    """A verdict on growth that stays below the claimed power: what hides the term, and up to where."""
    size = resolved_from(points, verdict.claimed, verdict.cost)
    name = verdict.axis if verdict.claimed == 1 else f"{verdict.axis}^{verdict.claimed:g}"
    why = f"no term in {name} shows" if size is None else f"smaller terms still hide the one in {name}"
    noisy = verdict.cost == "time" and verdict.growth is not None and verdict.growth.high >= verdict.claimed - BELOW
    return replace(verdict, why=why, noisy=noisy, resolved_from=size)


def resolved_from(points: Sequence[Point], claimed: float, cost: Cost) -> float | None:
    """The size, in doublings of the largest, at which growth would reach the claimed power by an additive fit.

    The fit has the powers 0, 1, ... up to the claimed one. None where it finds no term of the claimed power.
    """
    found = _additive(points, claimed, cost)
    parts = {term.powers.T: term.coefficient for term in found.terms if term.coefficient > 0}
    if claimed not in parts or claimed <= 0:
        return None
    size = 2 * max(point.size for point in points)
    while size <= FARTHEST:
        if _exponent(parts, size / SPAN, size) >= claimed - BELOW:
            return size
        size *= 2
    return None


def _additive(points: Sequence[Point], claimed: float, cost: Cost) -> Fit:
    """A fit in the one size that the points differ in, whichever it is."""
    powers = sorted({claimed, *(float(n) for n in range(math.ceil(claimed)))})
    terms = {f"power {power:g}": Powers(power, 0, 0) for power in powers}
    sizes, values = [point.size for point in points], [point.value for point in points]
    ones = [1.0] * len(sizes)
    return fit(sizes, ones, ones, values, terms=terms, deterministic=cost == "memory")


def _exponent(parts: dict[float, float], smallest: float, largest: float) -> float:
    """Of a sum of coefficient · size^power, between two sizes."""
    first, last = (sum(factor * size**power for power, factor in parts.items()) for size in (smallest, largest))
    return math.log(last / first) / math.log(largest / smallest)

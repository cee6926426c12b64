"""Ours against each public implementation: rows of times, ratios, targets, and what was not timed, with the reason."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from matches import TABLE, Call, Match, Rival, at, forward, forward_backward
from stopwatch import Ratio, against, alone, sample
from torch import Tensor

LENGTHS = (512, 2048, 8192)
THREADS = (1, 2)
PHASES = ("forward", "forward_backward")
SLOWEST_S = 20.0  # a public implementation that takes longer for one call is not timed
APART = 1e-3  # of the largest output: further apart in float32, two calls do not do the same


@dataclass(frozen=True)
class Row:
    """One comparison. `ratio` is None where there is none, and `reason` says why."""

    rival: Rival
    phase: str
    T: int
    threads: int
    ratio: Ratio | None = None
    reason: str = ""

    @property
    def target(self) -> float | None:
        """The largest ratio wanted."""
        return self.rival.forward if self.phase == "forward" else self.rival.both

    @property
    def verdict(self) -> str:
        """Whether the target is met; with a question mark where it lies inside the interval."""
        if self.target is None or self.ratio is None:
            return ""
        sure = not self.ratio.low <= self.target <= self.ratio.high
        return ("met" if self.ratio.ratio <= self.target else "missed") + ("" if sure else "?")


@dataclass(frozen=True)
class Plan:
    """What to time, and for how long all of it may take."""

    lengths: Sequence[int] = LENGTHS
    threads: Sequence[int] = THREADS
    phases: Sequence[str] = PHASES
    minutes: float = 9.0


def rows(rivals: Sequence[Rival], plan: Plan) -> Iterator[Row]:
    """All comparisons, rival by rival; time that one leaves over is for those that follow."""
    end = time.monotonic() + 60 * plan.minutes
    weights = [_n_cells(rival, plan) for rival in rivals]
    for i, rival in enumerate(rivals):
        left = max(0.0, end - time.monotonic())
        yield from _of(rival, plan, left * weights[i] / max(1, sum(weights[i:])))


def _n_cells(rival: Rival, plan: Plan) -> int:
    return 0 if rival.version() is None else len(_lengths(rival, plan)) * len(_threads(rival, plan)) * len(plan.phases)


def _lengths(rival: Rival, plan: Plan) -> list[int]:
    """Of rivals without a target only those that cost little."""
    return [T for T in plan.lengths if rival.longest >= T and (rival.both or T <= 2048)]


def _threads(rival: Rival, plan: Plan) -> Sequence[int]:
    return plan.threads if rival.both else plan.threads[:1]


def _of(rival: Rival, plan: Plan, allowed_s: float) -> Iterator[Row]:
    if rival.version() is None:
        yield Row(rival, "", 0, 0, reason="not installed")
        return
    end, slow = time.monotonic() + allowed_s, Slow()
    cells = [(T, n, phase) for T in _lengths(rival, plan) for n in _threads(rival, plan) for phase in plan.phases]
    match: Sized | None = None
    for i, (T, threads, phase) in enumerate(cells):
        if match is None or match.T != T:
            match = Sized(rival, T)
        share = max(0.0, end - time.monotonic()) / (len(cells) - i)
        yield match.row(phase, threads, share, slow)
    if rival.longest < max(plan.lengths):
        yield Row(rival, "", max(plan.lengths), 0, reason=f"not timed beyond T = {rival.longest}: it {rival.because}")


class Slow:
    """What a phase of one rival cost at the lengths so far, and so will cost at the next."""

    def __init__(self) -> None:
        self.seen: dict[str, list[tuple[int, float]]] = {}

    def expected_s(self, phase: str, T: int) -> float:
        """As steep as between the last two lengths; in proportion to T where there was but one."""
        known = sorted(dict(self.seen.get(phase, [])).items())
        if not known or known[-1][0] >= T:
            return known[-1][1] if known else 0.0
        (T_1, s_1) = known[-1]
        if len(known) == 1:
            return s_1 * T / T_1
        (T_0, s_0) = known[-2]
        return s_1 * (s_1 / s_0) ** (math.log(T / T_1) / math.log(T_1 / T_0))

    def note(self, phase: str, T: int, seconds: float) -> None:
        """One call of theirs."""
        self.seen.setdefault(phase, []).append((T, seconds))


class Sized:
    """A rival at one length, with the comparison of outputs that comes before any timing."""

    def __init__(self, rival: Rival, T: int) -> None:
        self.rival, self.T = rival, T
        self.match: Match | None = None
        self.trouble = ""

    def row(self, phase: str, threads: int, allowed_s: float, slow: Slow) -> Row:
        """Time one phase. What either of the two raises is the reason why there is no time."""
        made = partial(Row, self.rival, phase, self.T, threads)
        if (expected := slow.expected_s(phase, self.T)) > SLOWEST_S:
            return made(reason=f"theirs would take about {expected:.0f} s a call")
        try:
            if self.match is None:
                self.match = self.rival.match(at(TABLE, T=self.T))
                self.trouble = self._difference(self.match)
            if self.trouble:
                return made(reason=self.trouble)
            return made(*self._timed(self.match, phase, threads, allowed_s, slow))
        except Exception as error:
            return made(reason=f"raises {type(error).__name__}: {str(error).splitlines()[0]}")

    def _difference(self, match: Match) -> str:
        """Why outputs are not those of one mechanism, where they are said to be."""
        if self.rival.departs:
            return ""
        ours, theirs = forward(match.ours, match.inputs), forward(match.theirs, match.inputs)
        gap = ((ours - theirs).abs().max() / theirs.abs().max()).item()
        return "" if gap <= APART else f"outputs differ by {gap:.2g} of the largest: not timed"

    def _timed(self, match: Match, phase: str, threads: int, allowed_s: float, slow: Slow) -> tuple[Ratio | None, str]:
        ours = _call(phase, match.ours, match.inputs, match.ours_with)
        theirs = _call(phase, match.theirs, match.inputs, match.theirs_with)
        with alone(threads):
            first = sample(theirs)
            slow.note(phase, self.T, first.wall_s)
            if first.wall_s > SLOWEST_S:
                return None, f"theirs takes {first.wall_s:.0f} s a call"
            return against(ours, theirs, allowed_s - first.wall_s, first), ""


def _call(phase: str, call: Call, inputs: list[Tensor], parameters: list[Tensor]) -> Callable[[], object]:
    if phase == "forward":
        return partial(forward, call, inputs)
    return partial(forward_backward, call, inputs, parameters)


HEAD: tuple[str, ...] = ("variant", "public implementation", "level", "phase", "T", "threads")
HEAD += ("ours, ms CPU", "theirs", "ours, ms wall", "theirs", "ratio of CPU times", "95 % interval", "target", "")


def cells(row: Row) -> list[str]:
    """One line of the table."""
    rival, ratio = row.rival, row.ratio
    what = f"{rival.what}, {rival.package} {rival.version() or ''}".rstrip()
    start = [rival.variant, what, rival.level, row.phase, str(row.T or ""), str(row.threads or "")]
    if ratio is None:
        return [*start, *[""] * 7, row.reason]
    times = [1e3 * one for one in (ratio.ours.cpu_s, ratio.theirs.cpu_s, ratio.ours.wall_s, ratio.theirs.wall_s)]
    return [
        *start,
        *(f"{one:.4g}" for one in times),
        f"{ratio.ratio:.3f}",
        f"{ratio.low:.3f} to {ratio.high:.3f}",
        "" if row.target is None else f"{row.target:g}",
        row.verdict,
    ]


def notes(rivals: Iterable[Rival]) -> list[str]:
    """Where what is timed is not quite the same."""
    told = [(rival, text) for rival in rivals for text in (rival.departs, rival.note) if text]
    return [f"{rival.what} ({rival.package}) {text}." for rival, text in told]

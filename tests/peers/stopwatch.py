"""Two calls timed against each other in one process: interleaved, CPU time of all threads and wall time."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from attnbench.intervals import interval, typical_spread
from attnbench.statistics import median

SAMPLE_S = 5e-3  # a sample repeats its call until it takes so long
MOST_ROUNDS = 15


@dataclass(frozen=True)
class Sample:
    """Seconds of one call."""

    cpu_s: float
    wall_s: float


@dataclass(frozen=True)
class Ratio:
    """Times of ours and of theirs, the least of all rounds, and ours by theirs with a 95 % interval.

    The ratio is the median over rounds of the ratios of CPU times, within each round the least of two by the least of
    two, taken in the order ours, theirs, theirs, ours.
    """

    ours: Sample
    theirs: Sample
    ratio: float
    low: float
    high: float
    n_rounds: int


Round = tuple[list[Sample], list[Sample]]  # of ours and of theirs


@contextmanager
def alone(n_threads: int) -> Iterator[None]:
    """This many threads, and no collection of garbage while it lasts."""
    before, enabled = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(n_threads)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()
        torch.set_num_threads(before)


def sample(call: Callable[[], object], repeats: int = 1) -> Sample:
    """One sample: the mean over `repeats` calls."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(repeats):
        call()
    return Sample((time.process_time() - cpu) / repeats, (time.perf_counter() - wall) / repeats)


def against(
    ours: Callable[[], object], theirs: Callable[[], object], allowed_s: float, first: Sample | None = None
) -> Ratio:
    """Time both in rounds for about `allowed_s` seconds of wall time, in one round at least.

    first: what the first call of theirs took, where it was made already.
    """
    return ratio(taken(ours, theirs, allowed_s, first))


def taken(
    ours: Callable[[], object], theirs: Callable[[], object], allowed_s: float, first: Sample | None = None
) -> list[Round]:
    """The samples of each round. First calls warm up, and count where there is time for nothing else."""
    calls, warm = (ours, theirs), (sample(ours), first or sample(theirs))
    repeats = [max(1, math.ceil(SAMPLE_S / one.wall_s)) for one in warm]
    round_s = 2 * sum(one.wall_s * n for one, n in zip(warm, repeats, strict=True))
    if round_s > 2 * allowed_s:
        return [([sample(ours)], [warm[1]])]
    rounds = []
    for _ in range(max(1, min(MOST_ROUNDS, int(allowed_s / round_s)))):
        found: Round = ([], [])
        for which in (0, 1, 1, 0):
            found[which].append(sample(calls[which], repeats[which]))
        rounds.append(found)
    return rounds


def ratio(rounds: list[Round]) -> Ratio:
    """What rounds of samples come to."""
    ratios = [min(one.cpu_s for one in ours) / min(one.cpu_s for one in theirs) for ours, theirs in rounds]
    visits = [[one] for one in ratios]
    low, high = interval(visits, typical_spread([visits]))
    ours, theirs = (least_of([one for found in rounds for one in found[which]]) for which in (0, 1))
    return Ratio(ours, theirs, median(ratios), low, high, len(rounds))


def least_of(samples: list[Sample]) -> Sample:
    """The least CPU time and the least wall time."""
    return Sample(min(one.cpu_s for one in samples), min(one.wall_s for one in samples))

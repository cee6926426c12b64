"""Time of a callable: warm-up by time and apart, raw samples of at least a millisecond, the device waited for.

The clock, the device and the callable are arguments, so that every promise here is tested without a real timer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from attnbench.settings import TimingSettings
from attnbench.statistics import median, median_interval

SAMPLE_S = 1e-3
MIN_SAMPLES = 6  # the fewest whose extremes enclose the median with 95 %
MIN_SHARE = 0.1  # of the cap: samples taken back to back look more alike than the machine is
RESOLUTION_CALLS = 5  # a call that costs less than this many empty module calls is at timer resolution


@dataclass(frozen=True)
class Timing:
    """What one visit learnt about the time of a callable.

    samples_s: seconds per call, one entry per sample of `calls` calls. sampled_s: wall time of all sampling.
    warmup_s: wall time before it, first call included; first_call_s: the first call alone.
    stopped_by: `precision` or `cap`. flags: what a reader must know before believing the numbers.
    """

    samples_s: list[float]
    calls: int
    sampled_s: float
    warmup_s: float
    first_call_s: float
    stopped_by: str
    flags: list[str]


def time_call(
    call: Callable[[], object],
    settings: TimingSettings,
    *,
    synchronize: Callable[[], None],
    clock: Callable[[], float] = time.perf_counter,
    resolution_s: float = 0.0,
) -> Timing:
    """Time `call`. The device is synchronised before the first and after the last look at the clock of each sample.

    resolution_s: the cost of an empty call; calls that cost less than a few of these are flagged.
    """

    def sample(n: int) -> float:
        synchronize()
        start = clock()
        for _ in range(n):
            call()
        synchronize()
        return clock() - start

    first_call_s = sample(1)
    at_least = 1 if settings.warmup_s > 0 else 0  # a first call can be a thousand times a usual one
    warmups = list(_until(settings.warmup_s - first_call_s, lambda: sample(1), at_least))
    fastest_s = min(warmups, default=first_call_s)
    calls = max(1, math.ceil(SAMPLE_S / fastest_s)) if fastest_s > 0 else math.ceil(SAMPLE_S / 1e-9)
    samples_s, stopped_by = _sample(lambda: sample(calls), settings, calls)
    flags = _flags(samples_s, warmups, RESOLUTION_CALLS * resolution_s)
    return Timing(
        samples_s, calls, sum(samples_s) * calls, first_call_s + sum(warmups), first_call_s, stopped_by, flags
    )


def _sample(take: Callable[[], float], settings: TimingSettings, calls: int) -> tuple[list[float], str]:
    """Sample until the median is known well enough, or for as long as is allowed; at least once."""
    samples_s: list[float] = []
    stopped_by, spent_s = "cap", 0.0
    for elapsed_s in _until(settings.max_s, take, at_least=1):
        samples_s.append(elapsed_s / calls)
        spent_s += elapsed_s
        if spent_s >= MIN_SHARE * settings.max_s and _precise(samples_s, settings.precision):
            stopped_by = "precision"
            break
    return samples_s, stopped_by


def _until(budget_s: float, take: Callable[[], float], at_least: int = 0) -> Iterator[float]:
    """Yield what `take` returns, seconds, until they add up to the budget."""
    spent_s, n = 0.0, 0
    while n < at_least or spent_s < budget_s:
        elapsed_s = take()
        spent_s += elapsed_s if elapsed_s > 0 else SAMPLE_S  # a clock that stands still must not keep us for ever
        n += 1
        yield elapsed_s


def _precise(samples_s: list[float], precision: float) -> bool:
    n = len(samples_s)
    if n < MIN_SAMPLES or n % max(1, n // 16):  # looking costs a sort: look less often as samples pile up
        return False
    low, high = median_interval(samples_s)
    return high - low <= 2 * precision * median(samples_s)


def _flags(samples_s: list[float], warmups: list[float], resolution_s: float) -> list[str]:
    flags = [] if warmups else ["no warm-up beyond the first call"]
    if len(samples_s) == 1:
        flags.append("one sample")
    if median(samples_s) <= resolution_s:
        flags.append("at timer resolution")
    return flags

"""Time of a callable: warm-up by time and apart, raw samples of at least a millisecond, the device waited for.

The clock, the device and the callable are arguments, so that every promise here is tested without a real timer.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from attnbench.measure.device import Device
from attnbench.measure.quiet import Usage, usage
from attnbench.settings import TimingSettings
from attnbench.statistics import MIN_SAMPLES, median, median_interval

SAMPLE_S = 1e-3
MIN_SHARE = 0.1  # of the cap: samples taken back to back look more alike than the machine is
RESOLUTION_CALLS = 5  # a call that costs less than this many empty module calls is at timer resolution


@dataclass(frozen=True)
class Timing:
    """What one visit learnt about the time of a callable.

    samples_s: seconds per call, one entry per sample of `calls` calls, by the device's own events where it has them.
    wall_ratio: the wall time of all samples by that of the events; None where there are none.
    sampled_s: wall time of all sampling.
    warmup_s: wall time before it, first call included; first_call_s: the first call alone.
    stopped_by: `precision` or `cap`. flags: what a reader must know before believing the numbers.
    cpu_s, switches, steal_s: what was used while sampling, see `quiet.Usage`.
    """

    samples_s: list[float]
    calls: int
    sampled_s: float
    warmup_s: float
    first_call_s: float
    stopped_by: str
    flags: list[str]
    cpu_s: float
    switches: int | None
    steal_s: float | None
    wall_ratio: float | None = None


class _Sample(NamedTuple):
    """One sample in seconds: by the wall clock, and by the device's events where it has them."""

    wall_s: float
    events_s: float | None

    @property
    def counted_s(self) -> float:
        """What the sample counts as."""
        return self.wall_s if self.events_s is None else self.events_s


def time_call(
    call: Callable[[], object],
    settings: TimingSettings,
    *,
    device: Device,
    clock: Callable[[], float] = time.perf_counter,
    resolution_s: float = 0.0,
    look: Callable[[], Usage] = usage,
    output: list[object] | None = None,
) -> Timing:
    """Time `call`. The device is synchronised before the first and after the last look at the clock of each sample.

    Before that its cache is flushed, where a device asks for it. Warm-up and budgets go by the wall clock.
    resolution_s: the cost of an empty call; calls that cost less than a few of these are flagged.
    look: the system's account of what this process has used. output: at the end it holds what the last call returned.
    """
    with _nothing_old_to_collect():
        return _timed(
            partial(_sample, call, device, clock, [] if output is None else output), settings, resolution_s, look
        )


def _timed(
    sample: Callable[[int], _Sample], settings: TimingSettings, resolution_s: float, look: Callable[[], Usage]
) -> Timing:
    """First call, warm-up, then samples of as many calls as last SAMPLE_S."""
    first_call_s = sample(1).wall_s
    at_least = 1 if settings.warmup_s > 0 else 0  # a first call can be a thousand times a usual one
    warmups = [taken.wall_s for taken in _until(settings.warmup_s - first_call_s, lambda: sample(1), at_least)]
    fastest_s = min(warmups, default=first_call_s)
    calls = max(1, math.ceil(SAMPLE_S / fastest_s)) if fastest_s > 0 else math.ceil(SAMPLE_S / 1e-9)
    before = look()
    samples, stopped_by = _take(lambda: sample(calls), settings, calls)
    used = look().since(before)
    samples_s = [taken.counted_s / calls for taken in samples]
    sampled_s, counted_s = sum(taken.wall_s for taken in samples), sum(taken.counted_s for taken in samples)
    return Timing(
        samples_s=samples_s,
        calls=calls,
        sampled_s=sampled_s,
        warmup_s=first_call_s + sum(warmups),
        first_call_s=first_call_s,
        stopped_by=stopped_by,
        flags=_flags(samples_s, warmups, RESOLUTION_CALLS * resolution_s),
        cpu_s=used.cpu_s,
        switches=used.switches,
        steal_s=used.steal_s,
        wall_ratio=None if samples[0].events_s is None or counted_s <= 0 else sampled_s / counted_s,
    )


@contextmanager
def _nothing_old_to_collect() -> Iterator[None]:
    """Keep Python's collector from walking what stood before: torch alone is 0.1 s of it, charged to whichever call.

    What the calls themselves leave in circles is collected, and counts, as ever.
    """
    frozen = gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


def _sample(
    call: Callable[[], object], device: Device, clock: Callable[[], float], output: list[object], n: int
) -> _Sample:
    """One sample of n calls, from a device that has finished to one that has. What the last one returned is kept."""
    output.clear()  # no call runs beside the output of an earlier one
    device.flush()
    events = device.events()
    device.synchronize()
    start = clock()
    if events is not None:
        events[0].record()
    for _ in range(n - 1):
        call()
    output.append(call())
    if events is not None:
        events[1].record()
    device.synchronize()
    wall_s = clock() - start
    return _Sample(wall_s, None if events is None else events[0].elapsed_time(events[1]) / 1e3)


def _take(take: Callable[[], _Sample], settings: TimingSettings, calls: int) -> tuple[list[_Sample], str]:
    """Sample until the median is known well enough, or for as long as is allowed; at least once."""
    samples, samples_s = list[_Sample](), list[float]()
    stopped_by, spent_s = "cap", 0.0
    for taken in _until(settings.max_s, take, at_least=1):
        samples.append(taken)
        samples_s.append(taken.counted_s / calls)
        spent_s += taken.wall_s
        if spent_s >= MIN_SHARE * settings.max_s and _precise(samples_s, settings.precision):
            stopped_by = "precision"
            break
    return samples, stopped_by


def _until(budget_s: float, take: Callable[[], _Sample], at_least: int = 0) -> Iterator[_Sample]:
    """Yield what `take` returns until the wall times add up to the budget."""
    spent_s, n = 0.0, 0
    while n < at_least or spent_s < budget_s:
        taken = take()
        spent_s += taken.wall_s if taken.wall_s > 0 else SAMPLE_S  # a clock that stands still must not keep us for ever
        n += 1
        yield taken


def _precise(samples_s: list[float], precision: float) -> bool:
    """Whether the median is known to within `precision`, a share of it."""
    n = len(samples_s)
    if n < MIN_SAMPLES or n % max(1, n // 16):  # looking costs a sort: look less often as samples pile up
        return False
    low, high = median_interval(samples_s)
    return high - low <= 2 * precision * median(samples_s)


def _flags(samples_s: list[float], warmups: list[float], resolution_s: float) -> list[str]:
    """What weakens a timing."""
    flags = [] if warmups else ["no warm-up beyond the first call"]
    if len(samples_s) == 1:
        flags.append("one sample")
    if median(samples_s) <= resolution_s:
        flags.append("at timer resolution")
    return flags

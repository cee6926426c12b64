"""How quiet the machine is: a fixed piece of work, timed, and what the system tells of processor time. No torch here.

A visit is *disturbed* when one of these holds; it says nothing of whose fault that is:

    its sentinel, before or after sampling, took more than SLOWDOWN times the run's best one
    its process, on a CPU with one thread, was on the processor for less than ON_CPU of the sampling
    the host of this virtual machine stole more than STOLEN of the sampling
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SLOWDOWN = 1.25
ON_CPU = 0.9
STOLEN = 0.02
STEPS = 30_000  # about 2 ms of arithmetic in one thread
WALKED_BYTES = 4 * 2**20  # more than a core's own caches hold
WALKS = 24  # about 1 ms
CACHE_LINE = 64
N_LEVEL = 10  # sentinels of which the best is the first guess at a run's quiet level

_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class Usage:
    """What this process and its machine have used so far; what the system does not tell is None.

    cpu_s: processor time of the process, all threads. switches: how often one of its threads was put aside for others.
    steal_s: time that the host gave to other machines while a processor of this one had work, all processors together.
    """

    cpu_s: float
    switches: int | None
    steal_s: float | None

    def since(self, before: Usage) -> Usage:
        """What was used from one look to this one."""
        return Usage(
            self.cpu_s - before.cpu_s,
            None if self.switches is None or before.switches is None else self.switches - before.switches,
            None if self.steal_s is None or before.steal_s is None else self.steal_s - before.steal_s,
        )


def usage() -> Usage:
    """Look at the system's account; microseconds."""
    return Usage(time.process_time(), _switches(), stolen_s(_STAT))


def stolen_s(stat: Path) -> float | None:
    """Stolen seconds since the start of the machine, from a file like /proc/stat, see proc(5); None without one."""
    try:
        with stat.open() as file:
            ticks = int(file.readline().split()[8])  # cpu user nice system idle iowait irq softirq steal
        return ticks * _tick_s()
    except (OSError, IndexError, ValueError):
        return None


def sentinel_s(clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that arithmetic and a walk through memory take, the same work each time, in one thread.

    Another process on the same core, on its sibling or at the same memory slows it as it slows what is measured.
    """
    memory = bytearray(b"\1") * WALKED_BYTES  # written, so that no page is missing when the clock runs
    start_s = clock()
    x = 1
    for _ in range(STEPS):
        x = (x * 1103515245 + 12345) % 2**31
    for _ in range(WALKS):
        memory[::CACHE_LINE]
    return clock() - start_s


def level_s() -> float:
    """The best of some sentinels: what one takes when the machine is left in peace, for the beginning of a run."""
    return min(sentinel_s() for _ in range(N_LEVEL))


def disturbance(visit: Mapping[str, Any], quiet_s: float) -> str | None:
    """What disturbed a visit, in numbers; None when nothing is known to have.

    visit: the fields of its record. quiet_s: the smallest sentinel that its run has seen.
    """
    told = (_slowed(visit, quiet_s), _put_aside(visit), _stolen(visit))
    return ", ".join(part for part in told if part) or None


def sentinels(visit: Mapping[str, Any]) -> list[float]:
    """Those of a visit, in seconds; none of a visit that timed nothing."""
    found = (visit.get("sentinel_before_s"), visit.get("sentinel_after_s"))
    return [seconds for seconds in found if seconds is not None]


def _slowed(visit: Mapping[str, Any], quiet_s: float) -> str | None:
    """What the sentinels say, where one of them was slow; quiet_s: the best of the run."""
    slowest_s = max(sentinels(visit), default=0.0)
    if slowest_s <= SLOWDOWN * quiet_s:
        return None
    return f"sentinel {slowest_s * 1e3:.1f} ms, {slowest_s / quiet_s:.2f} times the best of the run"


def _put_aside(visit: Mapping[str, Any]) -> str | None:
    """What processor time says, where a one-thread process did not have the processor all the time."""
    cpu_s, sampled_s = visit.get("cpu_s"), visit.get("sampled_s")
    alone = visit.get("device") == "cpu" and visit.get("threads") == 1
    if not alone or cpu_s is None or not sampled_s or cpu_s >= ON_CPU * sampled_s:
        return None
    return f"on the processor for {cpu_s / sampled_s:.0%} of the sampling"


def _stolen(visit: Mapping[str, Any]) -> str | None:
    """A single tick of the system's count may be of the time before."""
    steal_s, sampled_s = visit.get("steal_s"), visit.get("sampled_s")
    if steal_s is None or not sampled_s or steal_s <= max(STOLEN * sampled_s, 1.5 * _tick_s()):
        return None
    return f"{steal_s / sampled_s:.0%} of the sampling stolen"


def _tick_s() -> float:
    return 1.0 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.01


def _switches() -> int | None:
    """How often the system took this process off the processor; None where that is not known."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw

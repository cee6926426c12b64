"""Peak memory of a callable: the allocator's own account, and the resident high-water mark as a second witness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes(call: Callable[[], object], device: str) -> int:
    """Highest number of bytes that `call` holds at one time in the device's allocator, above what was held before.

    On a CPU the legacy profiler lists every allocation and release of torch's allocator in order, in the process of
    the call; what libraries allocate past it (workspaces of oneDNN, say) shows in `resident_peak_bytes` alone.
    """
    return _cpu_peak_bytes(call) if device == "cpu" else _cuda_peak_bytes(call)


def resident_peak_bytes(call: Callable[[], object]) -> int | None:
    """The process's resident high-water mark during `call`, in bytes; None where the system does not tell (no /proc).

    Never ru_maxrss, which a child inherits from its parent.
    """
    try:
        _CLEAR_REFS.write_text("5")  # resets VmHWM to the present size, see proc(5)
    except OSError:
        return None
    call()
    return status_bytes("VmHWM")


def status_bytes(field: str) -> int | None:
    """A field of /proc/self/status, in bytes; None where there is none."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def _cpu_peak_bytes(call: Callable[[], object]) -> int:
    held = peak = 0
    for change in _allocations(call):
        held += change
        peak = max(peak, held)
    return peak


def _allocations(call: Callable[[], object]) -> list[int]:
    """Bytes taken (positive) and given back (negative) by torch's CPU allocator, in the order of time.

    The legacy profiler costs a millisecond and keeps allocations as events of their own; kineto's costs a second per
    process and inflates the resident size. Its public result sums them per operator, so the raw records are read.
    """
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig()))
    try:
        call()
    finally:
        threads = _disable_profiler_legacy()
    start = next(record for records in threads for record in records if record.name() == "__start_profile")
    events = [record for records in threads for record in records if str(record.kind()) == "memory_alloc"]
    events.sort(key=start.cpu_elapsed_us)
    return [int(record.cpu_memory_usage()) for record in events]


def _cuda_peak_bytes(call: Callable[[], object]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)

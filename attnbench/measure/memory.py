"""Peak memory of a callable: the allocator's own account, and the resident high-water mark as a second witness."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

FORMULA_SHARE, FORMULA_SLACK = 0.05, 2**16  # a kernel's own small buffers are in no formula
RESIDENT_SHARE, RESIDENT_SLACK = 0.25, 2**26
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


def saved_bytes(forward: Callable[[], object], parameters: Iterable[Tensor]) -> int:
    """Bytes that a forward pass keeps for its backward pass, its inputs among them and `parameters` left out.

    Storages are counted once and whole, however many tensors and operations share them.
    """
    kept: dict[int, torch.UntypedStorage] = {}  # holding a storage keeps its address from being used again
    known = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for address, storage in kept.items() if address not in known)


def disagreements(peak: int, *, formula: int | None, held: int | None, resident: int | None) -> list[str]:
    """What a reader must know where the witnesses of a peak are further apart than their shares.

    peak: by the allocator, above what was held. formula: the same by formula. held, resident: resident size of the
    process before the call, and at its highest. A call that takes memory past the allocator rises by more than
    `peak`; memory that is never written to does not rise. A process gives pages back late and takes them in arenas,
    so that a rise is no witness below RESIDENT_SLACK, and one that is too small none at all.
    """
    told = []
    if formula is not None and abs(peak - formula) > FORMULA_SHARE * formula + FORMULA_SLACK:
        told.append(f"peak by allocator and by formula differ: {peak} and {formula} bytes")
    if held is not None and resident is not None:
        rise = resident - held
        if rise - peak > RESIDENT_SHARE * peak + RESIDENT_SLACK:
            told.append(f"peak by allocator and by resident size differ: {peak} and {rise} bytes")
        elif resident < (1 - RESIDENT_SHARE) * peak:
            told.append(f"peak by allocator and by resident size differ: {peak} and at most {resident} bytes")
    return told


def status_bytes(field: str) -> int | None:
    """A field of /proc/self/status, in bytes; None where there is none."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def _cpu_peak_bytes(call: Callable[[], object]) -> int:
    held = peak = 0
    for change in allocations(call):
        held += change
        peak = max(peak, held)
    return peak


def allocations(call: Callable[[], object]) -> list[int]:
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

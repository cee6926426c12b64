"""Why a cell costs what it costs: one call of it, looked at by torch's profiler. Runs in a fresh process.

No time of a visit is taken under a profiler, which slows every operator; so the call is also timed without one here,
and what the profiler gives are shares and counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from attnbench import registry
from attnbench.execute.build import TRAINING_PHASES, build_module, build_workload, compiled, mixer_factory
from attnbench.execute.orders import Visit
from attnbench.execute.phases import phase_call
from attnbench.measure.clock import time_call
from attnbench.measure.device import Device, open_device
from attnbench.measure.memory import allocations
from attnbench.settings import TimingSettings
from attnbench.statistics import median

QUICK = TimingSettings(warmup_s=0.1, max_s=0.5)
EMPTY = TimingSettings(warmup_s=0.01, max_s=0.05)
DRIVER = "cuda"  # how the calls of a GPU's driver are called: launches, waits


def explain(order: Visit) -> dict[str, Any]:
    """Rebuild a timed cell and look at one call of it.

    call_s: seconds of a call, no profiler running. operators: of each, by its own time, name, calls, self_s and share
    of all own time. n_calls, n_launched: calls of operators, and those that no other operator made. empty_s: what an
    operator takes that has nothing to do; launch_s: n_launched of these. On a CPU also n_allocations, allocated_bytes
    in all and largest_bytes at once.
    """
    cell, device = order.cell, open_device(order.cell.device)
    torch.set_num_threads(cell.threads)
    if order.memory_limit is not None:
        device.limit_memory(order.memory_limit)
    torch.manual_seed(cell.seed)
    mixer = mixer_factory(cell, [registry.load(source) for source in order.variants])
    workload = build_workload(cell, build_module(cell, mixer))
    with torch.set_grad_enabled(cell.phase in TRAINING_PHASES):
        call = phase_call(compiled(workload) if cell.compile else workload, cell.phase or "forward")
        call_s = median(time_call(call, QUICK, device=device).samples_s)
        operators = _operators(call, device, cell.device)
        taken = [change for change in allocations(call) if change > 0] if cell.device == "cpu" else []
    empty_s = _empty_s(device, cell.device)
    memory = {"n_allocations": len(taken), "allocated_bytes": sum(taken), "largest_bytes": max(taken, default=0)}
    launch = {"empty_s": empty_s, "launch_s": empty_s * operators["n_launched"]}
    return {"call_s": call_s} | operators | launch | (memory if cell.device == "cpu" else {})


def _operators(call: Callable[[], object], device: Device, kind: str) -> dict[str, Any]:
    """Operators of one call with their own time, by name; the largest first."""
    on_gpu = kind != "cpu"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    for _ in range(2):  # what the first one shows is slowed by setting the profiler up
        with profile(activities=activities) as seen:
            call()
            device.synchronize()
    calls, self_s, n_launched = defaultdict[str, int](int), defaultdict[str, float](float), 0
    for event in seen.events() or ():
        if event.device_type.name != "CPU" or event.name.startswith(DRIVER):
            continue  # a kernel, whose time the operator that launched it has already
        calls[event.name] += 1
        self_s[event.name] += 1e-6 * (event.self_device_time_total if on_gpu else event.self_cpu_time_total)
        n_launched += event.cpu_parent is None
    total_s = sum(self_s.values()) or 1.0
    rows = [
        {"name": name, "calls": calls[name], "self_s": own_s, "share": own_s / total_s}
        for name, own_s in sorted(self_s.items(), key=lambda item: -item[1])
    ]
    return {"operators": rows, "n_calls": sum(calls.values()), "n_launched": n_launched}


def _empty_s(device: Device, kind: str) -> float:
    """Seconds of an operator on no numbers at all, into memory that is there: what each costs whatever its work."""
    x = torch.empty(0, device=kind)
    y = torch.empty_like(x)
    with torch.no_grad():
        return min(time_call(lambda: torch.neg(x, out=y), EMPTY, device=device).samples_s)

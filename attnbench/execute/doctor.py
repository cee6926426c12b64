"""What this machine is and how well it measures. Imports no torch: all that could fail runs in fresh processes."""

from __future__ import annotations

import time
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from statistics import median
from typing import Any

from attnbench.execute.local import FreshProcesses, Outcome
from attnbench.execute.peaks import peaks
from attnbench.measure.machine import environment, usable_cores

DTYPES = ("float64", "float32", "bfloat16")
OPTIONAL = ("xformers", "triton", "fla", "ray")
N_VISITS = 7
N_TICKS = 1000
TIMEOUT_S = 60.0
HERE = "attnbench.execute.doctor"


def examine(processes: FreshProcesses) -> dict[str, Any]:
    """Machine and versions, torch's build, optional packages, the clock, the cost of an empty visit, and peaks.

    What cannot be learnt is a text that says why, in the place of the facts.
    """
    facts = environment()
    torch = _told(processes.call(f"{HERE}:torch_build", timeout_s=TIMEOUT_S))
    packages = {name: _package(processes, name) for name in OPTIONAL}
    clock = _told(processes.call(f"{HERE}:clock", timeout_s=TIMEOUT_S))
    cost = visit_cost(processes)
    wanted = [("cpu", threads, dtype) for threads in {1, usable_cores()} for dtype in DTYPES]
    wanted += [("cuda", 1, dtype) for dtype in DTYPES if isinstance(torch, dict) and torch["gpus"]]
    told = {"torch": torch, "packages": packages, "clock": clock, "visit": cost}
    return facts | told | {"peaks": peaks(processes, wanted)}


def visit_cost(processes: FreshProcesses) -> dict[str, Any]:
    """Seconds that a fresh process takes which does nothing; the first one starts what later ones share."""
    first, *later = [processes.call(f"{HERE}:nothing", timeout_s=TIMEOUT_S) for _ in range(N_VISITS + 1)]
    failed = next((outcome for outcome in (first, *later) if outcome.status != "ok"), None)
    if failed:
        return {"start_method": processes.start_method, "trouble": _told(failed)}
    seconds = [outcome.seconds for outcome in later]
    times = {"first_s": first.seconds, "time_s": median(seconds), "time_high_s": max(seconds), "n": len(seconds)}
    return {"start_method": processes.start_method} | times


def torch_build() -> dict[str, Any]:
    """The version, the processor's instructions that it uses, threads, libraries and devices. In a fresh process."""
    import torch

    libraries = {"mkl": torch.backends.mkl, "mkldnn": torch.backends.mkldnn, "openmp": torch.backends.openmp}
    n_gpus = torch.cuda.device_count()
    return {
        "version": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "libraries": [name for name, library in libraries.items() if library.is_available()],
        "cuda": torch.version.cuda,
        "gpus": [torch.cuda.get_device_name(i) for i in range(n_gpus)],
    }


def package_version(name: str) -> str | None:
    """Import an optional package and return its version, when it says one. In a fresh process."""
    version = getattr(import_module(name), "__version__", None)
    return None if version is None else str(version)


def clock() -> dict[str, float]:
    """Seconds of the smallest step of the clock and of one look at it. In a fresh process."""
    looks = [time.perf_counter() for _ in range(N_TICKS)]
    steps = [after - before for before, after in pairwise(looks)]
    return {
        "resolution_s": time.get_clock_info("perf_counter").resolution,
        "step_s": min(step for step in steps if step > 0),
        "look_s": (looks[-1] - looks[0]) / len(steps),
    }


def nothing() -> None:
    """Do nothing, in a fresh process."""


def _package(processes: FreshProcesses, name: str) -> str:
    """ "usable", with the version, or why it is not."""
    if find_spec(name) is None:
        return "not installed"
    outcome = processes.call(f"{HERE}:package_version", name, timeout_s=TIMEOUT_S)
    return f"usable, {outcome.value or 'no version'}" if outcome.status == "ok" else f"unusable: {_why(outcome)}"


def _told(outcome: Outcome) -> Any:
    return outcome.value if outcome.status == "ok" else f"not available: {_why(outcome)}"


def _why(outcome: Outcome) -> str:
    return outcome.reason or outcome.status

"""What machine is this: a description that identifies kind, not owner. Imports no torch."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("attnbench", "torch", "numpy", "pandas", "matplotlib", "scipy")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "KMP_AFFINITY", "MALLOC_ARENA_MAX", "LD_PRELOAD")


def environment() -> dict[str, Any]:
    """Processor, memory, system, versions and the variables that change timings; no host, user or path names."""
    return {
        "processor": processor(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "cores_usable": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: package_version(name) for name in PACKAGES},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ and name != "LD_PRELOAD"}
        | ({"LD_PRELOAD": "set"} if os.environ.get("LD_PRELOAD") else {}),
    }


def processor() -> str:
    """The model name of the CPU, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def package_version(name: str) -> str | None:
    """An installed package's version, without importing it; None when it is not there."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None

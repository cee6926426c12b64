"""Peaks of this machine, each measured in a fresh process, one after the other. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attnbench.cells import Cell
from attnbench.execute.local import FreshProcesses, Outcome
from attnbench.roofs import COPY, product

TIMEOUT_S = 20.0
HERE = "attnbench.measure.peaks"


def peaks(processes: FreshProcesses, wanted: Iterable[tuple[str, int, str]]) -> dict[str, Any]:
    """For each device, threads and dtype of `wanted`, in the layout of `attnbench.roofs`.

    What cannot be measured is a text that says why.
    """
    found: dict[str, Any] = {}
    for device, threads, dtype in sorted(set(wanted)):
        here = found.setdefault(device, {}).setdefault(str(threads), {})
        if COPY not in here:
            here[COPY] = _told(processes.call(f"{HERE}:copy_bytes_per_s", threads, device, timeout_s=TIMEOUT_S))
        asked = dtype, threads, device
        here[product(dtype)] = _told(processes.call(f"{HERE}:product_flops_per_s", *asked, timeout_s=TIMEOUT_S))
    return found


def timed(cells: Iterable[Cell]) -> set[tuple[str, int, str]]:
    """The peaks that a run compares its times with: device, threads and dtype of each."""
    return {(cell.device, cell.threads, cell.dtype) for cell in cells if "time" in cell.measures}


def _told(outcome: Outcome) -> float | str:
    if outcome.status != "ok":
        return f"not available: {outcome.reason or outcome.status}"
    return float(f"{outcome.value:.4g}")

"""The most that this machine does: products by dtype, and a copy. Best of a few calls, by the usual clock.

Each function is meant for a fresh process, as visits are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from attnbench.measure.clock import time_call
from attnbench.measure.device import open_device
from attnbench.settings import TimingSettings

WIDTHS = {"cpu": 1024, "cuda": 4096}  # of the matrices
COPIED_BYTES = 2**27  # more than a core's share of any cache
QUICK = TimingSettings(warmup_s=0.05, max_s=0.15, precision=1e-6)


def product_flops_per_s(dtype: str, threads: int, device: str) -> float:
    """Operations per second of a large product, the fastest of `products`, a multiply-add counting 2."""
    torch.set_num_threads(threads)
    return max(flops / _best_s(call, device) for flops, call in products(dtype, device))


def products(dtype: str, device: str) -> list[tuple[float, Callable[[], object]]]:
    """Operations and call of a matrix product, and of a convolution.

    torch has them from different libraries, and neither is the faster one everywhere: on processors of AMD, MKL's
    product uses half of the width that oneDNN's convolution does.
    """
    n, d = WIDTHS[device], WIDTHS[device] // 4
    sizes = (n, n), (n, n), (n, n), (1, d, n + 2), (d, d, 3)
    a, b, out, x, taps = (torch.ones(*size, dtype=getattr(torch, dtype), device=device) for size in sizes)
    return [(2.0 * n**3, lambda: torch.mm(a, b, out=out)), (6.0 * n * d**2, lambda: torch.conv1d(x, taps))]


def copy_bytes_per_s(threads: int, device: str) -> float:
    """Bytes per second that a copy beyond all caches reads and writes, both together."""
    torch.set_num_threads(threads)
    source = torch.ones(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2.0 * COPIED_BYTES / _best_s(lambda: target.copy_(source), device)


def _best_s(call: Callable[[], object], device: str) -> float:
    with torch.inference_mode():
        return min(time_call(call, QUICK, device=open_device(device)).samples_s)

"""Time of forward and backward of a layer, for each variant that is installed, side by side at each T and d.

The call is the one that a sweep times (level layer, phase forward_backward, B = 1), on a GPU where there is one. Run it
with `make bench`; otherwise each runs once, small, for its shape alone.
"""

from __future__ import annotations

import time

import pytest
import torch
from run_rows import tiny_cell

from attnbench import registry
from attnbench.cells import Cell
from attnbench.execute.build import build_module, build_workload, mixer_factory
from attnbench.execute.describe import judge
from attnbench.execute.phases import phase_call
from attnbench.measure.device import open_device
from attnbench.sweep import VariantUse

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VARIANTS = registry.installed(registry.VARIANTS)


def clock() -> float:
    """Seconds, read once the device has finished what it was given."""
    open_device(DEVICE).synchronize()
    return time.perf_counter()


def layer(variant: str, T: int, d_model: int) -> Cell:
    sizes = {"T": T, "S": T, "max_T": T, "d_model": d_model, "n_heads": 4, "B": 1}
    return tiny_cell(parts=(VariantUse(variant),), phase="forward_backward", device=DEVICE, **sizes)


@pytest.mark.benchmark(timer=clock, warmup=True, warmup_iterations=5, min_rounds=5, max_time=0.5)
@pytest.mark.parametrize("d_model", [64, 256])
@pytest.mark.parametrize("T", [256, 1024])
@pytest.mark.parametrize("variant", VARIANTS)
def test_layer_forward_backward(benchmark, variant, T, d_model):
    benchmark.group = f"T={T} d={d_model}"
    cell = layer(variant, T if benchmark.enabled else 8, d_model)
    (judged,) = judge([cell], VARIANTS, {})
    if judged.reason:
        pytest.skip(f"{variant}: {judged.reason}")
    work = build_workload(cell, build_module(cell, mixer_factory(cell, [registry.load(VARIANTS[variant])])))
    gradients = benchmark(phase_call(work, "forward_backward"))
    benchmark.extra_info |= {"device": DEVICE, "threads": torch.get_num_threads(), "flops": judged.flops}
    assert all(part is None or part.isfinite().all() for part in gradients)

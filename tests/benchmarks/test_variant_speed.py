"""Speed of the built-in variants against each other, in one process and interleaved, so that one ratio can be trusted.

Against public packages, torch's own layers among them, `make peers` times long sequences; here stand other sizes.
Run with `pytest tests/benchmarks --benchmark-enable -s`. Otherwise each runs once, small, for its shape alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib.metadata import entry_points

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.mixer import Spec

H, D = 4, 64
N_ROUNDS = 9
Core = Callable[..., Tensor]


def core(name: str, T: int, **options: int) -> Core:
    (point,) = entry_points(group="attnbench.variants", name=name)
    return point.load()(Spec(H * D, H, T), **options).attend


def bare_call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def forward(mix: Core, inputs: list[Tensor]) -> Tensor:
    with torch.no_grad():
        return mix(*inputs)


def forward_backward(mix: Core, inputs: list[Tensor]) -> Tensor:
    y = mix(*inputs)
    torch.autograd.grad(y, inputs, torch.ones_like(y))
    return y


def seconds(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - start


def compare(benchmark, phase, ours: Core, base: Core, T: int, target: float) -> None:
    """Time cores on q, k and v (1, H, T, D) for the benchmark's table, and print their ratio."""
    T = T if benchmark.enabled else 5
    inputs = [torch.randn(1, H, T, D, requires_grad=True) for _ in range(3)]
    interleave(benchmark, phase, ours, base, inputs, target)


def interleave(benchmark, phase, ours: Core, base: Core, inputs: list[Tensor], target: float) -> None:
    """Time `ours` for the benchmark's table, and print its ratio to `base` from interleaved rounds."""
    y = benchmark.pedantic(phase, (ours, inputs), rounds=3, warmup_rounds=1)
    assert y.shape == inputs[0].shape
    if not benchmark.enabled:
        return
    repeats = max(1, int(0.02 / seconds(lambda: phase(base, inputs), 1)))
    rounds = [[seconds(lambda mix=mix: phase(mix, inputs), repeats) for mix in (ours, base)] for _ in range(N_ROUNDS)]
    ours_s, base_s = (statistics.median(times) / repeats for times in zip(*rounds, strict=True))
    ratio = statistics.median(one / other for one, other in rounds)
    benchmark.extra_info |= {"ratio": ratio, "target": target}
    print(f"\n{1e3 * ours_s:.3f} ms against {1e3 * base_s:.3f} ms: ratio {ratio:.3f}, target {target}")


@pytest.mark.parametrize("phase", [forward, forward_backward])
@pytest.mark.parametrize("T", [64, 256])
def test_fused_adds_nothing_to_the_bare_call(benchmark, phase, T):
    compare(benchmark, phase, core("fused", T), bare_call, T, target=1.05)


@pytest.mark.parametrize("phase", [forward, forward_backward])
def test_causal_linear_against_full(benchmark, phase):
    compare(benchmark, phase, core("linear", 2048), core("full", 2048), 2048, target=0.12)


@pytest.mark.parametrize("phase", [forward, forward_backward])
@pytest.mark.parametrize(("name", "options"), [("window", {"window": 128}), ("linear", {}), ("strided", {})])
def test_long_sequences_against_fused(benchmark, phase, name, options):
    compare(benchmark, phase, core(name, 8192, **options), core("fused", 8192), 8192, target=0.12)


@pytest.mark.parametrize(("phase", "target"), [(forward, 1.1), (forward_backward, 1.02)])
@pytest.mark.parametrize(("B", "d_model"), [(1, 64), (16, 64), (16, 256)])
@pytest.mark.parametrize("name", ["rnn", "gru", "lstm"])
def test_recurrences_against_the_layers_of_torch(benchmark, phase, target, name, d_model, B):
    T = 1024 if benchmark.enabled else 5
    (point,) = entry_points(group="attnbench.variants", name=name)
    mixer = point.load()(Spec(d_model, 1, T))
    weights = list(mixer.parameters())

    def ours(x: Tensor, *_: Tensor) -> Tensor:
        return mixer(x)

    def torchs(x: Tensor, *_: Tensor) -> Tensor:
        return mixer.rightward(x)[0]

    inputs = [torch.randn(B, T, d_model, requires_grad=True), *weights]
    interleave(benchmark, phase, ours, torchs, inputs, target)

"""What tests of variants share: the built-in classes, small random inputs, and a comparison that NaN cannot pass."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

import slow_forms
import torch
from torch import Tensor

from attnbench.mixer import Attention, Mixer, Role, Spec

torch.set_num_threads(1)  # tensors of tests are tiny: a second thread waits more than it works

BUILT_IN: dict[str, type[Mixer]] = {
    point.name: point.load()
    for point in entry_points(group="attnbench.variants")
    if point.dist is not None and point.dist.name == "attnbench"
}

CUDA_ONLY = ("xformers",)
ON_CPU = [name for name in BUILT_IN if name not in CUDA_ONLY]
RECURRENT = ("lstm", "gru", "rnn")
NO_CROSS = (
    *RECURRENT,
    "window",
    "strided",
    "none",
    "tcn",
    "retnet",
    "gla",
    "rwkv",
    "mamba2",
    "mingru",
    "minlstm",
    "lru",
    "mamba",
    "s4d",
    "hyena",
    "fixed_sparse",
    "deltanet",
    "gated_deltanet",
)
BIDIRECTIONAL_ONLY = ("fnet", "linformer", "nystrom", "bigbird")
ONE_WAY = ("retnet", "gla", "rwkv", "mamba2", "mamba", "deltanet", "gated_deltanet")
NO_GAPS = (*RECURRENT, *ONE_WAY, "mingru", "minlstm", "lru")  # no key mask but padding on the right
NO_STEPS = (*BIDIRECTIONAL_ONLY, "hyena", "flex")
NO_MASK = ("fnet",)
ELEMENTWISE = ("s4d",)  # steps without matrix products, which torch's counter does not see


def build(
    name: str, role: Role = "causal", *, d_model: int = 12, n_heads: int = 3, max_T: int = 300, **options
) -> Mixer:
    """A built-in variant in float64 with seeded weights."""
    torch.manual_seed(0)
    return BUILT_IN[name](Spec(d_model, n_heads, max_T, role), **options).double()


def core(name: str, role: Role = "causal", *, d_k: int = 4, d_v: int = 4, n_heads: int = 3, **options) -> Attention:
    """A variant whose `attend` takes q and k (B, n_heads, ., d_k) and v (B, n_heads, ., d_v)."""
    mixer = build(name, role, d_model=4 * n_heads, n_heads=n_heads, d_k=d_k, d_v=d_v, **options)
    assert isinstance(mixer, Attention)
    return mixer


def slow_core(name: str, role: Role, options: dict[str, int]) -> Callable[..., Tensor]:
    """The slow form of `core(name, role, **options).attend`."""
    mix = slow_forms.linear_attention if name == "linear" else slow_forms.softmax_attention

    def attend(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        window = options.get("window")
        return mix(q, k, v, slow_forms.visible(q.shape[2], k.shape[2], role, window=window, key_mask=key_mask))

    return attend


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers that collect gradients."""
    drawn = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return drawn.to(dtype).requires_grad_()


def qkv(T: int, S: int, *, B: int = 2, H: int = 3, d_k: int = 4, d_v: int = 4) -> list[Tensor]:
    """Random q (B, H, T, d_k), k (B, H, S, d_k) and v (B, H, S, d_v)."""
    return [noise(B, H, T, d_k, seed=1), noise(B, H, S, d_k, seed=2), noise(B, H, S, d_v, seed=3)]


def ragged_mask(B: int, S: int) -> Tensor:
    """Row 0 all real, row 1 padded on the right, row 2 with holes and a hidden first key, row 3 all hidden."""
    position = torch.arange(S)
    rows = [position >= 0, position < (S + 1) // 2, position % 3 > 0, position < 0]
    return torch.stack([rows[b % 4] for b in range(B)])


def values_and_gradients(call: Callable[[], Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The output of `call`, and the gradients of a random sum of it."""
    y = call()
    weights = noise(*y.shape, seed=9, dtype=y.dtype).detach()
    return [y.detach(), *torch.autograd.grad(y, inputs, weights, materialize_grads=True)]


def assert_equal(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Same shapes, all finite, nowhere further apart than `tolerance` times the larger of 1 and the largest value."""
    for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
        assert one.shape == other.shape
        assert one.isfinite().all(), f"tensor {i} is not finite"
        assert other.isfinite().all(), f"tensor {i} of what is expected is not finite"
        gap = (one.double() - other.double()).abs().max().item() if one.numel() else 0.0
        scale = max(1.0, other.double().abs().max().item()) if one.numel() else 1.0
        assert gap <= tolerance * scale, f"tensor {i}: difference {gap:.3g} at a scale of {scale:.3g}"

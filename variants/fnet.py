"""Fourier mixing (`fnet`). Lee-Thorp, Ainslie, Eckstein and Ontañón 2022, arXiv 2105.03824, section 3.2.

    y = Re(F_T x F_d): y_tk = sum over s, j of x_sj cos(2 pi (t s / T + k j / d))

    F_T, F_d   transforms along time and along width, without a scale
    s, j       positions and channels that are read; t, k: that are written

How it runs: a real transform along width, of half its channels a complex one along time; the other half is the same
turned around. The map is its own transpose, so that the backward pass is the forward pass.

Departures: at least float32 inside. There are no parameters, no heads and no role but the bidirectional one. Every
position reaches every other with a weight that depends on T, so no key can be hidden.
"""

from __future__ import annotations

from math import log2, pi
from typing import Any

import torch
from torch import Tensor

from attnbench.kernels import at_least_float32
from attnbench.mixer import Claim, Flops, Mixer, Spec, State, Use

WHOLE_ONLY = "a Fourier transform of the whole sequence reads the future, so there is only a bidirectional role"
NO_MASK = "the frequencies depend on the length, so no position can be hidden: there is no key_mask"


class FNet(Mixer):
    """The real part of a Fourier transform along time and width."""

    claim = Claim(time="T d log T + T d log d", memory="T d", sequential="log T", path="1")

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        if spec.role != "bidirectional":
            raise ValueError(WHOLE_ONLY)

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: only the bidirectional role, and no key masks."""
        if spec.role != "bidirectional":
            return WHOLE_ONLY
        return super().unsupported(spec, use, **options) or (NO_MASK if use.mask != "none" else None)

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`. Raises ValueError where a key_mask is given."""
        self._check(x, context, key_mask)
        y: Tensor = _Mixed.apply(at_least_float32(x))  # type: ignore[no-untyped-call]  # torch's is
        return y.to(x.dtype)

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """The sum over all positions and channels."""
        self._check(x, context, key_mask)
        t, k = (torch.arange(n, dtype=x.dtype, device=x.device) for n in x.shape[1:])
        along_T, along_d = (2 * pi / len(n) * (n[:, None] * n % len(n)) for n in (t, k))
        cosines = torch.einsum("bsj,ts,kj->btk", x, along_T.cos(), along_d.cos())
        return cosines - torch.einsum("bsj,ts,kj->btk", x, along_T.sin(), along_d.sin())

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Raises NotImplementedError: every output changes with every new token."""
        self._check(x, context, key_mask)
        raise NotImplementedError(WHOLE_ONLY)

    def flops(self, T: int, S: int) -> Flops:
        """By formula: a real transform of n numbers counts 5/2 n log2 n. No matrix products."""
        n = T * self.spec.d_model
        return Flops(2.5 * n * log2(n), backward=1.0, core_moved=2.0 * n, projection_moved=0.0)

    def _check(self, x: Tensor, context: Tensor | None, key_mask: Tensor | None) -> None:
        self._check_inputs(x, context, key_mask)
        if key_mask is not None:
            raise ValueError(NO_MASK)


class _Mixed(torch.autograd.Function):
    """Re(F_T x F_d) of x (B, T, d), a symmetric linear map."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        d = x.shape[2]
        half = torch.fft.fft(torch.fft.rfft(x), dim=1).real  # (B, T, d // 2 + 1)
        mirrored = half[..., 1 : (d + 1) // 2].flip(1, 2).roll(1, dims=1)  # y_{-t, -k} = y_{t, k}
        return torch.cat((half, mirrored), dim=2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        dx: Tensor = _Mixed.apply(grads[0])  # type: ignore[no-untyped-call]  # torch's is
        return dx

"""Hyena of order 2 (`hyena`). Poli et al. 2023, arXiv 2302.10866, section 3.

    g, k, v = conv(W_in x);  u = k * v;  y = W_o (g * (h * u + b u))        (in the brackets, h * u is a convolution)
    h_l = N(p_l) exp(-delta l / L);  N: four linear maps with sin(omega .) between them

    conv      short        causal, of 3 taps a channel
    p_l       features     of lag l: l / L, and cosines and sines of 2 pi f l / L
    L         spec.max_T   a shorter sequence has the first lags of the same filter
    N         first, inner, last    widths n_features, d_filter, d_filter, d_filter, d_model
    omega     frequency    (d_filter,), learned
    delta     decay        spread over channels: down to 0.01 at 0.3 L for the first and at 1.5 L for the last
    b         b            (d_model,) what passes the filter by

How it runs: the filter is made once per call for all rows, and applied by Fourier transforms (`fft_convolution`).

Departures: no bias in W_in, W_o and conv, and no dropout. Filters are at least float32, and transforms float64: what
float32 leaves of a 0 is 1e-7 of the largest u, a product of two maps of x, and the past would see that of the future.
In both directions a second filter of the same network reads the future from lag 1 on; conv looks back there too. A
hidden position counts as 0, before conv and behind it. Every output needs all inputs before it, so that no state of a
fixed size will do: there is no decoding form.
"""

from __future__ import annotations

from math import log, pi
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from attnbench.kernels import (
    ShortConvolution,
    fft_convolution,
    fft_convolution_flops,
    fft_convolution_moved,
    short_convolution_moved,
)
from attnbench.mixer import Claim, Flops, Mixer, Spec, State, Use, check_count

NO_CROSS = "a convolution reads one sequence, so there is no cross role"
NO_STATE = "each output of a long convolution needs all inputs, so there is no state of a fixed size to decode with"
FASTEST, SLOWEST, TARGET = 0.3, 1.5, 1e-2
N_TAPS = 3


class Hyena(Mixer):
    """Two gates around a long convolution whose filter a small network makes."""

    claim = Claim(
        time="T d^2 + T d log T + T d d_filter + T d_filter^2",
        memory="T d + T d_filter + T n_features",
        sequential="log T",
        path="1",
    )
    positions = "none"

    def __init__(
        self,
        spec: Spec,
        *,
        d_filter: Annotated[int, Ge(1)] = 64,
        n_features: Annotated[int, Ge(1)] = 3,
        frequency: Annotated[int, Ge(1)] = 1,
    ) -> None:
        super().__init__(spec)
        for name, value in (("d_filter", d_filter), ("n_features", n_features), ("frequency", frequency)):
            check_count(name, value)
        if reason := _misfit(spec, n_features):
            raise ValueError(reason)
        D, self.n_features = spec.d_model, n_features
        n_directions = 2 if spec.role == "bidirectional" else 1
        self.W_in = nn.Linear(D, 3 * D, bias=False)
        self.short = ShortConvolution(3 * D, N_TAPS)
        self.first = nn.Linear(n_features, d_filter)
        self.inner = nn.ModuleList(nn.Linear(d_filter, d_filter) for _ in range(2))
        self.last = nn.Linear(d_filter, n_directions * D, bias=False)
        self.frequency = nn.Parameter(torch.full((d_filter,), float(frequency)))
        self.b = nn.Parameter(torch.randn(D))
        self.W_o = nn.Linear(D, D, bias=False)

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: no cross role, no decoding; features come in pairs beside the first."""
        reason = _misfit(spec, options.get("n_features", 3)) or super().unsupported(spec, use, **options)
        return reason or (NO_STATE if use.decodes else None)

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`; a hidden position counts as 0."""
        gate, u = self._gates(x, context, key_mask)
        kernel, *reverse = self.filters(x.shape[1])
        passed = F.pad(self.b.to(kernel)[None], (0, 0, 0, len(kernel) - 1))
        y: Tensor = self.W_o(gate * fft_convolution(u.double(), kernel + passed, *reverse).to(x.dtype))
        return y

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Output by output, the sum over all lags."""
        gate, u = self._gates(x, context, key_mask)
        T, (kernel, *reverse) = x.shape[1], self.filters(x.shape[1])
        rows = []
        for t in range(T):
            row = (u[:, : t + 1] * kernel[: t + 1].flip(0)).sum(1) + self.b * u[:, t]
            if reverse:
                row = row + (u[:, t + 1 :] * reverse[0][: T - t - 1]).sum(1)
            rows.append(row)
        y: Tensor = self.W_o(gate * torch.stack(rows, dim=1))
        return y

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Raises NotImplementedError: there is no state of a fixed size."""
        self._check_inputs(x, context, key_mask)
        raise NotImplementedError(NO_STATE)

    def flops(self, T: int, S: int) -> Flops:
        """Transforms and taps by formula, the filter's network as products; maps in and out as projection."""
        d_model, d_filter = self.spec.d_model, len(self.frequency)
        network = 2.0 * T * (self.n_features * d_filter + 2 * d_filter**2 + d_filter * self.last.out_features)
        elementwise = d_model * (fft_convolution_flops(T) + 2.0 * 3 * N_TAPS * T)
        between = 3 + 3 * short_convolution_moved(N_TAPS) + 3  # maps in; convolved; u out, y in, gated y out
        return Flops(
            network + elementwise,
            8.0 * T * d_model**2,
            core_moved=d_model * (between * T + fft_convolution_moved(T)),
            projection_moved=6.0 * T * d_model,
        )

    def filters(self, T: int) -> Tensor:
        """h for lags 0 to T - 1 of the past and, in both directions, of the future from lag 1: (1 or 2, T, d_model)."""
        place = torch.arange(T, device=self.b.device, dtype=torch.promote_types(self.b.dtype, torch.float32))
        place = (place / max(1, self.spec.max_T - 1))[:, None]  # (T, 1), up to 1
        n_bands = (self.n_features - 1) // 2
        angle = 2 * pi * place * torch.linspace(1e-4, max(n_bands - 1, 1e-4), n_bands).to(place)
        z = torch.cat((place, angle.cos(), -angle.sin()), dim=1)  # (T, n_features)
        for layer in (self.first, *self.inner):
            z = (self.frequency.to(z) * F.linear(z, layer.weight.to(z), layer.bias.to(z))).sin()
        h = F.linear(z, self.last.weight.to(z)).view(T, -1, self.spec.d_model).transpose(0, 1)
        rates = torch.linspace(log(TARGET) / FASTEST, log(TARGET) / SLOWEST, self.spec.d_model).to(z)
        return h * (place * rates).exp()

    def _gates(self, x: Tensor, context: Tensor | None, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """g and u, (B, T, d_model) each."""
        self._check_inputs(x, context, key_mask)
        hidden = None if key_mask is None else ~key_mask[..., None]
        x = x if hidden is None else x.masked_fill(hidden, 0.0)
        gate, k, v = self.short(self.W_in(x)).chunk(3, dim=-1)
        u = k * v
        return gate, u if hidden is None else u.masked_fill(hidden, 0.0)


def _misfit(spec: Spec, n_features: int) -> str | None:
    if spec.role == "cross":
        return NO_CROSS
    return None if n_features % 2 else f"cosines and sines come in pairs: n_features must be odd, got {n_features}"

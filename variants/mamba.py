"""Mamba (`mamba`), the selective state-space model S6. Gu and Dao 2023, arXiv 2312.00752, section 3.

    [u, z] = W_in x;  u = silu(conv(u) + b);  [r, B_t, C_t] = W_x u_t;  dt_t = softplus(W_dt r + b_dt)
    h_t = exp(dt_t A) h_{t-1} + dt_t u_t B_t;  s_t = C_t h_t + D u_t;  y_t = W_out (s_t silu(z_t));  A = -exp(A_log)

    u, z      u, z           input and gate, E = expand d_model channels each
    A         A_log          (E, N), at the start -(1, ..., N) in every channel; N is n_state
    B, C      B, C           (T, N), how an input enters the states and how they are read
    dt        dt             (T, E) step sizes, at the start log-uniform from 0.001 to 0.1; r has dt_rank numbers
    h         h              (N, E), one state of N numbers for each channel

How it runs: `selective_scan`, piece by piece in time: states are never all in memory, in training they are computed
again. While decoding, the state is h and the last conv - 1 inputs of the convolution.

Departures: none in the causal layer; there is no other. States, step sizes and decays are float32 for half-precision
inputs. As in the authors' code, A is discretised exactly and B by Euler's rule.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from attnbench.kernels import (
    ShortConvolution,
    at_least_float32,
    check_no_padding,
    check_right_padding,
    padding_reason,
    recurrence_reason,
    selective_scan,
    short_convolution_moved,
    step_bias,
)
from attnbench.mixer import Claim, Flops, Mixer, Spec, State, Use, check_count

ONE_WAY = "a selective scan runs one way, so there is no bidirectional role"
DT_LOW, DT_HIGH = 1e-3, 1e-1  # step sizes at the start, log-uniform


class Mamba(Mixer):
    """A diagonal recurrence whose steps, inputs and outputs depend on the input, between a convolution and a gate."""

    claim = Claim(
        time="T d^2 expand + T d expand n_state", memory="T d expand + d expand n_state", sequential="T", path="T"
    )
    positions = "none"
    no_decay = ("A_log",)

    def __init__(
        self,
        spec: Spec,
        *,
        n_state: Annotated[int, Ge(1)] = 16,
        expand: Annotated[int, Ge(1)] = 2,
        conv: Annotated[int, Ge(1)] = 4,
        dt_rank: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        super().__init__(spec)
        dt_rank = -(-spec.d_model // 16) if dt_rank is None else dt_rank
        for name, value in (("n_state", n_state), ("expand", expand), ("conv", conv), ("dt_rank", dt_rank)):
            check_count(name, value)
        if reason := _misfit(spec):
            raise ValueError(reason)
        E, d_model = expand * spec.d_model, spec.d_model
        self.d_inner, self.n_state, self.dt_rank, self.n_taps = E, n_state, dt_rank, conv
        self.W_in = nn.Linear(d_model, 2 * E, bias=False)
        self.conv = ShortConvolution(E, conv)
        self.conv_bias = nn.Parameter(torch.empty(E).uniform_(-(conv**-0.5), conv**-0.5))
        self.W_x = nn.Linear(E, dt_rank + 2 * n_state, bias=False)
        self.W_dt = nn.Linear(dt_rank, E)
        self.A_log = nn.Parameter(torch.arange(1.0, n_state + 1).log().repeat(E, 1))
        self.D = nn.Parameter(torch.ones(E))
        self.W_out = nn.Linear(E, d_model, bias=False)
        self._start_steps()

    @torch.no_grad()
    def _start_steps(self) -> None:
        """W_dt keeps the size of what it reads; softplus(b_dt) is log-uniform."""
        nn.init.uniform_(self.W_dt.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        dt = torch.rand(self.d_inner).mul_(math.log(DT_HIGH / DT_LOW)).add_(math.log(DT_LOW)).exp_()
        self.W_dt.bias.copy_(step_bias(dt))

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: the causal role alone, no padding but on the right of whole sequences."""
        reason = super().unsupported(spec, use, **options) or _misfit(spec)
        return reason or padding_reason(use.mask, use.decodes)

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`. Raises ValueError when key_mask hides more than padding on the right."""
        self._check_inputs(x, context, key_mask)
        if key_mask is not None:
            check_right_padding(key_mask)
        u, z = self.W_in(x).chunk(2, dim=-1)
        return self._read(self._scan(self._activated(self.conv(u)))[0], z)

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Taps and states one by one."""
        u, z = self.W_in(x).chunk(2, dim=-1)
        taps = self.conv.weight.unbind(-1)
        shifted = [F.pad(u, (0, 0, i, 0))[:, : x.shape[1]] * tap for i, tap in enumerate(reversed(taps))]
        u = torch.stack(shifted).sum(0)
        u = self._activated(u)
        dt, B, C = self._selected(u)
        A, h, rows = -self.A_log.exp(), x.new_zeros(x.shape[0], self.d_inner, self.n_state), []
        for t in range(x.shape[1]):
            h = (dt[:, t, :, None] * A).exp() * h + (dt * u)[:, t, :, None] * B[:, t, None, :]
            rows.append((h * C[:, t, None, :]).sum(-1) + self.D * u[:, t])
        return self._read(torch.stack(rows, dim=1), z)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Read the prompt; the state is h (B, N, E) and what the convolution still sees. Takes no key_mask."""
        self._check_inputs(x, context, key_mask)
        check_no_padding(key_mask)
        u, z = self.W_in(x).chunk(2, dim=-1)
        u, seen = self.conv.prefill(u)
        y, h = self._scan(self._activated(u))
        return self._read(y, z), {"h": h, "seen": seen}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of convolution and recurrence. No state is written to."""
        u, z = self.W_in(x).chunk(2, dim=-1)
        u, seen = self.conv.step(u, state["seen"])
        y, h = self._scan(self._activated(u)[:, None], state["h"])
        return self._read(y[:, 0], z), {"h": h, "seen": seen}

    def flops(self, T: int, S: int) -> Flops:
        """Convolution and scan are the core, the four maps the projection.

        A state's step counts 6: dt A and dt u B one each, h and its share of y two each. No counter sees them all: it
        counts those of y.
        """
        E, n_states = self.d_inner, self.d_inner * self.n_state
        maps = (self.W_in, self.W_x, self.W_dt, self.W_out)
        projection = 2.0 * T * sum(layer.weight.numel() for layer in maps)
        N, d_model, convolved = self.n_state, self.spec.d_model, short_convolution_moved(self.n_taps)
        return Flops(
            T * (6.0 * n_states + 2.0 * self.n_taps * E),
            projection,
            core_executed=2.0 * T * n_states,
            # u, dt, z, B and C in, y out; out and in: with bias, SiLU, softplus, dt u, s, with D u, SiLU of z
            core_moved=float(T * ((4 + convolved + 14) * E + 2 * N)),
            projection_moved=float(T * (2 * d_model + 5 * E + 2 * self.dt_rank + 2 * N)),
        )

    def step_flops(self, T: int, S: int) -> Flops:
        """One step, which reads a state and writes one."""
        one = self.flops(1, 1)
        return replace(one, core_moved=(one.core_moved or 0.0) + 2 * self.d_inner * self.n_state)

    def _activated(self, u: Tensor) -> Tensor:
        return F.silu(u + self.conv_bias)

    def _selected(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dt (B, T, E), B and C (B, T, N) from u (B, T, E); dt at least float32."""
        r, B, C = self.W_x(u).split((self.dt_rank, self.n_state, self.n_state), dim=-1)
        return F.softplus(at_least_float32(self.W_dt(r))), B, C

    def _scan(self, u: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """s (B, T, E) and the last h from u (B, T, E), from h."""
        dt, B, C = self._selected(u)
        A = -self.A_log.to(dt.dtype).exp()
        s, h = selective_scan(u, dt, A, B, C, h)
        return torch.addcmul(s, u, self.D), h

    def _read(self, s: Tensor, z: Tensor) -> Tensor:
        y: Tensor = self.W_out(s * F.silu(z))
        return y


def _misfit(spec: Spec) -> str | None:
    return ONE_WAY if spec.role == "bidirectional" else recurrence_reason(spec.role)

"""Mamba-2, structured state-space duality. Dao and Gu 2024, arXiv 2405.21060, sections 6 and 7.

    z, (x, B, C), dt = W_in u;   x, B, C pass a short convolution and SiLU;   dt = softplus(dt + dt_bias)
    S_t = exp(dt_t A) S_{t-1} + dt_t B_t^T x_t;   y_t = C_t S_t + D x_t     for each head, A = -exp(A_log)
    output W_out (RMSNorm(y * SiLU(z)))

    u          x              input (B, T, d_model)
    x, z       value, gate    d_inner = expand d_model, in n_heads heads
    B, C       key, query     width d_state, shared by the n_heads / n_groups heads of a group
    dt         dt             step size per head
    A, D       A_log, D       rate of forgetting and skip, one number per head

How it runs: in chunks by matrix products (`matrix_recurrence` with log decay dt A): scores C B^T are multiplied once
for all heads of a group, and one product reads the states of all of them. Or by the package fla on CUDA where `backend`
lets it, with B and C copied for each head; a token alone is always ours.

Departures: heads are as many as the model says (the paper: of width 64), and no map or convolution has a bias.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from attnbench.kernels import (
    FlaKernel,
    ShortConvolution,
    WithBackend,
    at_least_float32,
    check_no_padding,
    check_right_padding,
    matrix_recurrence,
    padding_reason,
    pairs_in_chunks,
    split_heads,
    step_bias,
)
from attnbench.mixer import Claim, Flops, Spec, State, Use, check_count

DT_LOW, DT_HIGH = 1e-3, 1e-1  # step sizes at the start, log-uniform
A_LOW, A_HIGH = 1.0, 16.0  # rates of forgetting at the start, uniform
EPS = 1e-5
ONE_WAY = "a state-space model reads one sequence in one direction: the role must be causal"


class Mamba2(WithBackend):
    """One Mamba-2 layer, with its own maps in and out."""

    claim = Claim(
        time="T d^2 + T d chunk + T d d_state",
        memory="T d + T d d_state / chunk",
        sequential="T / chunk",
        path="1",
    )
    positions = "none"
    fla: ClassVar[FlaKernel] = FlaKernel("simple_gla.chunk_simple_gla")

    def __init__(
        self,
        spec: Spec,
        *,
        d_state: Annotated[int, Ge(1)] = 128,
        expand: Annotated[int, Ge(1)] = 2,
        conv: Annotated[int, Ge(1)] = 4,
        n_groups: Annotated[int, Ge(1)] = 1,
        chunk: Annotated[int, Ge(1)] = 64,
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        given = {"d_state": d_state, "expand": expand, "conv": conv, "n_groups": n_groups, "chunk": chunk}
        for name, value in given.items():
            check_count(name, value)
        if reason := _misfit(spec, n_groups):
            raise ValueError(reason)
        H, d_model = spec.n_heads, spec.d_model
        self.d_state, self.n_groups, self.chunk = d_state, n_groups, chunk
        self.d_inner, self.d_head = expand * d_model, expand * spec.d_head
        self.widths = [self.d_inner, self.d_inner + 2 * n_groups * d_state, H]  # of z, of (x, B, C), of dt
        self.W_in = nn.Linear(d_model, sum(self.widths), bias=False)
        self.convolution = ShortConvolution(self.widths[1], conv)
        self.dt_bias = nn.Parameter(step_bias(torch.empty(H).uniform_(math.log(DT_LOW), math.log(DT_HIGH)).exp()))
        self.A_log = nn.Parameter(torch.empty(H).uniform_(A_LOW, A_HIGH).log())
        self.D = nn.Parameter(torch.ones(H))
        self.norm = nn.Parameter(torch.ones(self.d_inner))
        self.W_out = nn.Linear(self.d_inner, d_model, bias=False)

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: only causal, n_heads divisible by n_groups, no padding but on the right of whole sequences."""
        if reason := _misfit(spec, options.get("n_groups") or 1):
            return reason
        reason = padding_reason(use.mask, use.decodes, "a state-space model")
        return reason or super().unsupported(spec, use, **options)

    @classmethod
    def key_width(cls, spec: Spec, options: Mapping[str, Any]) -> int:
        """That of B and C."""
        return options.get("d_state") or 128

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`. Raises ValueError when key_mask hides more than padding on the right."""
        self._check_inputs(x, context, key_mask)
        if key_mask is not None:
            check_right_padding(key_mask, "a state")
        return self._continue(x, self._nothing(x))[0]

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Token by token."""
        z, values, key, query, dt, _ = self._read(x, self._nothing(x))
        key, query = (one.repeat_interleave(self.spec.n_heads // self.n_groups, dim=1) for one in (key, query))
        decay = torch.exp(-dt * self._rates()[:, None])  # (B, H, T)
        state, ys = self._nothing(x)["state"], []
        for t in range(x.shape[1]):
            write = dt[:, :, t, None, None] * key[:, :, t, :, None] * values[:, :, t, None, :]
            state = decay[:, :, t, None, None] * state + write
            ys.append((query[:, :, t, :, None] * state).sum(2) + self.D[:, None] * values[:, :, t])
        return self._out(torch.stack(ys, dim=2), z)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """The state is S (B, H, d_state, d_head) and the convolution's last inputs. Takes no key_mask."""
        self._check_inputs(x, context, key_mask)
        check_no_padding(key_mask)
        return self._continue(x, self._nothing(x))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One more token. No state is written to."""
        y, state = self._continue(x[:, None], state)
        return y[:, 0], state

    def flops(self, T: int, S: int) -> Flops:
        """Scores are multiplied once per group; hidden pairs of chunks are executed too. No convolution."""
        seen, executed = pairs_in_chunks(T, self.chunk)
        pair = 2.0 * (self.n_groups * self.d_state + self.d_inner)
        states = 4.0 * T * self.d_state * self.d_inner
        projection = 2.0 * T * self.spec.d_model * (sum(self.widths) + self.d_inner)
        n_between = sum(self.widths) + self.d_inner  # z, x, B, C, dt and y
        state_numbers = 2.0 * -(-T // self.chunk) * self.d_state * self.d_inner
        return Flops(
            states + pair * seen,
            projection,
            core_executed=states + pair * executed if self.ran == "torch" else None,
            core_moved=T * n_between + state_numbers,
            projection_moved=float(T * (n_between + 2 * self.spec.d_model)),
        )

    def step_flops(self, T: int, S: int) -> Flops:
        """One token by the same formula."""
        return self.flops(1, 1)

    def _nothing(self, x: Tensor) -> State:
        """The state before the first token; x (B, ., d_model) tells B and dtype."""
        kind = torch.promote_types(x.dtype, torch.float32)
        state = x.new_zeros(len(x), self.spec.n_heads, self.d_state, self.d_head, dtype=kind)
        return {"state": state, "seen": self.convolution.nothing(x)}

    def _rates(self) -> Tensor:
        """-A (H,), in float32 at least."""
        return at_least_float32(self.A_log).exp()

    def _read(self, u: Tensor, past: State) -> tuple[Tensor, ...]:
        """z (B, T, d_inner), x (B, H, T, d_head), B and C (B, G, T, d_state), dt (B, H, T), the last convolved inputs.

        All but z and the last in float32 at least.
        """
        z, mixed, dt = torch.split(self.W_in(u), self.widths, dim=-1)
        mixed, seen = self.convolution.resume(mixed, past["seen"])
        mixed = at_least_float32(F.silu(mixed))
        n = self.n_groups * self.d_state
        values, key, query = torch.split(mixed, [self.d_inner, n, n], dim=-1)
        dt = F.softplus(at_least_float32(dt) + at_least_float32(self.dt_bias)).transpose(1, 2)
        heads = (values, self.d_head), (key, self.d_state), (query, self.d_state)
        return z, *(split_heads(one, width) for one, width in heads), dt, seen

    def _continue(self, u: Tensor, past: State) -> tuple[Tensor, State]:
        z, values, key, query, dt, seen = self._read(u, past)
        written, log_decay = values * dt[..., None], -dt * self._rates()[:, None]
        y, state = self._recurrence(query, key, written, log_decay, past["state"], z.dtype)
        y = torch.addcmul(y, values, self.D[:, None, None].to(y.dtype))
        return self._out(y, z), {"state": state, "seen": seen}

    def _recurrence(
        self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """y (B, H, T, d_head) and the last state, on the backend that serves a model of this dtype."""
        if self.choose(q, dtype) == "torch":
            return matrix_recurrence(q, k, v, state, chunk=self.chunk, log_decay=log_decay)
        q, k = (x.repeat_interleave(self.spec.n_heads // self.n_groups, dim=1) for x in (q, k))
        y, state = self.fla(*(x.to(dtype) for x in (q, k, v)), log_decay, state=state)
        return y.to(v.dtype), state

    def _out(self, y: Tensor, z: Tensor) -> Tensor:
        """Gate, norm and map: y (B, H, T, d_head), z (B, T, d_inner) -> (B, T, d_model)."""
        gated = y.transpose(1, 2).flatten(2) * F.silu(z.to(y.dtype))
        out: Tensor = self.W_out(F.rms_norm(gated, (self.d_inner,), eps=EPS).to(z.dtype) * self.norm)
        return out


def _misfit(spec: Spec, n_groups: int) -> str | None:
    if spec.role != "causal":
        return ONE_WAY
    if spec.n_heads % n_groups:
        return f"n_heads must be divisible by n_groups, got {spec.n_heads} and {n_groups}"
    return None

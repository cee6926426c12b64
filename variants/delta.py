"""Matrix states that overwrite. DeltaNet (Yang et al. 2024, arXiv 2406.06484; the rule of Schlag et al. 2021,
2102.11174) and Gated DeltaNet (Yang et al. 2025, 2412.06464).

    S_t = a_t (I - beta_t k_t^T k_t) S_{t-1} + beta_t k_t^T v_t;   y_t = q_t S_t
    deltanet         a_t = 1;                                              output W_o norm(y_t)
    gated_deltanet   a_t = exp(-exp(A_log) softplus(W_a x_t + dt_bias));   output W_o (norm(y_t) * swish(W_g x_t))
    q_t, k_t = l2norm(silu(conv(W x_t))),  v_t = silu(conv(W_v x_t)),  beta_t = sigmoid(W_beta x_t)

    q, k, v    q, k, v       queries and keys of length 1, values, of one head
    beta       beta          share of what k_t holds that v_t replaces: at 1 all of it, at 0 nothing is written
    log a      log_decay     (B, H, T), at most 0
    S          state         (d_k, d_v) per head, float32 at least
    W_g        W_gate        map to the output's gate

The old state decays before the error v_t - k_t a_t S_{t-1} is taken. A transition a_t (I - beta_t k_t^T k_t) has the
eigenvalue a_t (1 - beta_t) along k_t; `negative_eigenvalues` doubles beta, so that it may fall to -1 (Grazzi et al.
2024, 2411.12537): with that a state can count modulo 2.

How it runs: in chunks by matrix products and a triangular solve (`delta_recurrence`), or by the package fla on CUDA
where `backend` lets it; a token alone is always ours. The record says which ran last.

Departures: values are as wide as keys (Gated DeltaNet's authors: twice as wide, d_v = 2 d_head); scores have no scale,
which the norm would undo; maps have no bias; l2norm divides by sqrt(|x|^2 + 1e-6).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from attnbench.kernels import (
    FlaKernel,
    ShortConvolutions,
    WithBackend,
    at_least_float32,
    check_no_padding,
    check_right_padding,
    delta_recurrence,
    last_positions,
    padding_reason,
    pairs_in_chunks,
    short_convolution_moved,
    split_heads,
    step_bias,
)
from attnbench.mixer import Attention, Claim, Flops, Spec, State, Use, check_count

ONE_WAY = "a state that overwrites reads one sequence in one direction: the role must be causal"
LOG_DT = -6.9, -2.3  # logarithms of step sizes at the start, from 0.001 to 0.1 as in Mamba


class DeltaNet(WithBackend, Attention):
    """A matrix state in which a write replaces what its key held."""

    claim = Claim(
        time="T d^2 + T d chunk",
        memory="T d + H T chunk + T d^2 / H / chunk",
        sequential="T / chunk",
        path="1",
    )
    positions = "none"
    normalised = False
    fla: ClassVar[FlaKernel] = FlaKernel("delta_rule.chunk_delta_rule", max_width=256)

    def __init__(
        self,
        spec: Spec,
        *,
        chunk: Annotated[int, Ge(1)] = 32,
        conv: Annotated[int, Ge(0)] = 4,
        negative_eigenvalues: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        if spec.role != "causal":
            raise ValueError(ONE_WAY)
        check_count("chunk", chunk)
        check_count("conv", conv, at_least=0)
        self.chunk, self.conv, self.most = chunk, conv, 2.0 if negative_eigenvalues else 1.0
        self.convolutions = ShortConvolutions({"q": self.W_q, "k": self.W_k, "v": self.W_v}, conv)
        self.W_beta = nn.Linear(spec.d_model, self.n_kv_heads, bias=False)
        self.norm = nn.Parameter(torch.ones(self.d_v))

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: only causal, and no padding but on the right of whole sequences."""
        if spec.role != "causal":
            return ONE_WAY
        return padding_reason(use.mask, use.decodes, "a state") or super().unsupported(spec, use, **options)

    def project(self, x: Tensor, context: Tensor) -> tuple[Tensor, ...]:
        """q, k, v, then beta (B, H, T), and with a gate log_decay (B, H, T) and gate (B, H, T, d_v)."""
        return self._read(x, self._nothing(x))[0]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`; extra as in `project`. Raises ValueError for a key_mask with gaps."""
        return self._mixed(q, k, v, *extra, key_mask=key_mask)[0]

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Token by token, each transition a whole matrix."""
        q, k, v, beta, *rest = (at_least_float32(x) for x in (q, k, v, *extra))
        beta = beta if key_mask is None else beta * key_mask[:, None]
        decay = rest[0].exp() if rest else torch.ones_like(beta)
        state, ahead = q.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]), q.shape[2] - k.shape[2]
        ys = [q.new_zeros(*v.shape[:2], v.shape[-1])] * max(0, ahead)
        for s in range(k.shape[2]):
            key, share = k[:, :, s, :, None], beta[:, :, s, None, None]  # (B, H, d_k, 1), (B, H, 1, 1)
            transition = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device) - share * key * key.mT
            state = decay[:, :, s, None, None] * (transition @ state) + share * key * v[:, :, s, None]
            if s + ahead >= 0:
                ys.append((q[:, :, s + ahead, None] @ state)[:, :, 0])
        return self._normed(torch.stack(ys, dim=2), extra)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Mix the prompt; keep the state (B, G, d_k, d_v) and the convolutions' last inputs. Takes no key_mask."""
        self._check_inputs(x, context, key_mask)
        check_no_padding(key_mask)
        parts, after = self._read(x, self._nothing(x))
        y, state = self._mixed(*parts)
        return self.merge(y), after | {"state": self._one_per_group(state).clone()}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One more token. No state is written to."""
        (q, k, v, *extra), after = self._read(x[:, None], state)
        self.ran = "torch"
        kind = state["state"].dtype
        key, value, beta, *rest = (self._one_per_group(part).to(kind) for part in (k, v, *extra))
        old = state["state"] * rest[0][..., None].exp() if rest else state["state"]
        error = beta[..., None] * (value - key @ old)  # (B, G, 1, d_v)
        new = old + key.mT @ error
        y = self._normed(q.to(kind) @ self._per_head(new), tuple(extra))
        return self.merge(y)[:, 0], after | {"state": new}

    def flops(self, T: int, S: int) -> Flops:
        """Scores of keys and of queries, the triangular system and its use inside chunks; states between them.

        The solve is done once and used as a product, with its zeros; torch does not count the solve itself, nor is
        the short convolution counted. A query is padded for each key without one.
        """
        seen, square = pairs_in_chunks(S, self.chunk)
        H, d_k, d_v = self.spec.n_heads, self.d_k, self.d_v
        core = (seen - S) * (2 * d_k + d_v) + seen * (d_k + d_v)  # keys and solve without the diagonal
        states = 6.0 * H * S * d_k * d_v
        executed = states + 2.0 * H * square * (3 * d_k + 2 * d_v) if self.ran == "torch" else None
        return Flops(
            states + 2.0 * H * core,
            self.projection_flops(T, S),
            core_executed=executed,
            core_moved=self.core_moved(T, S) + 2.0 * H * -(-S // self.chunk) * d_k * d_v,
            projection_moved=self.projection_moved(T, S),
        )

    def step_flops(self, T: int, S: int) -> Flops:
        """A key's read of the state and its write, per group, and a query's read, per head."""
        size = self.d_k * self.d_v
        return Flops(
            2.0 * (2 * self.n_kv_heads + self.spec.n_heads) * size,
            self.projection_flops(1, 1),
            core_moved=self.core_moved(1, 1) + 2.0 * self.n_kv_heads * size,
            projection_moved=self.projection_moved(1, 1),
        )

    def projection_flops(self, T: int, S: int) -> float:
        """Adds the map to beta."""
        return super().projection_flops(T, S) + 2.0 * S * self.spec.d_model * self.n_kv_heads

    def core_moved(self, T: int, S: int) -> float:
        """Adds beta; the states of chunks are added in `flops`."""
        return super().core_moved(T, S) + self.spec.n_heads * S

    def projection_moved(self, T: int, S: int) -> float:
        """Adds beta, and what convolutions leave behind."""
        n_channels = sum(len(taps) for taps in self.convolutions.parameters())
        convolved = S * n_channels * short_convolution_moved(self.conv)
        return super().projection_moved(T, S) + self.n_kv_heads * S + convolved

    def _nothing(self, x: Tensor) -> State:
        """What the convolutions have seen before the first token."""
        return self.convolutions.nothing(x)

    def _read(self, x: Tensor, past: State) -> tuple[tuple[Tensor, ...], State]:
        """What `project` returns for x behind `past`, and what the next token has to see."""
        maps, after = self.convolutions((self.W_q(x), self.W_k(x), self.W_v(x)), past)
        widths = self.d_k, self.d_k, self.d_v
        q, k, v = (split_heads(F.silu(y), width) for y, width in zip(maps, widths, strict=True))  # (B, H or G, T, .)
        return (_unit(q), self._per_head(_unit(k)), self._per_head(v), self._share(x)), after

    def _share(self, x: Tensor) -> Tensor:
        """beta (B, H, T), at least in float32."""
        beta: Tensor = self.W_beta(x)
        return self._per_head(self.most * at_least_float32(beta).sigmoid().mT[..., None])[..., 0]

    def _mixed(
        self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Normed (and gated) output (B, H, T, d_v), and the last state; the last query stands at the last key."""
        beta, *rest = extra
        T, S = q.shape[2], k.shape[2]
        y, state = self._recurrence(last_positions(q, S), k, v, _hide(beta, key_mask), *rest[:1])
        return self._normed(last_positions(y, T), extra), state

    def _recurrence(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *decay: Tensor) -> tuple[Tensor, Tensor]:
        """y (B, H, S, d_v) and the last state, on the backend that serves."""
        if self.choose(q) == "fla":
            return self.fla(q, k, v, *decay, beta)  # the decay stands before beta
        q, k, v, beta, *decay = (at_least_float32(x) for x in (q, k, v, beta, *decay))  # type: ignore[assignment]
        start = q.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
        return delta_recurrence(q, k, v, beta, start, chunk=self.chunk, log_decay=decay[0] if decay else None)

    def _normed(self, y: Tensor, extra: tuple[Tensor, ...]) -> Tensor:
        """RMS norm per head, times swish of the gate where extra has one: (B, H, T, d_v), in the dtype of the model."""
        y = F.rms_norm(at_least_float32(y), (self.d_v,), at_least_float32(self.norm), eps=1e-5).to(self.norm.dtype)
        return y * F.silu(extra[2]) if len(extra) > 2 else y


class GatedDeltaNet(DeltaNet):
    """The same with a state that decays, by as much as the token says, and a gate on the output."""

    fla: ClassVar[FlaKernel] = FlaKernel("gated_delta_rule.chunk_gated_delta_rule", max_width=256)

    def __init__(self, spec: Spec, **options: Any) -> None:
        super().__init__(spec, **options)
        G = self.n_kv_heads
        self.W_a = nn.Linear(spec.d_model, G, bias=False)
        self.W_gate = nn.Linear(spec.d_model, spec.n_heads * self.d_v, bias=False)
        self.A_log = nn.Parameter(torch.empty(G).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(step_bias(torch.empty(G).uniform_(*LOG_DT).exp()))

    def projection_flops(self, T: int, S: int) -> float:
        """Adds the maps to the decay and to the output's gate."""
        return super().projection_flops(T, S) + 2.0 * self.spec.d_model * (
            S * self.n_kv_heads + T * self.spec.n_heads * self.d_v
        )

    def core_moved(self, T: int, S: int) -> float:
        """Adds the decays and the gate."""
        return super().core_moved(T, S) + self.spec.n_heads * (S + T * self.d_v)

    def projection_moved(self, T: int, S: int) -> float:
        """Adds the decays and the gate."""
        return super().projection_moved(T, S) + self.n_kv_heads * S + self.spec.n_heads * T * self.d_v

    def _read(self, x: Tensor, past: State) -> tuple[tuple[Tensor, ...], State]:
        parts, after = super()._read(x, past)
        slope = F.softplus(at_least_float32(self.W_a(x)) + at_least_float32(self.dt_bias))  # (B, T, G)
        log_decay = self._per_head((-at_least_float32(self.A_log).exp() * slope).mT[..., None])[..., 0]  # (B, H, T)
        return (*parts, log_decay, split_heads(self.W_gate(x), self.d_v)), after


def _unit(x: Tensor) -> Tensor:
    """x (..., d_k) of length 1, or 0 where it is 0; in its dtype."""
    wide = at_least_float32(x)
    return (wide * (wide.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


def _hide(beta: Tensor, key_mask: Tensor | None) -> Tensor:
    """beta with padding at 0: nothing is written there. Raises ValueError where key_mask has gaps."""
    if key_mask is None:
        return beta
    check_right_padding(key_mask, "a state")
    return beta.masked_fill(~key_mask[:, None], 0.0)

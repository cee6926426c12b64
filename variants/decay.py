"""Matrix states that forget. RetNet (Sun et al. 2023, arXiv 2307.08621), GLA (Yang et al. 2024, 2312.06635), RWKV-6
(Peng et al. 2024, 2404.05892).

    retnet, gla    S_t = D_t S_{t-1} + k_t^T v_t;   y_t = q_t S_t / sqrt(d_k)
    rwkv           S_t = D_t S_{t-1} + k_t^T v_t;   y_t = q_t (S_{t-1} + diag(u) k_t^T v_t)
    output         W_o (norm(y_t) * swish(W_g x_t)), norm for each head alone

    retnet   D_t = 1 - 2^(-5-h) in head h; q_t and k_t turned by angles t theta, theta from 1 down to 1/10000
    gla      D_t = diag(sigmoid(W_2 W_1 x_t + b)^(1/normaliser)), a gate per key channel of low rank
    rwkv     D_t = diag(exp(-exp(w + B tanh(A x_t)))); each map reads its own blend of x_t and x_{t-1} (token shift)

    q, k, v   q, k, v      queries (RWKV: receptance r), keys, values of one head
    S         state        (d_k, d_v) per head, float32 at least
    log D     log_decay    (B, H, T) or (B, H, T, d_k)
    u         bonus        RWKV's weight of the present token (n_heads, d_k)
    W_g       W_gate       map to the output's gate

How it runs: in chunks by matrix products (`matrix_recurrence`), some chunks at a time, or by the package fla on CUDA
where `backend` lets it; a token alone is always ours.

Departures: norms are RMS norms without bias, so that a query without keys gives 0 (RetNet and RWKV: group norm); no map
has a bias but the gate of GLA; RetNet's turning is that of its authors' code, without xPos's growing scales; RWKV's
first decays and bonus do not depend on the layer. `conv` puts a short convolution and SiLU behind W_q, W_k and W_v.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    last_positions,
    matrix_recurrence,
    padding_reason,
    pairs_in_chunks,
    rotated,
    split_heads,
)
from attnbench.mixer import Attention, Claim, Flops, Spec, State, Use, check_count

N_BLENDS = 5  # RWKV: what r, k, v, decay and gate read
ONE_WAY = "a state that forgets reads one sequence in one direction: the role must be causal"


class _Decaying(WithBackend, Attention):
    """What the three share: a gated, normalised read of a decaying matrix state."""

    claim = Claim(time="T d^2 + T d chunk", memory="T d + T d^2 / H / chunk", sequential="T / chunk", path="1")
    positions = "none"
    normalised = False
    fla: ClassVar[FlaKernel] = FlaKernel("gla.chunk_gla")
    per_channel: ClassVar[bool] = True  # whether each key channel has its decay, set by the token

    def __init__(
        self,
        spec: Spec,
        *,
        chunk: Annotated[int, Ge(1)] = 64,
        conv: Annotated[int, Ge(0)] = 0,
        **options: Any,
    ) -> None:
        given = {name: value for name, value in options.items() if value is not None}
        super().__init__(spec, **(self._widths(spec) | given))
        if spec.role != "causal":
            raise ValueError(ONE_WAY)
        check_count("chunk", chunk)
        check_count("conv", conv, at_least=0)
        self.chunk, self.conv = chunk, conv
        self.W_gate = nn.Linear(spec.d_model, spec.n_heads * self.d_v, bias=False)
        self.convolutions = ShortConvolutions({"q": self.W_q, "k": self.W_k, "v": self.W_v}, conv)

    @classmethod
    def _widths(cls, spec: Spec) -> dict[str, int]:
        """The paper's d_k and d_v."""
        return {"d_k": spec.d_head, "d_v": spec.d_head}

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: only causal, and no padding but on the right of whole sequences."""
        if spec.role != "causal":
            return ONE_WAY
        reason = padding_reason(use.mask, use.decodes, "a state that forgets")
        return reason or super().unsupported(spec, use, **options)

    @classmethod
    def key_width(cls, spec: Spec, options: Mapping[str, Any]) -> int:
        """The paper's d_k unless given."""
        return options.get("d_k") or cls._widths(spec)["d_k"]

    def project(self, x: Tensor, context: Tensor) -> tuple[Tensor, ...]:
        """q, k, v, then log_decay and gate (B, H, T, d_v); x and context are the same."""
        return self._read(x, self._nothing(x))[0]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`; extra: log_decay (B, H, S) or (B, H, S, d_k), and gate (B, H, T, d_v)."""
        return self._mixed(q, k, v, *extra, key_mask=key_mask, state=None)[0]

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Token by token."""
        log_decay, gate = extra
        k = _hide(k, key_mask)
        q, k, v, log_decay = (at_least_float32(x) for x in (q, k, v, log_decay))
        decay = (log_decay[..., None] if log_decay.ndim == 3 else log_decay).exp()  # (B, H, S, 1 or d_k)
        (B, H, T, _), S = q.shape, k.shape[2]
        state, ys = q.new_zeros(B, H, self.d_k, self.d_v), [q.new_zeros(B, H, self.d_v)] * max(0, T - S)
        for s in range(S):
            before, write = state, k[:, :, s, :, None] * v[:, :, s, None, :]
            state = decay[:, :, s, :, None] * state + write
            if s >= S - T:
                seen = self._seen_slowly(before, state, write)
                ys.append((q[:, :, s - (S - T), :, None] * seen).sum(2))
        return self._gated(torch.stack(ys, dim=2), gate)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Mix the prompt and keep the state (B, H, d_k, d_v), and what the next token has to see. Takes no key_mask."""
        self._check_inputs(x, context, key_mask)
        check_no_padding(key_mask)
        return self._continue(x, self._nothing(x))

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One more token. No state is written to."""
        y, state = self._continue(x[:, None], state)
        return y[:, 0], state

    def flops(self, T: int, S: int) -> Flops:
        """Pairs inside chunks, the hidden ones executed too, and the state's writes and reads; no convolution.

        A query is padded for each key without one.
        """
        seen, executed = pairs_in_chunks(S, self.chunk)
        states = 4.0 * self.spec.n_heads * S * self.d_k * self.d_v
        return Flops(
            states + self.pair_flops(seen),
            self.projection_flops(T, S),
            core_executed=states + self.pair_flops(executed) if self.ran == "torch" else None,
            core_moved=self.core_moved(T, S),
            projection_moved=self.projection_moved(T, S),
        )

    def step_flops(self, T: int, S: int) -> Flops:
        """One token by the same formula."""
        return self.flops(1, 1)

    def projection_flops(self, T: int, S: int) -> float:
        """Adds the output's gate."""
        return super().projection_flops(T, S) + 2.0 * T * self.spec.d_model * self.W_gate.out_features

    def core_moved(self, T: int, S: int) -> float:
        """Adds the gate, the decays, and a state in and out for each chunk."""
        states = 2 * -(-S // self.chunk) * self.d_k * self.d_v
        return super().core_moved(T, S) + self.spec.n_heads * (
            T * self.d_v + S * (self.d_k if self.per_channel else 1) + states
        )

    def projection_moved(self, T: int, S: int) -> float:
        """Adds the gate and the decays that a token sets."""
        decays = S * self.n_kv_heads * self.d_k if self.per_channel else 0
        return super().projection_moved(T, S) + self.spec.n_heads * T * self.d_v + decays

    def _nothing(self, x: Tensor) -> State:
        """The state before the first token; x (B, ., d_model) tells B and dtype."""
        kind = torch.promote_types(x.dtype, torch.float32)
        state = x.new_zeros(len(x), self.spec.n_heads, self.d_k, self.d_v, dtype=kind)
        return {"state": state} | self.convolutions.nothing(x)

    def _read(self, x: Tensor, past: State) -> tuple[tuple[Tensor, ...], State]:
        """What `project` returns for x behind `past`, and what the next token has to see."""
        raise NotImplementedError

    def _qkv(self, x_q: Tensor, x_k: Tensor, x_v: Tensor, past: State) -> tuple[tuple[Tensor, ...], State]:
        """Projected, convolved and split into heads; the convolutions' last inputs."""
        maps, after = self.convolutions((self.W_q(x_q), self.W_k(x_k), self.W_v(x_v)), past)
        maps = [F.silu(y) for y in maps] if self.conv else maps
        widths = self.d_k, self.d_k, self.d_v
        q, k, v = (split_heads(y, width) for y, width in zip(maps, widths, strict=True))
        return (q, self._per_head(k), self._per_head(v)), after

    def _gate(self, x: Tensor) -> Tensor:
        return split_heads(self.W_gate(x), self.d_v)

    def _continue(self, x: Tensor, past: State) -> tuple[Tensor, State]:
        parts, after = self._read(x, past)
        y, state = self._mixed(*parts, key_mask=None, state=past["state"])
        return self.merge(y), after | {"state": state}

    def _mixed(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_decay: Tensor,
        gate: Tensor,
        *,
        key_mask: Tensor | None,
        state: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Output (B, H, T, d_v) and the last state; the last query stands at the last key."""
        k = _hide(k, key_mask)
        (B, H, T, _), S = q.shape, k.shape[2]
        q = last_positions(q, S)
        self.choose(q, v.dtype)
        q, k, v, log_decay = (at_least_float32(x) for x in (q, k, v, log_decay))
        if state is None:
            state = q.new_zeros(B, H, self.d_k, self.d_v)
        y, state = self._recurrence(q, k, v, log_decay, state)
        return self._gated(last_positions(y, T), gate), state

    def _recurrence(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if self.ran == "fla":
            return self.fla(*(x.to(self.W_q.weight.dtype) for x in (q, k, v)), log_decay, state=state)
        return matrix_recurrence(q, k, v, state, chunk=self.chunk, log_decay=log_decay)

    def _seen_slowly(self, before: Tensor, state: Tensor, write: Tensor) -> Tensor:
        """What a query reads: (B, H, d_k, d_v)."""
        return state

    def _gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """Norm and gate (B, H, T, d_v), in the gate's dtype."""
        y = F.rms_norm(y, (self.d_v,), self._scale(), eps=1e-5)
        return y.to(gate.dtype) * F.silu(gate)

    def _scale(self) -> Tensor | None:
        """Learned scale of the norm (d_v,)."""
        return None


class RetNet(_Decaying):
    """A constant decay per head, and rotated queries and keys."""

    fla: ClassVar[FlaKernel] = FlaKernel("simple_gla.chunk_simple_gla")
    per_channel = False

    @classmethod
    def _widths(cls, spec: Spec) -> dict[str, int]:
        return {"d_k": spec.d_head, "d_v": 2 * spec.d_head}

    def _nothing(self, x: Tensor) -> State:
        return super()._nothing(x) | {"length": torch.tensor(0)}

    def _read(self, x: Tensor, past: State) -> tuple[tuple[Tensor, ...], State]:
        (q, k, v), after = self._qkv(x, x, x, past)
        start, T = int(past["length"]), x.shape[1]
        q, k = (rotated(one, start) for one in (q * self.d_k**-0.5, k))
        head = torch.arange(self.spec.n_heads, device=x.device, dtype=torch.float64)
        log_decay = torch.log1p(-(2.0 ** (-5 - head))).to(q.dtype)  # of rotated queries: float32 at least
        log_decay = log_decay[None, :, None].expand(len(x), -1, T)
        return (q, k, v, log_decay, self._gate(x)), after | {"length": past["length"] + T}


class GLA(_Decaying):
    """A gate per key channel that the token sets."""

    def __init__(
        self,
        spec: Spec,
        *,
        low_rank: Annotated[int, Ge(1)] = 16,
        normaliser: Annotated[int, Ge(1)] = 16,
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        check_count("low_rank", low_rank)
        check_count("normaliser", normaliser)
        self.normaliser, self.low_rank = normaliser, low_rank
        self.gate_down = nn.Linear(spec.d_model, low_rank, bias=False)
        self.gate_up = nn.Linear(low_rank, self.n_kv_heads * self.d_k, bias=False)
        self.gate_bias = nn.Parameter(torch.zeros(self.n_kv_heads * self.d_k))
        self.norm = nn.Parameter(torch.ones(self.d_v))

    @classmethod
    def _widths(cls, spec: Spec) -> dict[str, int]:
        return {"d_k": max(1, spec.d_head // 2), "d_v": spec.d_head}

    def projection_flops(self, T: int, S: int) -> float:
        """Adds the low-rank map of the gate."""
        low = 2.0 * S * self.low_rank * (self.spec.d_model + self.n_kv_heads * self.d_k)
        return super().projection_flops(T, S) + low

    def _read(self, x: Tensor, past: State) -> tuple[tuple[Tensor, ...], State]:
        (q, k, v), after = self._qkv(x, x, x, past)
        logits = self.gate_up(self.gate_down(x)) + self.gate_bias
        log_decay = F.logsigmoid(at_least_float32(logits)) / self.normaliser
        log_decay = self._per_head(split_heads(log_decay, self.d_k))  # (B, H, T, d_k)
        return (q * self.d_k**-0.5, k, v, log_decay, self._gate(x)), after

    def _scale(self) -> Tensor:
        return at_least_float32(self.norm)


class RWKV(_Decaying):
    """RWKV-6: decay per channel set by the token, a bonus for the present token, and token shift."""

    no_decay: ClassVar[tuple[str, ...]] = ("norm", "bonus", "blend")

    def __init__(
        self,
        spec: Spec,
        *,
        blend_rank: Annotated[int, Ge(1)] = 32,
        decay_rank: Annotated[int, Ge(1)] = 64,
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        check_count("blend_rank", blend_rank)
        check_count("decay_rank", decay_rank)
        d, n = spec.d_model, self.n_kv_heads * self.d_k
        place = torch.linspace(0, 1, n)
        self.blend_all = nn.Parameter(torch.linspace(1, 0, d))
        self.blend = nn.Parameter(torch.linspace(1, 0, d).repeat(N_BLENDS, 1))  # (5, d_model)
        self.blend_down = nn.Linear(d, N_BLENDS * blend_rank, bias=False)
        self.blend_up = nn.Parameter(0.01 * torch.randn(N_BLENDS, blend_rank, d))
        self.decay = nn.Parameter(-6 + 5 * place**0.7)
        self.decay_down = nn.Linear(d, decay_rank, bias=False)
        self.decay_up = nn.Linear(decay_rank, n, bias=False)
        self.bonus = nn.Parameter(torch.full((spec.n_heads, self.d_k), 0.5))
        self.norm = nn.Parameter(torch.ones(spec.n_heads, self.d_v))

    def projection_flops(self, T: int, S: int) -> float:
        """Adds the low-rank maps of blends and decay."""
        d, blends = self.spec.d_model, self.blend_down.out_features
        low = blends * 2 * d + self.decay_down.out_features * (d + self.decay_up.out_features)
        return super().projection_flops(T, S) + 2.0 * T * low

    def _nothing(self, x: Tensor) -> State:
        return super()._nothing(x) | {"x": x.new_zeros(len(x), 1, self.spec.d_model)}

    def _read(self, x: Tensor, past: State) -> tuple[tuple[Tensor, ...], State]:
        seen = torch.cat((past["x"], x), dim=1)
        x_r, x_k, x_v, x_w, x_g = self._blends(x, seen[:, :-1] - x)
        (q, k, v), after = self._qkv(x_r, x_k, x_v, past)
        slope = at_least_float32(self.decay + self.decay_up(torch.tanh(self.decay_down(x_w))))
        log_decay = -slope.clamp(max=9.0).exp()  # exp(9): 8000 e-folds in one step forget all there is
        log_decay = self._per_head(split_heads(log_decay, self.d_k))
        return (q, k, v, log_decay, self._gate(x_g)), after | {"x": seen[:, -1:].clone()}

    def _blends(self, x: Tensor, change: Tensor) -> tuple[Tensor, ...]:
        """Five blends of each token and the one before it, `change` away: (B, T, d_model) each."""
        B, T, _ = x.shape
        low = torch.tanh(self.blend_down(torch.addcmul(x, change, self.blend_all)))  # (B, T, 5 rank)
        low = low.view(B * T, N_BLENDS, len(self.blend_up[0])).transpose(0, 1)  # (5, B T, rank)
        weights = torch.baddbmm(self.blend[:, None], low, self.blend_up).view(N_BLENDS, B, T, x.shape[2])
        return tuple(torch.addcmul(x, change, weight) for weight in weights)

    def _recurrence(self, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Query t reads the state before its own write: the recurrence is asked by query t + 1 at position t."""
        bonus = ((q * self.bonus[:, None].to(q.dtype)) * k).sum(-1, keepdim=True) * v  # (B, H, T, d_v)
        if not q.shape[2]:
            return bonus, state
        first = (q[:, :, 0, :, None] * state).sum(2)[:, :, None]  # (B, H, 1, d_v)
        y, state = super()._recurrence(F.pad(q[:, :, 1:], (0, 0, 0, 1)), k, v, log_decay, state)
        return torch.cat((first, y[:, :, :-1]), dim=2) + bonus, state

    def _seen_slowly(self, before: Tensor, state: Tensor, write: Tensor) -> Tensor:
        return before + self.bonus[:, :, None].to(write.dtype) * write

    def _gated(self, y: Tensor, gate: Tensor) -> Tensor:
        return super()._gated(y, gate) * self.norm[:, None]


def _hide(k: Tensor, key_mask: Tensor | None) -> Tensor:
    """Keys with padding at 0. Raises ValueError where key_mask hides more than padding on the right."""
    if key_mask is None:
        return k
    check_right_padding(key_mask, "a state")
    return k.masked_fill(~key_mask[:, None, :, None], 0.0)

"""Sliding-window attention. Beltagy et al. 2020, arXiv 2004.05150 (Longformer), section 3.1.

    y_i = sum_j a_ij v_j,  a_i = softmax over visible j of q_i k_j / sqrt(d_k)
    causal: 0 <= i - j < w (a token counts itself);  bidirectional: |i - j| <= floor(w / 2)
    with g global tokens: j < g is visible too, causally where j <= i; bidirectional, a query i < g sees all

    w         window        positions that a causal query sees
    g         n_global      tokens at the start that all see, and that see all that their role lets them see
    i - j     back, ahead   how far a query looks back, and ahead
    q, k, v   q, k, v       queries, keys and values of one head
    d_k       d_k           width of queries and keys

How it runs: blocks of queries meet the keys that their windows touch (`window_attention`); memory is linear in T. With
global tokens each block is shown these too, copied for each; bidirectional, their own queries are one dense call.

Departures: global tokens are the first ones, with the queries, keys and values of all others, where Longformer names
them by task and gives them projections of their own; no dilation, no dropout; projections have no bias; a query that
sees no key gives 0. The package local-attention counts the keys before a token alone: its window is one shorter.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels import masked_attention, plain_attention, window_attention, window_pairs
from attnbench.mixer import Attention, Claim, Flops, Spec, State, Use, check_count

NO_CROSS = "a window needs queries and keys that stand on one line, so there is no cross role"


class SlidingWindow(Attention):
    """Softmax attention to the nearest positions only."""

    claim = Claim(time="T d^2 + T d window + T d n_global", memory="T d", sequential="1", path="T / window")

    def __init__(
        self,
        spec: Spec,
        *,
        window: Annotated[int, Ge(1)] = 64,
        n_global: Annotated[int, Ge(0)] = 0,
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        if spec.role == "cross":
            raise ValueError(NO_CROSS)
        check_count("window", window)
        check_count("n_global", n_global, at_least=0)
        self.window, self.n_global = window, n_global
        self.back, self.ahead = (window - 1, 0) if spec.role == "causal" else (window // 2, window // 2)

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: no cross role, and both directions need as many keys as queries."""
        if spec.role == "cross":
            return NO_CROSS
        if spec.role == "bidirectional" and use.T != use.S:
            return f"both directions need as many keys as queries, got T = {use.T} and S = {use.S}"
        return super().unsupported(spec, use, **options)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`; bidirectional needs T = S."""
        T, S = q.shape[2], k.shape[2]
        if self.spec.role == "bidirectional" and T != S:
            raise ValueError(f"a bidirectional window needs as many keys as queries, got T = {T} and S = {S}")
        g = min(self.n_global, T) if self.spec.role == "bidirectional" else 0  # queries that see every key
        parts = [self._attend_all(q[:, :, :g], k, v, key_mask)] if g else []
        if g < T or not g:
            window = {"back": self.back, "ahead": self.ahead, "n_global": self.n_global}
            parts.append(window_attention(q[:, :, g:], k, v, key_mask, **window))
        return torch.cat(parts, dim=2) if g else parts[0]

    def _attend_all(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        if key_mask is None:
            return F.scaled_dot_product_attention(q, k, v)
        return masked_attention(q, k, v, key_mask[:, None, None, :])  # (B, 1, 1, S)

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Softmax over the keys that each query sees; 0 where there is none."""
        T, S = q.shape[2], k.shape[2]
        ahead = torch.arange(T, device=q.device)[:, None] + S - T - torch.arange(S, device=q.device)  # (T, S)
        seen = (ahead <= self.back) & (ahead >= -self.ahead)
        of_all, sees_all = (torch.arange(n, device=q.device) < self.n_global for n in (S, T))
        seen |= of_all & (ahead >= 0) if self.spec.role == "causal" else of_all | sees_all[:, None]
        seen = seen if key_mask is None else seen & key_mask[:, None, None]
        return plain_attention(q, k, v, seen)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Attend over the prompt and keep keys and values of the global and the last `window` positions."""
        self._check_inputs(x, context, key_mask)
        q, k, v = self.project(x, x)
        y = x if x.shape[1] == 0 else self.merge(self.attend(q, k, v, key_mask=key_mask))
        state = {"k": self._one_per_group(k), "v": self._one_per_group(v)}
        if key_mask is not None:
            state["key_mask"] = key_mask[:, None, :, None]  # (B, 1, S, 1): time stands where k and v have it
        return y, {name: self._kept(past).clone() for name, past in state.items()}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Attend from one token to the global and the last `window` positions, its own too. No state is written to."""
        q, k, v = self.project(x[:, None], x[:, None])
        new = {"k": self._one_per_group(k), "v": self._one_per_group(v), "key_mask": x.new_ones(x.shape[0], 1, 1, 1)}
        both = {name: torch.cat((past, new[name].to(past.dtype)), dim=2) for name, past in state.items()}
        state = {name: self._kept(past) for name, past in both.items()}
        mask = state["key_mask"].transpose(2, 3) if "key_mask" in state else None  # (B, 1, 1, S)
        y = F.scaled_dot_product_attention(q, self._per_head(state["k"]), self._per_head(state["v"]), attn_mask=mask)
        return self.merge(y)[:, 0], state

    def _kept(self, past: Tensor) -> Tensor:
        """What later steps may still see of (B, G, S, D): the first `n_global` positions and the last `window`."""
        late = past[:, :, self.n_global :][:, :, -self.window :]
        return torch.cat((past[:, :, : self.n_global], late), dim=2) if self.n_global else late

    def flops(self, T: int, S: int) -> Flops:
        """Pairs inside the window; executed, every query of a call with every key of that call."""
        g = min(self.n_global, T) if self.spec.role == "bidirectional" else 0
        seen, executed = window_pairs(T - g, S, back=self.back, ahead=self.ahead, n_global=self.n_global)
        seen, executed = seen + g * S, executed + g * S
        fused = self.d_k == self.d_v  # where the widths differ, fused attention runs written out
        return Flops(
            self.pair_flops(seen),
            self.projection_flops(T, S),
            self.pair_flops(executed),
            backward=2.5 if fused else 2.0,
            core_moved=None if self.n_global else self._moved(T, S, 0 if fused else executed),
            projection_moved=self.projection_moved(T, S),
        )

    def _moved(self, T: int, S: int, written_out: int) -> float:
        """Numbers moved without global keys; written_out: pairs whose scores and weights stand in memory."""
        return self.core_moved(T, min(S, T + self.back)) + 4.0 * self.spec.n_heads * written_out

    def step_flops(self, T: int, S: int) -> Flops:
        """One query, the global keys and the window's, which are copied to drop the oldest."""
        n = min(T + 1, self.n_global + self.window)
        copied = 2.0 * self.n_kv_heads * n * (self.d_k + self.d_v)
        return Flops(
            self.pair_flops(n),
            self.projection_flops(1, 1),
            core_moved=self.core_moved(1, n) + copied,
            projection_moved=self.projection_moved(1, 1),
        )

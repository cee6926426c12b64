"""Strided sparse attention. Child et al. 2019, arXiv 1904.10509 (Sparse Transformer), section 4.3, split over heads.

    y_i = sum over j in A_i of a_ij v_j,  a_i = softmax over these j of q_i k_j / sqrt(d_k)
    local heads     A_i = {j: 0 <= i - j < l};    bidirectional: |i - j| <= floor(l / 2)
    strided heads   A_i = {j <= i: (i - j) mod l = 0};    bidirectional: all such j
    Two steps, one of each kind, join any two positions.

    l         stride    default: the root of max_T, rounded down, with which both kinds cost about the same
    A_i       -         the keys that query i sees
    q, k, v   q, k, v   queries, keys and values of one head
    d_k       d_k       width of queries and keys

How it runs: local heads as a sliding window (`window_attention`). A strided head sees only keys of its query's residue
mod l, so time is cut into columns, one per residue, and each column is an ordinary short attention: one fused call for
all. The largest mask has B T^2 / l entries, and only where there is a key_mask.

Departures: the first half of the heads is local, where the paper also lets one kind follow the other by layer. Of an
odd number of heads the middle one is local in even layers and strided in odd ones, so that a single head alternates as
in the paper. The bidirectional form is ours. No dropout; projections have no bias; a query that sees no key gives 0.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels import masked_attention, plain_attention, visible_keys, window_attention, window_pairs
from attnbench.mixer import Attention, Claim, Flops, Spec, Use, check_count

NO_CROSS = "a stride needs queries and keys that stand on one line, so there is no cross role"


class Strided(Attention):
    """Softmax attention to the nearest positions in half of the heads, to every l-th position in the others."""

    claim = Claim(time="T d^2 + T^1.5 d", memory="T d", sequential="1", path="2")

    def __init__(self, spec: Spec, *, stride: Annotated[int, Ge(1)] | None = None, **options: Any) -> None:
        super().__init__(spec, **options)
        if spec.role == "cross":
            raise ValueError(NO_CROSS)
        if stride is not None:
            check_count("stride", stride)
        self.stride = stride or math.isqrt(spec.max_T)
        self.n_local = (spec.n_heads + 1 - spec.layer % 2) // 2
        half = self.stride // 2
        self.back, self.ahead = (self.stride - 1, 0) if spec.role == "causal" else (half, half)

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
        T, S, n = q.shape[2], k.shape[2], self.n_local
        if self.spec.role == "bidirectional" and T != S:
            raise ValueError(f"a bidirectional stride needs as many keys as queries, got T = {T} and S = {S}")
        if T > S:  # bottom-right: the first T - S queries stand before every key
            return F.pad(self.attend(q[:, :, T - S :], k, v, key_mask=key_mask), (0, 0, T - S, 0))
        parts = []
        if n:
            near = q[:, :n], k[:, :n], v[:, :n]
            parts.append(window_attention(*near, key_mask, back=self.back, ahead=self.ahead))
        if n < self.spec.n_heads:
            attend = self._attend_column if T == 1 else self._attend_columns
            parts.append(attend(q[:, n:], k[:, n:], v[:, n:], key_mask))
        return torch.cat(parts, dim=1)

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Softmax over the keys that each query sees; 0 where there is none."""
        T, S = q.shape[2], k.shape[2]
        ahead = torch.arange(T, device=q.device)[:, None] + S - T - torch.arange(S, device=q.device)  # (T, S)
        seen = self._seen(ahead)
        seen = seen if key_mask is None else seen & key_mask[:, None, None]
        return plain_attention(q, k, v, seen)

    def _seen(self, ahead: Tensor) -> Tensor:
        """Which keys, `ahead` (T, S) positions before each query, each head sees: (H, T, S)."""
        local = (ahead <= self.back) & (ahead >= -self.ahead)
        far = (ahead % self.stride == 0) & ((ahead >= 0) | (self.spec.role != "causal"))
        return torch.stack([local] * self.n_local + [far] * (self.spec.n_heads - self.n_local))

    def flops(self, T: int, S: int) -> Flops:
        """Strided heads multiply every query of a column with every key of it, those that fill it up too."""
        H, n, causal = self.spec.n_heads, self.n_local, self.spec.role == "causal"
        n_queries = min(T, S)
        near, near_executed = window_pairs(T, S, back=self.back, ahead=self.ahead)
        far = sum(at // self.stride + 1 if causal else self._n_in_column(at, S) for at in range(S - n_queries, S))
        far_executed = self._n_in_column(S - 1, S) if n_queries == 1 else self._executed_columns(n_queries, S)
        seen, executed = (
            self.pair_flops((n * one + (H - n) * other) / H)
            for one, other in ((near, far), (near_executed, far_executed))
        )
        fused = self.d_k == self.d_v  # where the widths differ, fused attention runs written out
        moved = n / H * self.core_moved(T, min(S, T + self.back))
        if n_queries == 1:
            moved += (H - n) / H * self.core_moved(1, far)
        else:
            moved += (H - n) / H * 3 * self.core_moved(T, S)  # columns are copies, written and read
        moved += 0.0 if fused else 4.0 * (n * near_executed + (H - n) * far_executed)
        around = self.projection_flops(T, S), self.projection_moved(T, S)
        return Flops(seen, around[0], executed, 2.5 if fused else 2.0, moved, around[1])

    def _n_in_column(self, at: int, S: int) -> int:
        """How many of S positions share the residue of position `at`."""
        return (S - 1 - at % self.stride) // self.stride + 1

    def _executed_columns(self, T: int, S: int) -> int:
        rows = -(-S // self.stride)
        return self.stride * rows * (rows - (S - T) // self.stride)

    def _attend_column(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """A single query, at the last key: its own column alone, which is what a decoding step reads."""
        column = slice((k.shape[2] - 1) % self.stride, None, self.stride)
        k, v = k[:, :, column], v[:, :, column]
        if key_mask is not None:
            return masked_attention(q, k, v, key_mask[:, None, None, column])  # (B, 1, 1, n)
        return F.scaled_dot_product_attention(q, k, v)

    def _attend_columns(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """Columns of positions 0, l, 2 l, ... and 1, l + 1, ...: the last row is filled up to l positions.

        Queries, the last T positions of S, are filled up at the front too, to whole rows.
        """
        (B, H, T, _), S = q.shape, k.shape[2]
        causal = self.spec.role == "causal"
        before, behind = (S - T) % self.stride, -S % self.stride
        if key_mask is None and behind and not causal:  # a causal query never reaches what fills its column up
            key_mask = torch.ones(1, S, dtype=torch.bool, device=q.device)
        mask = self._mask(key_mask, behind, B)
        q, k, v = self._columns(q, before, behind), self._columns(k, 0, behind), self._columns(v, 0, behind)
        square = causal and q.shape[2] == k.shape[2] and mask is None
        visible = (
            None if square else visible_keys(q.shape[2], k.shape[2], causal=causal, key_mask=mask, device=q.device)
        )
        if visible is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=square)  # (B l, H, rows, d_v)
        else:
            y = masked_attention(q, k, v, visible)
        y = y.view(B, self.stride, H, -1, v.shape[3]).permute(0, 2, 3, 1, 4)  # (B, H, rows, l, d_v)
        return y.flatten(2, 3)[:, :, before : before + T]

    def _columns(self, x: Tensor, before: int, behind: int) -> Tensor:
        """(B, H, T, D) -> (B l, H, rows, D), with rows of l positions after filling up."""
        B, H, _, D = x.shape
        if before or behind:
            x = F.pad(x, (0, 0, before, behind))
        return x.view(B, H, -1, self.stride, D).permute(0, 3, 1, 2, 4).flatten(0, 1)

    def _mask(self, key_mask: Tensor | None, behind: int, B: int) -> Tensor | None:
        """(B or 1, S) -> (B l, rows): which positions of each column are real keys."""
        if key_mask is None:
            return None
        filled = F.pad(key_mask, (0, behind)).expand(B, -1)
        return filled.view(B, -1, self.stride).transpose(1, 2).flatten(0, 1)

"""Grouped-query attention. Ainslie et al. 2023, arXiv 2305.13245; with one group: Shazeer 2019, arXiv 1911.02150.

    y_i = softmax(q_i K_g^T / sqrt(d_k) + M) V_g,  g = floor(h G / H): the heads h of a group read the same keys

    G         n_kv_heads   heads of keys and values; 1 is multi-query attention, H is ordinary attention
    H         n_heads      heads of queries
    Q, K, V   q, k, v      queries of a head, keys and values of a group
    d_k       d_k          width of queries and keys
    M         visible      True where the query may see the key

G is a quarter of H unless given (8 of 32, as in the models that made it known), or the next smaller number that
divides H; at least 1. What is saved is the cache, 2 S G d_head numbers, and W_k and W_v; scores cost what they did.

How it runs: keys and values keep their G heads up to the fused kernel, which lets each head read its group's; neither
a pass nor a step of decoding copies them for the heads.

Departures: trained from the start, where the paper averages the heads of a trained model into groups; no attention
dropout; projections have no bias; a query that sees no key gives 0.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels import plain_attention, plainly_visible, visible_keys
from attnbench.mixer import Attention, Claim, Flops, Spec, Use, visible_pairs


class Grouped(Attention):
    """Softmax attention whose heads share keys and values in groups, by F.scaled_dot_product_attention."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d", sequential="1", path="1")
    equivariant = True

    def __init__(self, spec: Spec, *, n_kv_heads: Annotated[int, Ge(1)] | None = None, **options: Any) -> None:
        super().__init__(spec, n_kv_heads=quarter(spec.n_heads) if n_kv_heads is None else n_kv_heads, **options)

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: groups of one size."""
        G = options.get("n_kv_heads") or 1
        if spec.n_heads % G:
            return f"n_heads must be divisible by n_kv_heads, got {spec.n_heads} and {G}"
        return super().unsupported(spec, use, **options)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """q (B, H, T, d_k), k (B, G, S, d_k), v (B, G, S, d_v) -> (B, H, T, d_v); as many heads as queries do too."""
        T, S, causal = q.shape[2], k.shape[2], self.spec.role == "causal"
        grouped = q.shape[1] != k.shape[1]
        if causal and T == S and key_mask is None:  # torch's flag aligns top-left
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        visible = visible_keys(T, S, causal=causal, key_mask=key_mask, device=q.device)
        if visible is None or (key_mask is None and T <= S):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, enable_gqa=grouped)
        blind = ~visible.any(-1, keepdim=True)  # (B or 1, 1, T or 1, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible | blind, enable_gqa=grouped)
        return y.masked_fill(blind, 0.0)

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Every pair, with keys and values written out for each head."""
        T, S, H, causal = q.shape[2], k.shape[2], self.spec.n_heads, self.spec.role == "causal"
        group = torch.arange(H, device=q.device) * k.shape[1] // H
        visible = plainly_visible(T, S, causal=causal, key_mask=key_mask, device=q.device)
        return plain_attention(q, k[:, group], v[:, group], visible)

    def flops(self, T: int, S: int) -> Flops:
        """What ordinary attention costs, but for the maps W_k and W_v; executed: every pair that a kernel is shown."""
        pairs, fused = visible_pairs(T, S, self.spec.role), self.d_k == self.d_v
        return Flops(
            self.pair_flops(pairs),
            self.projection_flops(T, S),
            self.pair_flops(T * S),
            backward=2.5 if fused else 2.0,
            core_moved=self.core_moved(T, S) if fused else None,
            projection_moved=self.projection_moved(T, S),
        )

    def core_moved(self, T: int, S: int) -> float:
        """Numbers of q and y, and of each group's k and v."""
        return float((self.spec.n_heads * T + self.n_kv_heads * S) * (self.d_k + self.d_v))

    def _per_head(self, kv: Tensor) -> Tensor:
        """Nothing is written out: the kernel takes (B, G, S, D)."""
        return kv

    def _one_per_group(self, kv: Tensor) -> Tensor:
        """Keys and values are one per group already."""
        return kv


def quarter(n_heads: int) -> int:
    """The largest divisor of n_heads that is at most a quarter of it, at least 1."""
    return next(G for G in range(max(1, n_heads // 4), 0, -1) if n_heads % G == 0)

"""Hedgehog. Zhang et al. 2024, arXiv 2402.04347, section 4.

    y_i = sum_j (phi(q_i) phi(k_j)) v_j / sum_j phi(q_i) phi(k_j),   phi(x) = [softmax(W x), softmax(-W x)]

    W         map_q, map_k    (d_k, d_k) for each head of queries, and of keys; the identity at first
    phi       phi             2 d_k features, spiky as softmax weights are
    S, z      sums            (2 d_k, d_v + 1) per head; z is the last column

How it runs: as linear attention over phi, causally in chunks (`FeatureAttention`).

Departures: W has no bias, and is trained with all else from scratch; the paper's other use, learning W to copy the
weights of a trained softmax attention, is not here. A query that sees no key gives 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnbench.kernels import FeatureAttention
from attnbench.mixer import Spec


class Hedgehog(FeatureAttention):
    """Learned features: softmax over the channels of W x and of -W x."""

    def __init__(self, spec: Spec, **options: Any) -> None:
        super().__init__(spec, **options)
        self.map_q, self.map_k = (
            nn.Parameter(torch.eye(self.d_k).repeat(n, 1, 1)) for n in (spec.n_heads, self.n_kv_heads)
        )

    @property
    def n_features(self) -> int:
        """Each channel twice."""
        return 2 * self.d_k

    def phi(self, x: Tensor, which: str, start: int) -> Tensor:
        """By the map of queries or of keys."""
        maps = self.map_q if which == "q" else self._per_head(self.map_k[None])[0]  # (H, d_k, d_k)
        y = x @ maps.mT.to(x.dtype)
        return torch.cat((y.softmax(-1), (-y).softmax(-1)), dim=-1)

    def slow_weights(self, q: Tensor, k: Tensor, start: int) -> Tensor:
        """Both halves written out."""
        group = torch.arange(self.spec.n_heads) * self.n_kv_heads // self.spec.n_heads
        q = torch.einsum("bhid,hed->bhie", q, self.map_q)
        k = torch.einsum("bhjd,hed->bhje", k, self.map_k[group])
        total = q.new_zeros(*q.shape[:3], k.shape[2])
        for sign in (1, -1):
            left, right = ((sign * x).exp() / (sign * x).exp().sum(-1, keepdim=True) for x in (q, k))
            total = total + torch.einsum("bhid,bhjd->bhij", left, right)
        return total

    def phi_flops(self, T: int, S: int) -> float:
        """Products with the maps."""
        return 2.0 * self.spec.n_heads * (T + S) * self.d_k**2

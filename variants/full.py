"""Full attention, softmax written out. Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1.

    y = softmax(Q K^T / sqrt(d_k) + M) V

    Q, K, V   q, k, v   queries, keys and values of one head
    d_k       d_k       width of queries and keys
    M         bias      0 where the query may see the key, else so low that exp gives exactly 0

Departures: no attention dropout; projections have no bias; the softmax of half-precision scores is taken in float32;
a query that sees no key gives 0, where the equation divides 0 by 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.kernels import plain_attention, plainly_visible, visible_keys
from attnbench.mixer import Attention, Claim, Flops, visible_pairs


class Full(Attention):
    """Softmax attention that builds the whole (T, S) map of each head."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d + H T^2", sequential="1", path="1")
    equivariant = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`."""
        T, S, causal = q.shape[2], k.shape[2], self.spec.role == "causal"
        visible = visible_keys(T, S, causal=causal, key_mask=key_mask, device=q.device)
        scores = (q * self.d_k**-0.5) @ k.transpose(2, 3)  # (B, H, T, S)
        if visible is not None:
            low = torch.finfo(q.dtype).min / 2  # finite: a row without a key stays free of NaN, in its gradient too
            bias = torch.zeros_like(visible, dtype=q.dtype).masked_fill_(~visible, low)
            scores.add_(bias)
        weights = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32))
        y: Tensor = weights.to(v.dtype) @ v
        if visible is not None and (key_mask is not None or T > S):
            y = y.masked_fill(~visible.any(-1, keepdim=True), 0.0)
        return y

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Softmax over the keys that each query sees; 0 where there is none."""
        T, S, causal = q.shape[2], k.shape[2], self.spec.role == "causal"
        seen = plainly_visible(T, S, causal=causal, key_mask=key_mask, device=q.device)
        return plain_attention(q, k, v, seen)

    def flops(self, T: int, S: int) -> Flops:
        """Every pair is multiplied, hidden or not."""
        core, masked = self.pair_flops(visible_pairs(T, S, self.spec.role)), self.spec.role == "causal" and T > 1
        return Flops(
            core,
            self.projection_flops(T, S),
            core_executed=self.pair_flops(T * S),
            core_moved=self.core_moved(T, S) + 2.0 * self.spec.n_heads * T * (self.d_k + (3 if masked else 2) * S),
            projection_moved=self.projection_moved(T, S),
        )

    def core_peak_bytes(self, B: int, T: int, S: int, itemsize: int) -> int | None:
        """Scores, weights, the mask with its bias, and the output; in half precision torch widens as it likes."""
        if itemsize < 4:
            return None
        H, masked = self.spec.n_heads, self.spec.role == "causal" and T > 1
        n_copied = S if B > 1 and H > 1 else 0  # values that stand head after head are copied for the product
        return B * H * (2 * T * S + (T + n_copied) * self.d_v) * itemsize + masked * T * S * (1 + itemsize)

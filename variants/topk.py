"""Attention to the k best keys. Gupta et al. 2021, arXiv 2106.06899, section 2. A probe: it saves nothing.

    y_i = sum over j in A_i of a_ij v_j,  a_i = softmax over A_i of s_ij,  s_ij = q_i k_j / sqrt(d_k)
    A_i = {j visible: fewer than k visible keys have a higher score}

    k         k         keys that a query keeps; with k >= S it is full attention
    s_ij      scores    scores of query i
    A_i       kept      the keys that count
    q, k, v   q, k, v   queries, keys and values of one head
    d_k       d_k       width of queries and keys

It asks how many keys matter, not how to be fast: every pair is scored and every weight stands in memory. Keys that tie
with the k-th best all count, so no order of the keys decides. Gradients reach the kept keys alone.

How it runs: torch.topk finds the k-th score of each row, and the softmax runs over what is not below it.

Departures: scores are at least float32, since half precision makes ties of what are none; no dropout; projections have
no bias; a query that sees no key gives 0.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels import at_least_float32, plain_attention, plainly_visible, visible_keys
from attnbench.mixer import Attention, Claim, Flops, Spec, check_count, visible_pairs


class TopK(Attention):
    """Softmax attention to the k keys with the highest scores; builds the whole (T, S) map of each head."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d + H T^2", sequential="1", path="1")
    equivariant = True
    continuous = False

    def __init__(self, spec: Spec, *, k: Annotated[int, Ge(1)] = 32, **options: Any) -> None:
        super().__init__(spec, **options)
        check_count("k", k)
        self.k = k

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`."""
        T, S, causal = q.shape[2], k.shape[2], self.spec.role == "causal"
        visible = visible_keys(T, S, causal=causal, key_mask=key_mask, device=q.device)
        scores = (at_least_float32(q) * self.d_k**-0.5) @ at_least_float32(k).transpose(2, 3)  # (B, H, T, S)
        if visible is not None:
            low = torch.finfo(scores.dtype).min / 2  # finite: a row without a key stays so
            scores = scores.masked_fill(~visible, low)
        if self.k < S:
            least = scores.detach().topk(self.k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
            scores = scores.masked_fill(scores.detach() < least, -torch.inf)
        y: Tensor = scores.softmax(-1).to(v.dtype) @ v
        if visible is not None and (key_mask is not None or T > S):
            y = y.masked_fill(~visible.any(-1, keepdim=True), 0.0)
        return y

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Each key counts that fewer than k others beat."""
        T, S, causal = q.shape[2], k.shape[2], self.spec.role == "causal"
        visible = plainly_visible(T, S, causal=causal, key_mask=key_mask, device=q.device)
        scores = torch.einsum("bhid,bhjd->bhij", q.detach(), k.detach()).masked_fill(~visible, -torch.inf)
        n_better = (scores[..., None, :] > scores[..., :, None]).sum(-1)  # (B, H, T, S)
        return plain_attention(q, k, v, visible & (n_better < self.k))

    def flops(self, T: int, S: int) -> Flops:
        """Core: all pairs are scored and k weights per query used; executed: all are multiplied.

        Maps that are written and read: scores, where there are hidden ones or others these without them, and weights.
        """
        n_kept = sum(min(self.k, n) for n in _n_visible(T, S, self.spec.role == "causal"))
        n_maps = 2 + (self.spec.role == "causal" and T > 1) + (self.k < S)
        seen = visible_pairs(T, S, self.spec.role)
        core = 2.0 * self.spec.n_heads * (seen * self.d_k + n_kept * self.d_v)
        return Flops(
            core,
            self.projection_flops(T, S),
            core_executed=self.pair_flops(T * S),
            core_moved=self.core_moved(T, S) + 2.0 * self.spec.n_heads * T * (self.d_k + n_maps * S),
            projection_moved=self.projection_moved(T, S),
        )


def _n_visible(T: int, S: int, causal: bool) -> list[int]:
    """How many keys each query sees."""
    return [max(0, t + S - T + 1) if causal else S for t in range(T)]

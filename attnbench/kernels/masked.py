"""Softmax attention under a boolean mask, with one answer for a query that sees no key: 0, and no gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def masked_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Fused softmax attention over the visible keys; 0, and no gradient, where a query sees none.

    q: (B, H, T, d_k). k: (B, H, S, d_k). v: (B, H, S, d_v). visible: boolean, broadcast against scores (B, H, T, S).
    Returns (B, H, T, d_v). The kernel is never shown a query without keys: cuDNN's lets such a query see them all
    (until torch 2.12), and what it does with the gradient is its own business too.
    """
    blind = ~visible.any(-1, keepdim=True)  # (..., T or 1, 1)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible | blind)
    return y.masked_fill(blind, 0.0)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """The same as `masked_attention`, pair by pair as the equation says it: what slow forms are made of.

    y_i = sum_j a_ij v_j, a_i the softmax over visible j of q_i k_j / sqrt(d_k). Shapes as there.
    """
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(~visible, -torch.inf)
    top = scores.amax(-1, keepdim=True).detach()
    weights = (scores - top.where(top.isfinite(), 0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("bhij,bhjd->bhid", weights / total.where(total > 0, 1.0), v)

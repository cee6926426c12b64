"""Fused attention under a boolean mask, with one answer for a query that sees no key, whichever kernel runs."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def masked_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the visible keys; 0, and no gradient, where a query sees none.

    q: (B, H, T, d_k). k: (B, H, S, d_k). v: (B, H, S, d_v). visible: boolean, broadcast against scores (B, H, T, S).
    Returns (B, H, T, d_v). The kernel is never shown a query without keys: cuDNN's lets such a query see them all
    (until torch 2.12), and what it does with the gradient is its own business too.
    """
    blind = ~visible.any(-1, keepdim=True)  # (..., T or 1, 1)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible | blind)
    return y.masked_fill(blind, 0.0)

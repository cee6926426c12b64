"""Softmax attention without the factor 1 / sqrt(d_k). Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1.

    y = softmax(scale · Q K^T + M) V

    Q, K, V   q, k, v   queries, keys and values of one head
    M         visible   True where the query may see the key

Departures: the factor is an option, 1 by default.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from annotated_types import Gt
from torch import Tensor

from attnbench import Attention, Claim, Spec


class Unscaled(Attention):
    """Softmax attention whose logits are multiplied by `scale` alone."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d + H T^2")
    equivariant = True

    def __init__(self, spec: Spec, *, scale: Annotated[float, Gt(0)] = 1.0, **options: Any) -> None:
        super().__init__(spec, **options)
        self.scale = scale

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`; the softmax is taken in float32 at the least."""
        T, S = q.shape[2], k.shape[2]
        visible = torch.ones(T, S, dtype=torch.bool, device=q.device)
        if self.spec.role == "causal":
            visible = visible.tril(S - T)
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :]  # (B, 1, T, S)
        scores = (self.scale * q) @ k.transpose(2, 3)
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min / 2)
        weights = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32))
        return (weights.to(v.dtype) @ v).masked_fill(~visible.any(-1, keepdim=True), 0.0)

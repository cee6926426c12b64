"""A faulty plugin: it takes a key mask and does not look at it."""

import torch

from attnbench import Attention, Claim


class Unmasked(Attention):
    """torch's fused attention; key_mask is accepted and forgotten."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d")

    def attend(self, q, k, v, *, key_mask=None):
        T, S = q.shape[2], k.shape[2]
        visible = None
        if self.spec.role == "causal":
            visible = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)

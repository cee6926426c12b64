"""A complete plugin: attention by the cosine of query and key, with one learned temperature per head."""

import torch
from torch import nn

from attnbench import Attention, Claim, Flops


class Cosine(Attention):
    """weights = softmax(exp(temperature) · cos(q, k)) (Henry et al. 2020 norm queries and keys in this way)."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d + H T^2")

    def __init__(self, spec, **options):
        super().__init__(spec, **options)
        self.temperature = nn.Parameter(torch.full((spec.n_heads, 1, 1), 2.0))

    def attend(self, q, k, v, *, key_mask=None):
        T, S = q.shape[2], k.shape[2]
        visible = torch.ones(T, S, dtype=torch.bool, device=q.device)
        if self.spec.role == "causal":
            visible = visible.tril(S - T)  # the last query sees the last key
        if key_mask is not None:
            visible = visible & key_mask[:, None, None]  # (B, 1, T, S)
        q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
        scores = (self.temperature.exp() * (q @ k.mT)).masked_fill(~visible, torch.finfo(q.dtype).min)
        return scores.softmax(-1).masked_fill(~visible, 0) @ v  # no visible key: 0

    def flops(self, T, S):
        pairs = T * (T + 1) / 2 if self.spec.role == "causal" else T * S
        return Flops(self.pair_flops(pairs), self.projection_flops(T, S), core_executed=self.pair_flops(T * S))

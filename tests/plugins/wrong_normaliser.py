"""A faulty plugin: linear attention that divides by the number of keys where the sum of the weights belongs."""

import torch

from attnbench import Attention, Claim


class PerKey(Attention):
    """phi(q) · phi(k) with phi = elu + 1, as a matrix of weights, over the number of visible keys."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d + H T^2")

    def attend(self, q, k, v, *, key_mask=None):
        T, S = q.shape[2], k.shape[2]
        visible = torch.ones(T, S, dtype=q.dtype)
        if self.spec.role == "causal":
            visible = visible.tril(S - T)
        if key_mask is not None:
            visible = visible * key_mask[:, None, None]
        q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
        return (q @ k.mT * visible) @ v / visible.sum(-1, keepdim=True).clamp(min=1)

"""Sigmoid attention, Ramapuram et al. 2024, arXiv 2409.04431: each key is weighed by itself, y = sigmoid(QK' + b) V."""

from math import log

import torch

from attnbench import Attention, Claim
from attnbench.kernels import visible_keys


class Sigmoid(Attention):
    """The bias b is -log(max_T), so that the weights of a row of max_T equal scores add up to about 1."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d + H T^2")
    normalised = False

    def attend(self, q, k, v, *, key_mask=None):
        """q (B, H, T, d_k), k (B, H, S, d_k), v (B, H, S, d_v) -> (B, H, T, d_v)."""
        T, S, causal = q.shape[2], k.shape[2], self.spec.role == "causal"
        weights = torch.sigmoid(q @ k.mT / self.d_k**0.5 - log(self.spec.max_T))
        visible = visible_keys(T, S, causal=causal, key_mask=key_mask, device=q.device)
        return (weights if visible is None else weights.masked_fill(~visible, 0)) @ v

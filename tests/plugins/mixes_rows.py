"""A faulty plugin: attention whose queries and keys are centred over the batch, so that rows know each other."""

import torch

from attnbench import Attention, Claim


class Centred(Attention):
    """Softmax attention on queries and keys from which the mean over the batch is taken."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d + H T^2")

    def attend(self, q, k, v, *, key_mask=None):
        T, S = q.shape[2], k.shape[2]
        q, k = q - q.mean(0), k - k.mean(0)
        visible = torch.ones(T, S, dtype=torch.bool)
        if self.spec.role == "causal":
            visible = visible.tril(S - T)
        if key_mask is not None:
            visible = visible & key_mask[:, None, None]
        scores = (q @ k.mT / self.d_k**0.5).masked_fill(~visible, torch.finfo(q.dtype).min)
        return scores.softmax(-1).masked_fill(~visible, 0) @ v

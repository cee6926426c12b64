"""A faulty plugin: causal in a model's first layer, not in its second."""

import torch

from attnbench import Attention


class LeaksLate(Attention):
    """Softmax attention that forgets its causal mask where it is layer 1."""

    @classmethod
    def unsupported(cls, spec, use, **options):
        return None if spec.role == "causal" and use.mask == "none" and use.T == use.S else "not tried"

    def attend(self, q, k, v, *, key_mask=None):
        T = q.shape[2]
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1) & (self.spec.layer != 1)
        return (q @ k.mT / self.d_k**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v

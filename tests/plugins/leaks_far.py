"""A faulty plugin: a causal mask that hides only so much of the future."""

from typing import Annotated

import torch
from annotated_types import Ge

from attnbench import Attention


class FarSighted(Attention):
    """Softmax attention to the past, and to what comes `beyond` positions later or still further on."""

    def __init__(self, spec, *, beyond: Annotated[int, Ge(1)] = 200, multiple: Annotated[int, Ge(1)] = 1, **options):
        super().__init__(spec, **options)
        self.beyond = beyond

    @classmethod
    def unsupported(cls, spec, use, *, multiple=1, **options):
        if spec.role != "causal" or use.mask != "none" or use.decodes or use.T != use.S:
            return "not tried"
        return f"T must be a multiple of {multiple}" if use.T % multiple else None

    def attend(self, q, k, v, *, key_mask=None):
        T = q.shape[2]
        distance = torch.arange(T) - torch.arange(T)[:, None]
        hidden = (distance > 0) & (distance < self.beyond)
        return (q @ k.mT / self.d_k**0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v

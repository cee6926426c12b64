"""A faulty plugin: means of blocks of keys, where the block that a query stands in already holds its future."""

from typing import Annotated

import torch
from annotated_types import Ge

from attnbench import Attention, Claim


class BlockMean(Attention):
    """softmax(q · mean of a block's keys) over all blocks up to the query's own."""

    claim = Claim(time="T d^2 + T^2 d / block", memory="T d + H T^2 / block")

    def __init__(self, spec, *, block: Annotated[int, Ge(1)] = 4, **options):
        super().__init__(spec, **options)
        self.block = block

    @classmethod
    def unsupported(cls, spec, use, **options):
        reason = "no key masks" if use.mask != "none" else "no decoding form" if use.decodes else None
        return reason or super().unsupported(spec, use, **options)

    def attend(self, q, k, v, *, key_mask=None):
        T, S = q.shape[2], k.shape[2]
        k, v = (torch.stack([b.mean(2) for b in x.split(self.block, dim=2)], dim=2) for x in (k, v))
        scores = q @ k.mT / self.d_k**0.5  # (B, H, T, n_blocks)
        if self.spec.role == "causal":
            own_block = torch.arange(S - T, S) // self.block
            future = torch.arange(k.shape[2]) > own_block[:, None]
            scores = scores.masked_fill(future, -torch.inf)
        return scores.softmax(-1) @ v

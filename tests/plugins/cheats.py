"""Mixers that keep every promise and cost more than they claim."""

from typing import Annotated

import torch
from annotated_types import Ge

from attnbench import Attention, Claim


def visible(role, q, k, key_mask):
    """(T, S), or (B, 1, T, S) with a key mask: True where a query may see a key."""
    T, S = q.shape[2], k.shape[2]
    seen = torch.ones(T, S, dtype=torch.bool)
    seen = seen.tril(S - T) if role == "causal" else seen
    return seen if key_mask is None else seen & key_mask[:, None, None]


def softmax_attention(q, k, v, seen):
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, torch.finfo(q.dtype).min)
    return scores.softmax(-1).masked_fill(~seen, 0) @ v


class DenseWindow(Attention):
    """A window that is cut out of all pairs."""

    claim = Claim(time="T d^2 + T d window", memory="T d", path="T / window")

    def __init__(self, spec, *, window: Annotated[int, Ge(1)] = 16, **options):
        super().__init__(spec, **options)
        self.window = window

    @classmethod
    def unsupported(cls, spec, use, **options):
        return "a window is around a query" if spec.role == "cross" else super().unsupported(spec, use, **options)

    def attend(self, q, k, v, *, key_mask=None):
        T, S = q.shape[2], k.shape[2]
        behind = torch.arange(S - T, S)[:, None] - torch.arange(S)
        near = behind < self.window if self.spec.role == "causal" else behind.abs() < self.window
        return softmax_attention(q, k, v, visible(self.spec.role, q, k, key_mask) & near)


class StoredStates(Attention):
    """Linear attention that keeps a state of d_k × d_v for every position."""

    claim = Claim(time="T d^2", memory="T d")

    @classmethod
    def unsupported(cls, spec, use, **options):
        return "both sequences are one" if spec.role != "causal" else super().unsupported(spec, use, **options)

    def attend(self, q, k, v, *, key_mask=None):
        q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
        if key_mask is not None:
            k = k * key_mask[:, None, :, None]
        T = q.shape[2]
        states = (k[..., None] * v[..., None, :]).cumsum(2)[:, :, -T:]  # (B, H, T, d_k, d_v)
        weight = (q * k.cumsum(2)[:, :, -T:]).sum(-1, keepdim=True)  # (B, H, T, 1)
        return (q[..., None, :] @ states)[..., 0, :] / weight.masked_fill(weight == 0, 1)


class SaysLinear(Attention):
    """All pairs, and a claim of none."""

    claim = Claim(time="T d^2", memory="T d")

    def attend(self, q, k, v, *, key_mask=None):
        return softmax_attention(q, k, v, visible(self.spec.role, q, k, key_mask))


class Silent(SaysLinear):
    """The same, and no claim at all."""

    claim = None


class Unreadable(SaysLinear):
    """The same, with a claim in words."""

    claim = Claim(time="T d^2 + widnow T d", memory="linear")

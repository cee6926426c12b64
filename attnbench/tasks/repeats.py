"""Sequences that come twice: shares of them within a sample, and between two."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.tasks import Batch


def overlap(known: Batch, asked: Batch) -> float:
    """The share of the sequences of `asked` whose inputs, all that a model reads, are also among those of `known`."""
    here, there = _keys(known, asked)
    return torch.isin(there, here).double().mean().item() if len(asked) else 0.0


def duplicates(batch: Batch) -> float:
    """The share of sequences that came before in the same batch."""
    return 1 - len(distinct(batch.inputs, dim=0)[2]) / len(batch) if len(batch) else 0.0


def alike_within(batch: Batch) -> int:
    """How many pairs of sequences of a batch are equal."""
    n = distinct(batch.inputs, dim=0)[2]
    return int((n * (n - 1) // 2).sum())


def alike_between(one: Batch, other: Batch) -> int:
    """How many pairs, one sequence from each batch, are equal."""
    here, there = _keys(one, other)
    size = 1 + int(torch.cat((here, there)).max())
    return int((torch.bincount(here, minlength=size) * torch.bincount(there, minlength=size)).sum())


def distinct(values: Tensor, dim: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Values, or rows along `dim`, each once and in order; which of them each one is; how often each comes."""
    found: tuple[Tensor, Tensor, Tensor] = torch.unique(values, return_inverse=True, return_counts=True, dim=dim)
    return found


def _keys(one: Batch, other: Batch) -> tuple[Tensor, Tensor]:
    """A number for each sequence of two batches, the same where all inputs are equal, and there alone."""
    keys = distinct(torch.cat((one.inputs, other.inputs)), dim=0)[1]
    return keys[: len(one)], keys[len(one) :]

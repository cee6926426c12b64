"""What several tasks need: random whole numbers, and slices by size with edges at the octaves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor


def randint(high: int, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Uniform over 0 … high - 1, int64."""
    return torch.randint(high, shape, generator=generator)


def edges(low: int, high: int, trained: int = 0) -> list[int]:
    """Lower edges of slices over low … high: low, 2 low, 4 low …, and the size after `trained`.

    trained: the largest size in training, so that no slice mixes what was trained with what was not; 0: all are.
    """
    octaves = {low * 2**i for i in range((high // low).bit_length())}
    return sorted(octaves | ({trained + 1} if low <= trained < high else set()))


def slice_of(size: Tensor, lower_edges: Sequence[int]) -> Tensor:
    """Index of the last edge that does not exceed each size."""
    return torch.bucketize(size, torch.tensor(lower_edges), right=True) - 1

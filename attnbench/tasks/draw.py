"""What several tasks need: random whole numbers, slices by size with edges at the octaves, and rows of answers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from attnbench.tasks import IGNORE


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


def rows_of(answers: Sequence[Sequence[int]], T: int) -> Tensor:
    """(N, T) int64 of N lists of answers, each filled up with IGNORE, or cut, to T."""
    rows = [[*row[:T], *[IGNORE] * (T - len(row))] for row in answers]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), T)

"""The task interface: labelled token sequences from a task's own generator, the same for every variant.

A task subclasses `Task`, names its options as keyword-only arguments after T, and writes `sample`. Tasks enter by the
entry-point group `attnbench.tasks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

IGNORE = -100


@dataclass(frozen=True)
class Batch:
    """N sequences of length T.

    tokens: (N, T) int64. labels: (N, T) int64, IGNORE where a position is not scored.
    slices: (N, T) int64, an index into the task's `slice_names`, -1 where a position is not scored.
    """

    tokens: Tensor
    labels: Tensor
    slices: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, index: slice | Tensor) -> Batch:
        """Some of the sequences: a slice, (M,) indices or an (N,) bool mask."""
        return Batch(self.tokens[index], self.labels[index], self.slices[index])

    @staticmethod
    def join(batches: Sequence[Batch]) -> Batch:
        """All sequences of some batches, at least one, in order."""
        parts = zip(*((batch.tokens, batch.labels, batch.slices) for batch in batches), strict=True)
        return Batch(*(torch.cat(part) for part in parts))


class Task(ABC):
    """Sequences of length T with labels at scored positions.

    chance: accuracy of guessing a label uniformly. floor: accuracy of the best predictor that cannot look back.
    slice_names: groups of scored positions that are reported apart, in order.
    options: the options this task was built with, as its constructor hands them to `Task`; they stand in the record
    and, with the class and T, decide which sequences are drawn.
    Raises ValueError from the constructor when T is below the smallest legal one, naming it.
    """

    vocab_size: int
    chance: float
    floor: float
    slice_names: tuple[str, ...]
    title: ClassVar[str]

    def __init__(self, T: int, **options: int | float | str) -> None:
        self.T, self.options = T, options

    @abstractmethod
    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""

    @classmethod
    @abstractmethod
    def min_T(cls, **options: Any) -> int:
        """Smallest legal T with these options; what is not given is at its default."""

"""The adding problem. Hochreiter and Schmidhuber 1997; a mark in each half as in Arjovsky et al. 2016, 1511.06464.

A sequence is a number, uniform in [0, 1), and a mark, 0 or 1, at each position. Two positions are marked. The answer,
at the last position, is the sum of the two marked numbers. It is regression: a model has to carry two real numbers over
a gap, with as many distractors as there are positions between.

Who predicts 1, the mean, has a squared error of 1/6: twice the variance of a uniform number.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, randint, slice_of

_SMALLEST = 2  # one position for each mark


class Adding(Task):
    """Add the two marked numbers of a sequence.

    places: where the marks stand: one in each half (`halves`; the first half is T // 2 positions), or at any two
    positions (`anywhere`).
    Tokens: 1 at a mark, 0 elsewhere. Values: uniform numbers. The answer stands in `numbers`, at the last position.
    chance and floor are the accuracy of the best constant, 1: the share of sums within `tolerance` of it, 0.0784. Its
    squared error is 1/6.
    Slices are octaves of the gap between the marks, named by their lower edge: 1, 2, 4…
    Raises ValueError when T < 2.
    """

    title: ClassVar[str] = "add the two marked numbers"
    slice_unit: ClassVar[str] = "gap"
    answers: ClassVar[Literal["label", "number"]] = "number"
    tolerance: ClassVar[float] = 0.04
    reads_values: ClassVar[bool] = True
    floor_from: ClassVar[str] = "the best constant"

    def __init__(self, T: int, *, places: Literal["halves", "anywhere"] = "halves") -> None:
        super().__init__(T, places=places)
        if T < _SMALLEST:
            raise ValueError(f"adding needs T of at least {_SMALLEST}, got {T}")
        self.places = places
        self.vocab_size = 2
        self.chance = self.floor = self.tolerance * (2 - self.tolerance)  # of a sum's triangular density around 1
        self.edges = edges(1, T - 1)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, **options: Any) -> int:
        """A position for each mark."""
        return _SMALLEST

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        marks = self._marks(n, generator)  # (n, 2)
        values = torch.rand(n, self.T, generator=generator)
        tokens = torch.zeros(n, self.T, dtype=torch.int64).scatter_(1, marks, 1)
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, -1] = 0
        slices[:, -1] = slice_of((marks[:, 0] - marks[:, 1]).abs(), self.edges)
        numbers = torch.zeros_like(values)
        numbers[:, -1] = values.gather(1, marks).sum(1)
        return Batch(tokens, labels, slices, values=values, numbers=numbers)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) float32: at the last position the sum of all values times their marks, elsewhere 0."""
        tokens, bits = batch.inputs[:, : self.T], batch.inputs[:, self.T :]
        values = bits.to(torch.int32).view(torch.float32).double()
        answers = torch.zeros(tokens.shape)
        answers[:, -1] = (tokens * values).sum(1).float()
        return answers

    def _marks(self, n: int, generator: Generator) -> Tensor:
        """(n, 2) two different positions."""
        if self.places == "halves":
            half = self.T // 2
            return torch.cat((randint(half, (n, 1), generator), half + randint(self.T - half, (n, 1), generator)), 1)
        first, other = randint(self.T, (n, 1), generator), randint(self.T - 1, (n, 1), generator)
        return torch.cat((first, other + (other >= first)), 1)

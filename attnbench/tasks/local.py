"""Local: the sum of the last two tokens, at every position. It needs no memory and no search, only locality.

The label at t is (x_{t-1} + x_{t-2}) mod n_values, over uniform tokens x. A convolution of three taps has the answer in
its window at every position and shares what it learns between positions; attention has to find the two offsets by its
positions. What this costs in examples shows with few distinct training sequences: `n_training` in [train].

The task is ours.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, randint, slice_of

_FIRST = 2  # the first position with two tokens before it


class Local(Task):
    """Add the last two tokens, mod n_values.

    Whoever knows only one of the two, or neither, is right once in n_values times: chance and floor.
    Slices are octaves of the position, named by their lower edge: 2, 4, 8...
    Raises ValueError when T < 3.
    """

    title: ClassVar[str] = "add the last two tokens"
    slice_unit: ClassVar[str] = "position"
    usual_T: ClassVar[int] = 32

    def __init__(self, T: int, *, n_values: Annotated[int, Ge(2)] = 8) -> None:
        super().__init__(T, n_values=n_values)
        if T <= _FIRST:
            raise ValueError(f"local needs T of at least {_FIRST + 1}, got {T}")
        self.vocab_size = n_values
        self.chance = self.floor = 1 / n_values
        self.edges = edges(_FIRST, T - 1)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, **options: Any) -> int:
        """Two tokens and one position behind them."""
        return _FIRST + 1

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        tokens = randint(self.vocab_size, (n, self.T), generator)
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, _FIRST:] = (tokens[:, 1:-1] + tokens[:, :-2]) % self.vocab_size
        slices[:, _FIRST:] = slice_of(torch.arange(_FIRST, self.T), self.edges)
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """Sums of all tokens so far: the one up to t - 1, less the one up to t - 3."""
        sums = torch.cat((batch.tokens.new_zeros(len(batch), _FIRST + 1), batch.tokens.cumsum(1)), dim=1)
        return (sums[:, _FIRST : _FIRST + self.T] - sums[:, : self.T]) % self.vocab_size

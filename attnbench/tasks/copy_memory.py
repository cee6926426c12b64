"""Copy memory: keep a string over a blank stretch. Hochreiter and Schmidhuber 1997; Arjovsky et al. 2016, arXiv
1511.06464 (unitary recurrent networks), section 4.1.

A sequence is n_copied random symbols, blanks, one signal, and n_copied blanks, at which the string is due in order.
Each symbol stands T - n_copied positions before its answer, always: a convolution, or attention that looks at positions
alone, can solve it. It asks how long something is kept, not how it is found.

Departures: only the answers are scored; predicting the blanks before them would be right everywhere else. T counts the
whole sequence, where the paper counts the blanks.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import randint
from attnbench.tasks.guesses import commonest_share


class CopyMemory(Task):
    """Write the first n_copied symbols at the last n_copied positions.

    Tokens: n_symbols symbols, the blank, the signal.
    chance is 1 / n_symbols; floor, exact, is the score of naming the commonest symbol of the string every time.
    Slices are the places in the string, from 1.
    Raises ValueError when T < 2 n_copied + 1.
    """

    title: ClassVar[str] = "keep a string over a blank stretch"
    slice_unit: ClassVar[str] = "place"
    floor_from: ClassVar[str] = "the commonest symbol of the string"

    def __init__(self, T: int, *, n_symbols: Annotated[int, Ge(2)] = 8, n_copied: Annotated[int, Ge(1)] = 10) -> None:
        super().__init__(T, n_symbols=n_symbols, n_copied=n_copied)
        smallest = self.min_T(n_copied=n_copied)
        if smallest > T:
            raise ValueError(f"copy_memory with n_copied = {n_copied} needs T of at least {smallest}, got {T}")
        self.n_symbols, self.n_copied = n_symbols, n_copied
        self.blank, self.signal, self.vocab_size = n_symbols, n_symbols + 1, n_symbols + 2
        self.chance, self.floor = 1 / n_symbols, commonest_share(n_copied, n_symbols)
        self.slice_names = tuple(str(place + 1) for place in range(n_copied))

    @classmethod
    def min_T(cls, *, n_copied: int = 10, **options: Any) -> int:
        """The string, the signal, and a blank per answer."""
        return 2 * n_copied + 1

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        string = randint(self.n_symbols, (n, self.n_copied), generator)
        tokens = torch.full((n, self.T), self.blank)
        tokens[:, : self.n_copied] = string
        tokens[:, -self.n_copied - 1] = self.signal
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, -self.n_copied :] = string
        slices[:, -self.n_copied :] = torch.arange(self.n_copied)
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: each sequence read from left to right, symbols kept, and given back behind the signal."""
        rows = [self._written(row) for row in batch.inputs.tolist()]
        return torch.tensor(rows, dtype=torch.int64).view(-1, self.T)

    def _written(self, row: list[int]) -> list[int]:
        kept = [token for token in row if token < self.n_symbols]
        before = row.index(self.signal) + 1
        return [IGNORE] * before + kept

"""Memorisation: facts that stand in no sequence. After MAD, Poli et al. 2024, arXiv 2403.17844.

A sequence is random keys, each followed by a question token, at which the value of that key is due. Which value belongs
to which key is the same in every sequence, so it has to be learnt into the parameters; the mixer only hands a key on by
one position. It is a control: a variant that fails it at settings where others solve it was not trained long enough,
or its block is broken, and its recall scores say nothing.

Departure: keys and values are matched one to one, so no value is commoner than another; MAD draws values one by one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import randint
from attnbench.tasks.guesses import commonest_share

_SEED = 20240326  # of the facts; the seed of a sweep does not change them
_FEWEST = 4  # keys in a sequence: with fewer, a test sequence could hold a key that no training sequence has


class Memorisation(Task):
    """Give the value that belongs to a key in every sequence.

    n_values: keys, and as many values. Tokens: keys 0 … n_values - 1, the values behind them, the question token.
    A key may come more than once. With an odd T the last position is a key that is not asked for.
    chance is 1 / n_values; floor, exact, is the score of one that knows all facts but not which key is asked for, and
    takes the commonest of the keys read so far.
    Raises ValueError when T < 8.
    """

    title: ClassVar[str] = "facts that are the same in every sequence"
    floor_from: ClassVar[str] = "the commonest key read so far"

    def __init__(self, T: int, *, n_values: Annotated[int, Ge(2)] = 128) -> None:
        super().__init__(T, n_values=n_values)
        if self.min_T() > T:
            raise ValueError(f"memorisation needs T of at least {self.min_T()}, got {T}")
        self.n_values, self.question, self.vocab_size = n_values, 2 * n_values, 2 * n_values + 1
        self.chance = 1 / n_values
        self.floor = _floor(n_values, T // 2)
        self.slice_names = ("all",)

    @classmethod
    def min_T(cls, **options: Any) -> int:
        """Four keys, each asked for."""
        return 2 * _FEWEST

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        key = randint(self.n_values, (n, (self.T + 1) // 2), generator)
        n_asked = self.T // 2
        tokens = torch.full((n, self.T), self.question)
        tokens[:, ::2] = key
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, 1::2] = torch.tensor(_facts(self.n_values))[key[:, :n_asked]]
        slices[:, 1::2] = 0
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: each question token answered from a list of all facts."""
        known = dict(enumerate(_facts(self.n_values)))
        rows = [self._answers(row, known) for row in batch.inputs.tolist()]
        return torch.tensor(rows, dtype=torch.int64).view(-1, self.T)

    def _answers(self, row: list[int], known: dict[int, int]) -> list[int]:
        before = zip([self.question, *row], row, strict=False)
        return [known[key] if token == self.question else IGNORE for key, token in before]


@lru_cache
def _floor(n_values: int, n_asked: int) -> float:
    """The mean share of the commonest of 1, 2 … n_asked keys."""
    return sum(commonest_share(n, n_values) for n in range(1, n_asked + 1)) / n_asked


@lru_cache
def _facts(n_values: int) -> tuple[int, ...]:
    """The value of each key, as a token."""
    values = n_values + torch.randperm(n_values, generator=Generator().manual_seed(_SEED))
    return tuple(values.tolist())

"""What the tasks over random strings share: their options, the lengths of their strings, and the slices by length."""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Self

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Task
from attnbench.tasks.draw import edges, randint, slice_of

_STRINGS = 1000  # drawn for the floor


class Strings(Task):
    """A task about one string per sequence; its length is uniform in [min_length, T // n_places].

    n_symbols: symbols of a string. Tokens: symbols, one mark of the task's own, padding.
    min_length: of the shortest string. train_max_length: of the longest one in training and validation; 0: all lengths,
    in test data always all.
    chance is 1 / n_symbols; floor is the score of guessing, each time, the commonest symbol still to be written,
    in whatever order: more than chance, and more so at the end and with short strings.
    `accuracy` is over symbols, `sequence_accuracy` over whole strings.
    Slices are octaves of the length, named by their lower edge, with one more edge where training ends.
    n_places: how many positions of a sequence each symbol takes.
    Raises ValueError when T < n_places · min_length, or when no string is short enough to train on.
    """

    n_places: ClassVar[int] = 1
    floor_from: ClassVar[str] = "the commonest symbol still to be written"

    def __init__(
        self,
        T: int,
        *,
        n_symbols: Annotated[int, Ge(2)] = 16,
        min_length: Annotated[int, Ge(1)] = 4,
        train_max_length: Annotated[int, Ge(0)] = 0,
    ) -> None:
        super().__init__(T, n_symbols=n_symbols, min_length=min_length, train_max_length=train_max_length)
        smallest, name = self.min_T(min_length=min_length), type(self).__name__.lower()
        if smallest > T:
            raise ValueError(f"{name} with min_length = {min_length} needs T of at least {smallest}, got {T}")
        if 0 < train_max_length < min_length:
            raise ValueError(
                f"train_max_length must be 0 or at least min_length = {min_length}, got {train_max_length}"
            )
        self.n_symbols, self.min_length, self.train_max_length = n_symbols, min_length, train_max_length
        self.max_length = T // self.n_places
        self.mark, self.padding = n_symbols, n_symbols + 1
        self.vocab_size = n_symbols + 2
        self.chance = 1 / n_symbols
        self.floor = commonest_left(n_symbols, min_length, self.max_length)
        self.edges = edges(min_length, self.max_length, train_max_length)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, *, min_length: int = 4, **options: Any) -> int:
        """Room for the shortest string."""
        return cls.n_places * min_length

    def for_training(self) -> Self:
        """The same with strings of train_max_length at most."""
        if not self.train_max_length:
            return self
        shorter = copy(self)
        shorter.max_length = min(self.max_length, self.train_max_length)
        return shorter

    def draw_lengths(self, n: int, generator: Generator) -> Tensor:
        """Lengths of n strings, (n, 1)."""
        return self.min_length + randint(self.max_length - self.min_length + 1, (n, 1), generator)

    def scored(self, labels: Tensor, where: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and slices (n, T), both kept where a position is scored; length (n, 1)."""
        slices = slice_of(length, self.edges).expand(labels.shape)
        return labels.masked_fill(~where, IGNORE), torch.where(where, slices, -1)


@lru_cache
def commonest_left(n_symbols: int, shortest: int, longest: int) -> float:
    """How often the commonest of the symbols that are left is the next one, over strings of all lengths alike.

    The expected share of the commonest among r uniform symbols comes from strings drawn from a seed of their own, so it
    is the same each time and its error below 0.003; r runs from each string's length down to 1.
    """
    strings = randint(n_symbols, (_STRINGS, longest), Generator().manual_seed(0))
    most = torch.zeros_like(strings)
    for symbol in range(n_symbols):
        torch.maximum(most, (strings == symbol).cumsum(1), out=most)
    share = most.double().mean(0) / torch.arange(1, longest + 1)  # (longest,) of r = 1 ... symbols
    right = share.cumsum(0)[shortest - 1 :]  # of a whole string, by its length
    return (right.sum() / torch.arange(shortest, longest + 1).sum()).item()

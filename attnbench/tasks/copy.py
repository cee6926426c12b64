"""Copying strings of any length. Jelassi et al. 2024, arXiv 2402.01032 (Repeat After Me), section 3.

A sequence is s | s: a random string, a separator, and the string again but for its last symbol, then padding. At the
separator and behind it the label is the next symbol of the string, so a model that writes the copy itself reads what
stands here. With one fixed length the answer would stand at one fixed distance and any short window could find it.

Departures: no begin and end tokens, the end of a copy is not scored; one string per sequence, padded on the right.
"""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Generator

from attnbench.settings import Role
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, randint, slice_of


class Copy(Task):
    """Write a string again; its length is uniform in [min_length, T // 2].

    n_symbols: symbols of a string. Tokens: symbols, the separator, padding.
    min_length: of the shortest string. train_max_length: of the longest one in training and validation; 0: all lengths,
    in test data always all.
    `accuracy` is over symbols, `sequence_accuracy` over whole strings.
    Slices are octaves of the length, named by their lower edge, with one more edge where training ends.
    Raises ValueError when T < 2 min_length, or when no string is short enough to train on.
    """

    title: ClassVar[str] = "copy a string of any length"
    slice_unit: ClassVar[str] = "length"
    roles: ClassVar[tuple[Role, ...]] = ("causal",)

    def __init__(
        self,
        T: int,
        *,
        n_symbols: Annotated[int, Ge(2)] = 16,
        min_length: Annotated[int, Ge(1)] = 4,
        train_max_length: Annotated[int, Ge(0)] = 0,
    ) -> None:
        super().__init__(T, n_symbols=n_symbols, min_length=min_length, train_max_length=train_max_length)
        if 2 * min_length > T:
            raise ValueError(f"copy with min_length = {min_length} needs T of at least {2 * min_length}, got {T}")
        if 0 < train_max_length < min_length:
            raise ValueError(
                f"train_max_length must be 0 or at least min_length = {min_length}, got {train_max_length}"
            )
        self.n_symbols, self.min_length, self.train_max_length = n_symbols, min_length, train_max_length
        self.max_length = T // 2
        self.vocab_size = n_symbols + 2
        self.chance = self.floor = 1 / n_symbols
        self.edges = edges(min_length, self.max_length, train_max_length)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, *, min_length: int = 4, **options: Any) -> int:
        """The shortest string, the separator, and the string again but for its last symbol."""
        return 2 * min_length

    def for_training(self) -> Copy:
        """The same with strings of train_max_length at most."""
        if not self.train_max_length:
            return self
        shorter = copy(self)
        shorter.max_length = min(self.max_length, self.train_max_length)
        return shorter

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        separator, padding = self.n_symbols, self.n_symbols + 1
        length = self.min_length + randint(self.max_length - self.min_length + 1, (n, 1), generator)
        string = randint(self.n_symbols, (n, self.max_length), generator)
        t = torch.arange(self.T)
        first = string.gather(1, t.expand(n, -1).clamp(max=self.max_length - 1))
        again = string.gather(1, (t - length).clamp(0, self.max_length - 1))  # (n, T): the label, where one is due
        scored = (t >= length) & (t < 2 * length)
        tokens = torch.where(t < length, first, again.roll(1, dims=1))
        tokens = tokens.masked_fill(t == length, separator).masked_fill(t >= 2 * length, padding)
        slices = slice_of(length, self.edges).expand(n, self.T)
        return Batch(tokens, again.masked_fill(~scored, IGNORE), slices.masked_fill(~scored, -1))

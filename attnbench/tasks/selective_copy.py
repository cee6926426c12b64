"""Selective copying. Gu and Dao 2023, arXiv 2312.00752 (Mamba), section 4.1; also a task of Poli et al. 2024 (MAD).

n_items random symbols stand at random places among blanks; behind them come n_items identical marks. At the i-th mark
the label is the i-th item. The distance from an item to its mark is random, so a filter that is the same at every
position cannot do it: a mixer has to tell items from blanks, and a mark has to know which one it is.

Departures: one blank symbol, no noise; the items may stand at any place before the marks, the last one included.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, randint, slice_of
from attnbench.tasks.guesses import commonest_share


class SelectiveCopy(Task):
    """Copy n_items symbols in their order, without the blanks between them.

    n_items: symbols to copy. n_symbols: symbols to draw from. Tokens: symbols, the blank, the mark.
    T counts the n_items marks at the end.
    chance is 1 / n_symbols, what a fixed guess scores; floor, exact, what the commonest symbol of the sequence does.
    Slices are octaves of the gap from an item to its mark, named by their lower edge: n_items, 2 n_items…
    Raises ValueError when T < 2 n_items.
    """

    title: ClassVar[str] = "copy what stands between blanks"
    slice_unit: ClassVar[str] = "gap"
    floor_from: ClassVar[str] = "the commonest symbol of the sequence"

    def __init__(self, T: int, *, n_items: Annotated[int, Ge(1)] = 8, n_symbols: Annotated[int, Ge(2)] = 16) -> None:
        super().__init__(T, n_items=n_items, n_symbols=n_symbols)
        if 2 * n_items > T:
            raise ValueError(f"selective_copy with n_items = {n_items} needs T of at least {2 * n_items}, got {T}")
        self.n_items, self.n_symbols = n_items, n_symbols
        self.blank, self.mark = n_symbols, n_symbols + 1
        self.vocab_size = n_symbols + 2
        self.chance = 1 / n_symbols
        self.floor = commonest_share(n_items, n_symbols)
        self.edges = edges(n_items, T - n_items)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, *, n_items: int = 8, **options: Any) -> int:
        """Every item once, and a mark for each."""
        return 2 * n_items

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        first_mark = self.T - self.n_items
        items = randint(self.n_symbols, (n, self.n_items), generator)
        shuffled = torch.rand(n, first_mark, generator=generator)
        place = shuffled.topk(self.n_items, dim=1, sorted=False).indices.sort(dim=1).values  # (n, n_items)
        tokens = torch.full((n, self.T), self.blank).scatter_(1, place, items)
        tokens[:, first_mark:] = self.mark
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, first_mark:] = items
        slices[:, first_mark:] = slice_of(first_mark + torch.arange(self.n_items) - place, self.edges)
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: what is left of each sequence without its blanks and marks, written at its marks."""
        answers = torch.full_like(batch.tokens, IGNORE)
        answers[batch.inputs == self.mark] = batch.inputs[batch.inputs < self.blank]
        return answers

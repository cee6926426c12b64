"""Sorting a string of any length. Bucket sort of Delétang et al. 2023, arXiv 2207.02098, appendix A.

A sequence is s | sorted s: a random string, a separator, and the string in ascending order but for its last symbol,
then padding. At the separator and behind it the label is the next symbol of the sorted string.

Departures: no end token, the end of an answer is not scored; one string per sequence, padded on the right.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.settings import Role
from attnbench.tasks import Batch
from attnbench.tasks.draw import randint
from attnbench.tasks.strings import Strings


class Sort(Strings):
    """Write a string in order; its length is uniform in [min_length, T // 2]. Options and slices as in `Strings`.

    Tokens: symbols, the separator, padding. chance is 1 / n_symbols; floor, exact, is the score of the likeliest symbol
    of a rank among as many random ones, given the one before it: it comes again, or the next larger one does.
    """

    title: ClassVar[str] = "write a string in ascending order"
    slice_unit: ClassVar[str] = "length"
    roles: ClassVar[tuple[Role, ...]] = ("causal",)
    floor_from: ClassVar[str] = "the rank, the length and the symbol before"
    n_places = 2

    def __init__(
        self,
        T: int,
        *,
        n_symbols: Annotated[int, Ge(2)] = 16,
        min_length: Annotated[int, Ge(1)] = 4,
        train_max_length: Annotated[int, Ge(0)] = 0,
    ) -> None:
        super().__init__(T, n_symbols=n_symbols, min_length=min_length, train_max_length=train_max_length)
        self.floor = _floor(n_symbols, min_length, self.max_length)

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        length = self.draw_lengths(n, generator)
        string = randint(self.n_symbols, (n, self.max_length), generator)
        string = string.masked_fill(torch.arange(self.max_length) >= length, self.padding)
        t = torch.arange(self.T)
        first = string.gather(1, t.expand(n, -1).clamp(max=self.max_length - 1))
        in_order = string.to(torch.int32).sort(dim=1).values.long()  # padding is the largest
        again = in_order.gather(1, (t - length).clamp(0, self.max_length - 1))  # (n, T): the label, where one is due
        tokens = torch.where(t < length, first, again.roll(1, dims=1))
        tokens = tokens.masked_fill(t == length, self.mark).masked_fill(t >= 2 * length, self.padding)
        return Batch(tokens, *self.scored(again, (t >= length) & (t < 2 * length), length))

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: what stands before the separator, row by row, each symbol as often as it was counted."""
        answers = torch.zeros_like(batch.tokens)
        for row, tokens in enumerate(batch.tokens.tolist()):
            string = tokens[: tokens.index(self.mark)]
            in_order = [symbol for symbol in range(self.n_symbols) for _ in range(string.count(symbol))]
            answers[row, len(string) : 2 * len(string)] = torch.tensor(in_order)
        return answers


@lru_cache
def _floor(n_symbols: int, min_length: int, max_length: int) -> float:
    """Over all symbols of all lengths, how often the likeliest one of a rank is right, the one before it known."""
    lengths = range(min_length, max_length + 1)
    right = sum(float(_likeliest(n_symbols, length).sum()) for length in lengths)
    return right / sum(lengths)


def _likeliest(n_symbols: int, length: int) -> Tensor:
    """(length,) float64: for each rank of `length` uniform symbols, how often the likeliest symbol is right.

    Of the first nothing is known, of each other one the symbol of the rank before it: a, followed by a or a + 1.
    """
    rank = torch.arange(length + 1, dtype=torch.float64)[:, None]
    share = torch.arange(n_symbols + 1, dtype=torch.float64) / n_symbols  # P(one symbol is among the first k)
    choose = math.lgamma(length + 1) - torch.lgamma(rank + 1) - torch.lgamma(length - rank + 1)
    below, above = choose + torch.xlogy(rank, share), torch.xlogy(length - rank, 1 - share)
    at_most = (below + above).exp().flip(0).cumsum(0).flip(0)  # (rank, k): P(that many, or more, are among the first k)
    is_a = at_most[1:].diff(dim=1)  # (length, a)
    leaves_a = (below[:, 1:] + above[:, 1:]).exp() - (below[:, :-1] + above[:, 1:]).exp()  # rank is a, the next is more
    beyond = F.pad(above[:, 2:], (0, 1), value=-math.inf)
    skips = (below[:, 1:] + beyond).exp() - (below[:, :-1] + beyond).exp()  # rank is a, the next is more than a + 1
    stays, steps = is_a[:-1] - leaves_a[1:-1], (leaves_a - skips)[1:-1]
    return torch.cat((is_a[:1].amax(1), torch.maximum(stays, steps).sum(1)))

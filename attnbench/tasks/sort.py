"""Sorting a string of any length. Bucket sort of Delétang et al. 2023, arXiv 2207.02098, appendix A.

A sequence is s | sorted s: a random string, a separator, and the string in ascending order but for its last symbol,
then padding. At the separator and behind it the label is the next symbol of the sorted string.

Departures: no end token, the end of an answer is not scored; one string per sequence, padded on the right.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.settings import Role
from attnbench.tasks import Batch
from attnbench.tasks.draw import randint
from attnbench.tasks.strings import Strings


class Sort(Strings):
    """Write a string in order; its length is uniform in [min_length, T // 2]. Options and slices as in `Strings`.

    Tokens: symbols, the separator, padding. chance is 1 / n_symbols; floor, exact, is the score of the likeliest symbol
    of a rank among as many random ones: the first of a sorted string is small, the last large.
    """

    title: ClassVar[str] = "write a string in ascending order"
    slice_unit: ClassVar[str] = "length"
    roles: ClassVar[tuple[Role, ...]] = ("causal",)
    floor_from: ClassVar[str] = "the rank and the length"
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
    """Over all symbols of all lengths, the mean probability of the likeliest one at its rank."""
    lengths = range(min_length, max_length + 1)
    return sum(float(_likeliest(n_symbols, length).sum()) for length in lengths) / sum(lengths)


def _likeliest(n_symbols: int, length: int) -> Tensor:
    """(length,) float64: probability of the likeliest symbol at each rank of `length` uniform symbols.

    The i-th smallest is at most k when at least i of them are: a binomial tail.
    """
    below = (torch.arange(1, n_symbols + 1, dtype=torch.float64) / n_symbols)[:, None]  # P(one symbol is at most k)
    count = torch.arange(length + 1, dtype=torch.float64)
    whole = torch.tensor(length + 1.0, dtype=torch.float64)
    log_choose = torch.lgamma(whole) - torch.lgamma(count + 1) - torch.lgamma(whole - count)
    logs = log_choose + count * below.log() + torch.xlogy(length - count, 1 - below)
    at_least = logs.exp().flip(1).cumsum(1).flip(1)[:, 1:]  # (n_symbols, length): P(i or more are at most k)
    return at_least.diff(dim=0, prepend=torch.zeros(1, length, dtype=torch.float64)).amax(0)

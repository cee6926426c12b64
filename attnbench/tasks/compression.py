"""Compression: read a string, then answer for each of its places. After MAD, Poli et al. 2024, arXiv 2403.17844.

A sequence is a random string of length n = (T - 1) // 2, a token that ends it, and n questions in random order: the
i-th question token asks for the i-th symbol. Every symbol is asked for once, at no fixed distance, so a mixer has to
find it by its place. A model whose state is of fixed size holds the whole string, n log2(n_symbols) bits, in its state
at the end of the string: that state is the bottleneck.

Departure: MAD decodes the string from the last position's vector alone, by a network of its own, which is a bottleneck
for every model. Here a model that can look back, such as attention, is not made to compress: compare models with a
state by it, and read attention's score as that of a model without a bottleneck.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, randint, slice_of
from attnbench.tasks.guesses import commonest_share

_SHORTEST = 4  # of strings; the commonest symbol of a shorter one is the answer too often


class Compression(Task):
    """Name the symbols of a string, place by place, in the order of the questions.

    Tokens: n_symbols symbols, the end of the string, padding, then one question per place. Padding is one position at
    the end of a sequence of even T.
    chance is 1 / n_symbols; floor, exact, is the score of naming the commonest symbol of the string every time.
    Slices are octaves of the distance from a question back to its symbol, named by their lower edge.
    Raises ValueError when T < 9.
    """

    title: ClassVar[str] = "name the symbols of a string by their places"
    slice_unit: ClassVar[str] = "gap"
    floor_from: ClassVar[str] = "the commonest symbol of the string"

    def __init__(self, T: int, *, n_symbols: Annotated[int, Ge(2)] = 16) -> None:
        super().__init__(T, n_symbols=n_symbols)
        if self.min_T() > T:
            raise ValueError(f"compression needs T of at least {self.min_T()}, got {T}")
        self.n_symbols, self.length = n_symbols, (T - 1) // 2
        self.end, self.padding, self.first_question = n_symbols, n_symbols + 1, n_symbols + 2
        self.vocab_size = self.first_question + self.length
        self.chance, self.floor = 1 / n_symbols, commonest_share(self.length, n_symbols)
        self.edges = edges(2, 2 * self.length)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, **options: Any) -> int:
        """The shortest string, its end, and as many questions."""
        return 2 * _SHORTEST + 1

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        string = randint(self.n_symbols, (n, self.length), generator)
        place = torch.rand(n, self.length, generator=generator).argsort(dim=1)  # the n places in random order
        asked = slice(self.length + 1, 2 * self.length + 1)
        tokens = torch.full((n, self.T), self.padding)
        tokens[:, : self.length], tokens[:, self.length] = string, self.end
        tokens[:, asked] = self.first_question + place
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, asked] = string.gather(1, place)
        slices[:, asked] = slice_of(torch.arange(self.T)[asked] - place, self.edges)
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: each question followed to its place."""
        rows = [[self._answer(row, token) for token in row] for row in batch.inputs.tolist()]
        return torch.tensor(rows, dtype=torch.int64).view(-1, self.T)

    def _answer(self, row: list[int], token: int) -> int:
        return row[token - self.first_question] if token >= self.first_question else IGNORE

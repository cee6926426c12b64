"""Looking up an n-gram in a string. Jelassi et al. 2024, arXiv 2402.01032 (Repeat After Me), section 3.

`suffix`: a sequence is a random string, a separator, a key of n_gram symbols out of the string, and the n_answer
symbols that follow it there, but for the last. `prefix`: the key stands before the string, and the separator before the
answer. From the last position before the answer on, the label is the next symbol of the answer. With the key behind the
string a model has to keep all of the string, or to look back; with the key before it, it knows what to wait for.

Departures: one string per sequence, as long as T allows; the string is drawn until the key stands in it once, where the
paper's code takes any key of a string that has a unique one; no tokens for begin and end; no separator behind the key.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.settings import Role
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, randint, slice_of
from attnbench.tasks.guesses import commonest_share


class NgramLookup(Task):
    """Write the n_answer symbols that follow a key of n_gram symbols in a string.

    key: where it stands: `suffix`, behind the string; `prefix`, before it. Tokens: n_symbols symbols, the separator.
    The string is T - n_gram - n_answer long. Its n-grams other than the key may come more than once.
    chance is 1 / n_symbols. floor is the score of naming the commonest symbol of the string every time, as if the key
    could stand in it twice; that it does not changes the score by less than 0.01 at the default options.
    Slices are octaves of the distance from an answer back to where it stands in the string, named by their lower edge.
    Raises ValueError when T < 2 (n_gram + n_answer), or when there are fewer different n-grams than the string is long.
    """

    title: ClassVar[str] = "write what follows an n-gram in a string"
    slice_unit: ClassVar[str] = "gap"
    roles: ClassVar[tuple[Role, ...]] = ("causal",)
    floor_from: ClassVar[str] = "the commonest symbol of the string"

    def __init__(
        self,
        T: int,
        *,
        key: Literal["prefix", "suffix"] = "suffix",
        n_gram: Annotated[int, Ge(1)] = 2,
        n_answer: Annotated[int, Ge(1)] = 4,
        n_symbols: Annotated[int, Ge(2)] = 32,
    ) -> None:
        super().__init__(T, key=key, n_gram=n_gram, n_answer=n_answer, n_symbols=n_symbols)
        smallest = self.min_T(n_gram=n_gram, n_answer=n_answer)
        if smallest > T:
            given = f"n_gram = {n_gram} and n_answer = {n_answer}"
            raise ValueError(f"ngram_lookup with {given} needs T of at least {smallest}, got {T}")
        self.length = T - n_gram - n_answer
        if n_symbols**n_gram < self.length:
            grams = f"n_symbols = {n_symbols} and n_gram = {n_gram} give {n_symbols**n_gram} n-grams"
            raise ValueError(f"ngram_lookup at T = {T} needs {self.length} different n-grams at least; {grams}")
        self.key, self.n_gram, self.n_answer, self.n_symbols = key, n_gram, n_answer, n_symbols
        self.separator, self.vocab_size = n_symbols, n_symbols + 1
        self.chance, self.floor = 1 / n_symbols, commonest_share(self.length, n_symbols)
        self.edges = edges(*self._gap(torch.tensor([self._n_places - 1, 0])).tolist())
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, *, n_gram: int = 2, n_answer: int = 4, **options: Any) -> int:
        """A string of the key and its answer; the separator, the key, and the answer but for its last symbol."""
        return 2 * (n_gram + n_answer)

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        string, place = self._with_one_key(n, generator)
        key = string.gather(1, place + torch.arange(self.n_gram))
        answer = string.gather(1, place + self.n_gram + torch.arange(self.n_answer))
        separator = torch.full((n, 1), self.separator)
        front = (key, string, separator) if self.key == "prefix" else (string, separator, key)
        tokens = torch.cat((*front, answer[:, :-1]), dim=1)
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, -self.n_answer :] = answer
        slices[:, -self.n_answer :] = slice_of(self._gap(place), self.edges)
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: each string walked along until the key is met."""
        rows = [[IGNORE] * (self.T - self.n_answer) + self._found(row) for row in batch.inputs.tolist()]
        return torch.tensor(rows, dtype=torch.int64).view(-1, self.T)

    def _found(self, row: list[int]) -> list[int]:
        mark = row.index(self.separator)
        key = row[: self.n_gram] if self.key == "prefix" else row[mark + 1 : mark + 1 + self.n_gram]
        string = row[self.n_gram if self.key == "prefix" else 0 : mark]
        at = next(at for at in range(len(string)) if string[at : at + self.n_gram] == key) + self.n_gram
        return string[at : at + self.n_answer]

    @property
    def _n_places(self) -> int:
        """Of the key in the string."""
        return self.length - self.n_gram - self.n_answer + 1

    def _gap(self, place: Tensor) -> Tensor:
        """From each answer back to where it stands in the string."""
        return self.length - place - (self.n_gram if self.key == "prefix" else 0)

    def _with_one_key(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Strings (n, length) and the place of a key in each (n, 1), drawn again where the key stands in it twice."""
        string = torch.empty(n, self.length, dtype=torch.int64)
        place = torch.empty(n, 1, dtype=torch.int64)
        open_rows = torch.arange(n)
        while len(open_rows):
            drawn = randint(self.n_symbols, (len(open_rows), self.length), generator)
            at = randint(self._n_places, (len(open_rows), 1), generator)
            string[open_rows], place[open_rows] = drawn, at
            open_rows = open_rows[self._n_matches(drawn, at) > 1]
        return string, place

    def _n_matches(self, string: Tensor, place: Tensor) -> Tensor:
        """(n,) how often the n-gram that starts at `place` stands in each string."""
        n_starts = self.length - self.n_gram + 1
        same = torch.ones(len(string), n_starts, dtype=torch.bool)
        for i in range(self.n_gram):
            same &= string[:, i : i + n_starts] == string.gather(1, place + i)
        return same.sum(1)

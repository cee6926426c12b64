"""Needles in a haystack, several with keys. Token form of Hsieh et al. 2024, arXiv 2404.06654 (RULER), the retrieval
tasks with several keys; with one key it is the passkey of Mohtashami and Jaggi 2023, arXiv 2305.16300.

A sequence is noise with n_keys needles in it, each a key token and the digits behind it. At the end stands one of the
keys, and behind it all digits of its needle but the last: at the key and behind it the label is the next digit. The
other needles are distractors: a model that finds digits, but not by their key, sits on the floor.

Departures: tokens in place of sentences, and noise drawn anew for every sequence; digits are scored one by one, with
those before them given.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.settings import Role
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import randint
from attnbench.tasks.guesses import commonest_share

_DIGITS, _DEPTHS = 10, 8


class Needle(Task):
    """Write the digits that stood behind a key.

    n_keys: needles. n_digits: of each. n_noise: noise tokens to draw from. Tokens: noise, the ten digits, keys.
    Needles lie anywhere, in any order, and do not overlap; all places are as likely, and so is every key at the end.
    chance is 1 / 10. floor, exact, is the score of the commonest of the n_keys digits that stand at the asked place of
    a needle. From the second digit on, a model that knows the digit before can do better without the key.
    Slices are eighths of the places where a needle may start, by that of the asked one, named by where they begin.
    Raises ValueError when T has no room for the needles and the question.
    """

    title: ClassVar[str] = "find one of several needles by its key"
    slice_unit: ClassVar[str] = "depth"
    roles: ClassVar[tuple[Role, ...]] = ("causal",)
    floor_from: ClassVar[str] = "the commonest digit of the needles"

    def __init__(
        self,
        T: int,
        *,
        n_keys: Annotated[int, Ge(1)] = 4,
        n_digits: Annotated[int, Ge(1)] = 1,
        n_noise: Annotated[int, Ge(1)] = 16,
    ) -> None:
        super().__init__(T, n_keys=n_keys, n_digits=n_digits, n_noise=n_noise)
        smallest = self.min_T(n_keys=n_keys, n_digits=n_digits)
        if smallest > T:
            given = f"n_keys = {n_keys} and n_digits = {n_digits}"
            raise ValueError(f"needle with {given} needs T of at least {smallest}, got {T}")
        self.n_keys, self.n_digits, self.n_noise = n_keys, n_digits, n_noise
        self.first_key = n_noise + _DIGITS
        self.vocab_size = self.first_key + n_keys
        self.chance, self.floor = 1 / _DIGITS, commonest_share(n_keys, _DIGITS)
        self.slice_names = tuple(f"{100 * eighth / _DEPTHS:g}%" for eighth in range(_DEPTHS))

    @classmethod
    def min_T(cls, *, n_keys: int = 4, n_digits: int = 1, **options: Any) -> int:
        """Every needle, and the question with all digits but the last."""
        return n_keys * (1 + n_digits) + n_digits

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        start = self._starts(n, generator)
        digits = self.n_noise + randint(_DIGITS, (n, self.n_keys, self.n_digits), generator)
        asked = randint(self.n_keys, (n, 1), generator)
        tokens = randint(self.n_noise, (n, self.T), generator)
        tokens.scatter_(1, start, self.first_key + torch.arange(self.n_keys).expand(n, -1))
        behind = start[..., None] + 1 + torch.arange(self.n_digits)  # (n, n_keys, n_digits)
        tokens.scatter_(1, behind.flatten(1), digits.flatten(1))
        answer = digits.gather(1, asked[..., None].expand(-1, -1, self.n_digits))[:, 0]  # (n, n_digits)
        tokens[:, -self.n_digits :] = torch.cat((self.first_key + asked, answer[:, :-1]), dim=1)
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, -self.n_digits :] = answer
        slices[:, -self.n_digits :] = start.gather(1, asked) * _DEPTHS // self._n_starts
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: each sequence searched for its last key, and the digits behind it."""
        rows = [self._found(row) for row in batch.inputs.tolist()]
        return torch.tensor(rows, dtype=torch.int64).view(-1, self.T)

    def _found(self, row: list[int]) -> list[int]:
        at = row.index(row[-self.n_digits]) + 1
        return [IGNORE] * (self.T - self.n_digits) + row[at : at + self.n_digits]

    @property
    def _n_starts(self) -> int:
        return self.T - 2 * self.n_digits

    def _starts(self, n: int, generator: Generator) -> Tensor:
        """(n, n_keys) where each needle starts: any places that leave room for all, by key in any order.

        Different places in a haystack from which the digits were taken out; each needle then moves those behind it on.
        """
        n_places = self._n_starts + self.n_digits - self.n_keys * self.n_digits
        place = torch.rand(n, n_places, generator=generator).topk(self.n_keys, dim=1).indices
        before = (place[:, None, :] < place[..., None]).sum(2)  # needles in front of each
        return place + self.n_digits * before

"""Associative recall: pairs, and one question. Ba et al. 2016, arXiv 1610.06258; in this form Fu et al. 2022, arXiv
2212.14052 (H3), and Poli et al. 2023, arXiv 2302.10866 (Hyena).

A sequence is key, value, key, value …, and at the end one of those keys; the label there is its value. A key may come
often, always with the same value, and each sequence draws anew which value belongs to which key. `mqar` asks for every
key and shows each once.

Departures: no two keys of a sequence share a value, so the floor is exact; an even T has one filler in front.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, randint, slice_of

_SMALLEST = 5  # two pairs and the question; one pair would be no choice


class AssociativeRecall(Task):
    """Recall the value of one key among pairs that fill the sequence.

    n_keys: keys, and as many values. Tokens: the filler 0, keys 1 … n_keys, values n_keys + 1 … 2 n_keys.
    The keys of the (T - 1) // 2 pairs are uniform; the question is uniform over the different keys that were shown.
    chance is 1 / n_keys; floor is the mean of 1 / (different values shown), the score of guessing among them.
    Slices are octaves of the distance from the question back to the last place of its key, named by their lower edge:
    2, 4, 8…
    Raises ValueError when T < 5.
    """

    title: ClassVar[str] = "recall the value of one key"
    slice_unit: ClassVar[str] = "gap"
    floor_from: ClassVar[str] = "a value of the sequence"

    def __init__(self, T: int, *, n_keys: Annotated[int, Ge(2)] = 16) -> None:
        super().__init__(T, n_keys=n_keys)
        if T < _SMALLEST:
            raise ValueError(f"associative_recall needs T of at least {_SMALLEST}, got {T}")
        self.n_keys, self.n_pairs = n_keys, (T - 1) // 2
        self.vocab_size = 2 * n_keys + 1
        self.chance, self.floor = 1 / n_keys, _mean_inverse(self.n_pairs, n_keys)
        self.edges = edges(2, 2 * self.n_pairs)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, **options: Any) -> int:
        """Two pairs and the question."""
        return _SMALLEST

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        key = randint(self.n_keys, (n, self.n_pairs), generator)
        value = torch.rand(n, self.n_keys, generator=generator).argsort(dim=1)  # (n, n_keys): of each key
        shown = torch.zeros_like(value).scatter_(1, key, 1)
        asked = (shown * (1 + torch.rand(n, self.n_keys, generator=generator))).argmax(dim=1, keepdim=True)
        first = self.T - 1 - 2 * self.n_pairs
        tokens = torch.zeros(n, self.T, dtype=torch.int64)
        tokens[:, first:-1:2] = 1 + key
        tokens[:, first + 1 : -1 : 2] = 1 + self.n_keys + value.gather(1, key)
        tokens[:, -1:] = 1 + asked
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, -1:] = 1 + self.n_keys + value.gather(1, asked)
        back = torch.arange(2 * self.n_pairs, 0, -2)  # from the question to each key
        slices[:, -1] = slice_of(back.where(key == asked, self.T).amin(1), self.edges)
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: what stands behind the first place of the last token, found by searching for it."""
        tokens = batch.inputs
        place = (tokens[:, :-1] == tokens[:, -1:]).long().argmax(dim=1, keepdim=True)
        answers = torch.full_like(tokens, IGNORE)
        answers[:, -1:] = tokens.gather(1, place + 1)
        return answers


def _mean_inverse(n_draws: int, n_keys: int) -> float:
    """The mean of 1 / (different keys) among n_draws uniform ones, to 1e-15: draw by draw, P(d different keys)."""
    enough = math.ceil(n_keys * (math.log(n_keys) + 40))  # by then all have come, but for e^-40
    d = torch.arange(1, n_keys + 1, dtype=torch.float64)
    share = torch.zeros_like(d)
    share[0] = 1.0
    for _ in range(min(n_draws, enough) - 1):
        known = share * (d / n_keys)
        known[1:] += share[:-1] * (1 - d[:-1] / n_keys)
        share = known
    return float((share / d).sum())

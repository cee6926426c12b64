"""Recall in a stream with noise. Poli et al. 2024, arXiv 2403.17844 (MAD), tasks in-context recall and noisy recall.

The sequence is key, value, key, value …; a share of the pairs is two noise tokens instead. Wherever a key comes that
was shown before, the label is its value, which stands right behind it: a model has to bind each value to its key as it
comes, and to let the noise go by. Which value belongs to which key is drawn anew for each sequence.

Departures: no two keys of a sequence share a value, so the floor is exact; only answers are scored, no other next
tokens; the last pair is drawn like any other, so a short sequence may have nothing to score.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Generator, Tensor

from attnbench.settings import Role
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, randint, slice_of

_SMALLEST = 5  # two pairs and a key; with one pair there would be no choice


class NoisyRecall(Task):
    """Recall the value of every key that comes again, in a stream of pairs and noise.

    vocab_size: keys 0 … n - 1, values n … 2n - 1, then n_noise noise tokens; so vocab_size is 2 n + n_noise.
    noise: the share of pairs that are noise. Keys are uniform. An odd T ends within a pair.
    chance is 1 / n; floor is the score of guessing among the values shown so far, over all scored positions. No other
    guess that has not found the answer does better, as each key shown is as likely to come.
    Slices are octaves of the distance back to the last place of the key, named by their lower edge: 2, 4, 8…
    Raises ValueError when T < 5, or when vocab_size - n_noise is odd or below 4.
    """

    title: ClassVar[str] = "recall values in a stream with noise"
    slice_unit: ClassVar[str] = "gap"
    roles: ClassVar[tuple[Role, ...]] = ("causal",)
    floor_from: ClassVar[str] = "a value shown so far"

    def __init__(
        self,
        T: int,
        *,
        vocab_size: Annotated[int, Ge(5)] = 32,
        n_noise: Annotated[int, Ge(1)] = 16,
        noise: Annotated[float, Ge(0), Lt(1)] = 0.2,
    ) -> None:
        super().__init__(T, vocab_size=vocab_size, n_noise=n_noise, noise=noise)
        if vocab_size - n_noise < 4 or (vocab_size - n_noise) % 2:
            raise ValueError(
                f"n_noise = {n_noise} needs a vocab_size of {n_noise} and an even number from 4 on, "
                f"got vocab_size = {vocab_size}"
            )
        if T < _SMALLEST:
            raise ValueError(f"noisy_recall needs T of at least {_SMALLEST}, got {T}")
        self.vocab_size, self.n_noise, self.noise = vocab_size, n_noise, noise
        self.n_keys, self.n_pairs = (vocab_size - n_noise) // 2, (T + 1) // 2
        self.chance, self.floor = 1 / self.n_keys, self._guess_of_shown()
        self.edges = edges(2, 2 * (self.n_pairs - 1))
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, **options: Any) -> int:
        """Two pairs and a key."""
        return _SMALLEST

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        key = randint(self.n_keys, (n, self.n_pairs), generator)
        noisy = torch.rand(n, self.n_pairs, generator=generator) < self.noise
        value = torch.rand(n, self.n_keys, generator=generator).argsort(dim=1)  # (n, n_keys): of each key
        answer = self.n_keys + value.gather(1, key)  # (n, n_pairs)
        pairs = torch.stack((key, answer), dim=2)
        pairs[noisy] = 2 * self.n_keys + randint(self.n_noise, (int(noisy.sum()), 2), generator)
        tokens = pairs.flatten(1)[:, : self.T].contiguous()
        back = _back(key.masked_fill(noisy, self.n_keys), self.n_keys + 1).masked_fill_(noisy, 0)
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, ::2] = answer.masked_fill(back == 0, IGNORE)
        slices[:, ::2] = slice_of(2 * torch.arange(self.n_pairs), self.edges)[back]  # -1 of 0
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: each sequence read from left to right, with a note of the value of each key."""
        rows = batch.inputs.tolist()
        return torch.tensor([self._read(row) for row in rows], dtype=torch.int64).view(len(rows), self.T)

    def _read(self, row: list[int]) -> list[int]:
        known: dict[int, int] = {}
        answers = []
        for t, token in enumerate(row):
            answers.append(known.get(token, IGNORE))
            if t and row[t - 1] < self.n_keys:
                known[row[t - 1]] = token
        return answers

    def _guess_of_shown(self) -> float:
        """Right answers over scored positions, both expected, of a guess among the values of the d keys shown so far.

        A pair asks for one of them with probability (1 - noise) d / n_keys, and the guess is right once in d times.
        """
        j = torch.arange(self.n_pairs, dtype=torch.float64)  # pairs before this one
        any_shown = 1 - self.noise**j
        n_shown = self.n_keys * (1 - (1 - (1 - self.noise) / self.n_keys) ** j)
        return float(any_shown.sum() / n_shown.sum())


def _back(keys: Tensor, n_keys: int) -> Tensor:
    """(N, n) how many places before each key the same one stood last; 0 where it did not."""
    n, n_places = keys.shape
    last, back = torch.full((n, n_keys), -1), torch.empty(n_places, n, 1, dtype=torch.int64)
    for place, key in enumerate(keys.T.contiguous()[:, :, None]):
        torch.sub(place, last.gather(1, key), out=back[place])
        last.scatter_(1, key, place)
    found = back[:, :, 0].T.contiguous()
    return found.masked_fill_(found > torch.arange(n_places), 0)

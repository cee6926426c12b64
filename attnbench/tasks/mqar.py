"""Multi-query associative recall (MQAR). Arora et al. 2023, arXiv 2312.04927 (Zoology), section 3.

A sequence opens with n_pairs key-value pairs, k v k v …; behind them each key comes once more, at an even offset, and
the label there is its value. Unlike `distance`, a query shares no token with its answer: a mixer must first bind each
value to the key before it, then find that key again. Everything in between is one filler token, so no filler is a key.

Departures: a sequence is held to T of at least 4 n_pairs, as in the paper, but T need not be even; the filler is never
drawn from the vocabulary, where it could equal a key.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, rows_of, slice_of

_POWER = 0.01  # the paper's exponent a: the slot n is drawn with weight n^(a - 1)


class MQAR(Task):
    """Recall the values of n_pairs keys, each asked for once.

    vocab_size: the filler 0, keys 1 … vocab_size / 2 - 1, values vocab_size / 2 … vocab_size - 1; even. No key and no
    value comes in two pairs.
    slots: which even offsets hold the queries: `power` prefers early ones, weight n^-0.99 for the n-th; `uniform` none.
    chance is 1 / (vocab_size / 2); floor is 1 / n_pairs, the score of guessing among the values in the sequence: models
    sit there until they bind keys to values.
    Slices are octaves of the distance from a query back to its key, named by their lower edge: 2, 4, 8…
    Raises ValueError when T < 4 n_pairs, or when vocab_size is odd or too small for n_pairs keys.
    """

    title: ClassVar[str] = "recall the values of several keys"
    slice_unit: ClassVar[str] = "gap"
    floor_from: ClassVar[str] = "a value of the sequence"

    def __init__(
        self,
        T: int,
        *,
        n_pairs: Annotated[int, Ge(1)] = 8,
        vocab_size: Annotated[int, Ge(4)] = 128,
        slots: Literal["power", "uniform"] = "power",
    ) -> None:
        super().__init__(T, n_pairs=n_pairs, vocab_size=vocab_size, slots=slots)
        if vocab_size % 2 or vocab_size // 2 - 1 < n_pairs:
            smallest = 2 * n_pairs + 2
            raise ValueError(
                f"n_pairs = {n_pairs} needs an even vocab_size of at least {smallest}, got vocab_size = {vocab_size}"
            )
        if 4 * n_pairs > T:
            raise ValueError(f"mqar with n_pairs = {n_pairs} needs T of at least {4 * n_pairs}, got {T}")
        self.n_pairs, self.vocab_size, self.slots = n_pairs, vocab_size, slots
        self.chance, self.floor = 2 / vocab_size, 1 / n_pairs
        self.edges = edges(2, self._first_slot + 2 * (self._n_slots - 1))
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, *, n_pairs: int = 8, **options: Any) -> int:
        """The pairs, and as many even offsets behind them."""
        return 4 * n_pairs

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        n_values = self.vocab_size // 2
        key = 1 + self._distinct(torch.ones(n_values - 1), n, generator)  # (n, n_pairs)
        value = n_values + self._distinct(torch.ones(n_values), n, generator)
        query = self._first_slot + 2 * self._distinct(self._weights(), n, generator)
        first = 2 * torch.arange(self.n_pairs)
        tokens = torch.zeros(n, self.T, dtype=torch.int64)
        tokens[:, first], tokens[:, first + 1] = key, value
        tokens.scatter_(1, query, key)
        labels = torch.full_like(tokens, IGNORE).scatter_(1, query, value)
        slices = torch.full_like(tokens, -1).scatter_(1, query, slice_of(query - first, self.edges))
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """Read the pairs into a table and look every later token up in it."""
        found = []
        for row in batch.tokens.tolist():
            head = row[: self._first_slot]
            value_of = dict(zip(head[::2], head[1::2], strict=True))
            found.append([value_of.get(token, IGNORE) for token in row])
        return rows_of(found, self.T)

    @property
    def _first_slot(self) -> int:
        return 2 * self.n_pairs

    @property
    def _n_slots(self) -> int:
        return (self.T - self._first_slot) // 2

    def _weights(self) -> Tensor:
        """(n_slots,) how much more likely than another a slot is to be drawn next."""
        slot = torch.arange(1, self._n_slots + 1, dtype=torch.float64)
        return slot ** (_POWER - 1) if self.slots == "power" else torch.ones_like(slot)

    def _distinct(self, weights: Tensor, n: int, generator: Generator) -> Tensor:
        """(n, n_pairs) indices into weights, none twice in a row, drawn one after the other by weight.

        The first arrivals of exponential clocks that tick at these rates (Efraimidis and Spirakis 2006).
        """
        clocks = torch.empty(n, len(weights), dtype=torch.float64).exponential_(generator=generator) / weights
        return clocks.topk(self.n_pairs, largest=False, sorted=True).indices

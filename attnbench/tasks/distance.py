"""Distance: recall tagged tokens across a gap, from `n_slots` positions up to the whole sequence.

A sequence is noise, one payload token per slot in a run that starts at p, noise again, and one query token per slot at
the end. Slot i's payload is one of `n_values` tokens that only slot i uses, so a query finds its answer by content, in
one hop, and the gap g = T - n_slots - p is the distance from every payload to its query. Accuracy by gap is therefore
the distance over which a mixer carries information; the load is n_slots · log2(n_values) bits at every gap.
"""

from __future__ import annotations

from copy import copy
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, randint, rows_of, slice_of


class Distance(Task):
    """Tagged payloads recalled at the end; gaps log-uniform in [n_slots, T - n_slots].

    n_slots: payloads per sequence. n_values: values of a payload. n_noise: noise tokens to draw from.
    train_max_gap: longest gap in training and validation data; 0: all gaps. Test data have them all either way.
    Tokens: noise, then n_values per slot, then one query per slot. A label is the payload token itself.
    Slices are octaves of the gap, named by their lower edge: n_slots, 2 n_slots, 4 n_slots..., with one more edge where
    training ends.
    Raises ValueError when T < 2 n_slots, or when no gap is short enough to train on.
    """

    title: ClassVar[str] = "recall tagged tokens across a gap"
    slice_unit: ClassVar[str] = "gap"
    by_content: ClassVar[bool] = True

    def __init__(
        self,
        T: int,
        *,
        n_slots: Annotated[int, Ge(1)] = 4,
        n_values: Annotated[int, Ge(2)] = 8,
        n_noise: Annotated[int, Ge(1)] = 16,
        train_max_gap: Annotated[int, Ge(0)] = 0,
    ) -> None:
        super().__init__(T, n_slots=n_slots, n_values=n_values, n_noise=n_noise, train_max_gap=train_max_gap)
        if 2 * n_slots > T:
            raise ValueError(f"distance with n_slots = {n_slots} needs T of at least {2 * n_slots}, got {T}")
        if 0 < train_max_gap < n_slots:
            raise ValueError(f"train_max_gap must be 0 or at least n_slots = {n_slots}, got {train_max_gap}")
        self.n_slots, self.n_values, self.n_noise, self.train_max_gap = n_slots, n_values, n_noise, train_max_gap
        self.max_gap = T - n_slots
        self.vocab_size = n_noise + n_slots * (n_values + 1)
        self.chance = self.floor = 1 / n_values
        self.edges = edges(n_slots, self.max_gap, train_max_gap)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, *, n_slots: int = 4, **options: Any) -> int:
        """Every slot once as a payload and once as a query."""
        return 2 * n_slots

    def for_training(self) -> Distance:
        """The same with gaps of train_max_gap at most."""
        if not self.train_max_gap:
            return self
        nearer = copy(self)
        nearer.max_gap = min(self.max_gap, self.train_max_gap)
        return nearer

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        slot = torch.arange(self.n_slots)
        first_query = self.T - self.n_slots
        gap = self._gaps(n, generator)
        payload = self.n_noise + self.n_values * slot + randint(self.n_values, (n, self.n_slots), generator)
        tokens = randint(self.n_noise, (n, self.T), generator)
        tokens.scatter_(1, (first_query - gap)[:, None] + slot, payload)
        tokens[:, first_query:] = self.n_noise + self.n_values * self.n_slots + slot
        labels = torch.full_like(tokens, IGNORE)
        labels[:, first_query:] = payload
        slices = torch.full_like(tokens, -1)
        slices[:, first_query:] = slice_of(gap, self.edges)[:, None]
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """Sort what is neither noise nor query by its slot, and give each query the payload of its own."""
        first_query = self.vocab_size - self.n_slots
        found = []
        for row in batch.tokens.tolist():
            payloads = [token for token in row if self.n_noise <= token < first_query]
            payload_of = {(token - self.n_noise) // self.n_values: token for token in payloads}
            found.append([payload_of.get(token - first_query, IGNORE) for token in row])
        return rows_of(found, self.T)

    def _gaps(self, n: int, generator: Generator) -> Tensor:
        """(n,) gaps, P(g) proportional to log((g + 1) / g): every legal one has its chance."""
        low, high = self.n_slots, self.max_gap
        share = torch.rand(n, generator=generator, dtype=torch.float64)
        return (low * ((high + 1) / low) ** share).long().clamp(max=high)

"""Distance: recall tagged tokens across a gap, from `n_slots` positions up to the whole sequence.

A sequence is noise, one payload token per slot in a run that starts at p, noise again, and one query token per slot at
the end. Slot i's payload is one of `n_values` tokens that only slot i uses, so a query finds its answer by content, in
one hop, and the gap g = T - n_slots - p is the distance from every payload to its query. Accuracy by gap is therefore
the distance over which a mixer carries information; the load is n_slots · log2(n_values) bits at every gap.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task


class Distance(Task):
    """Tagged payloads recalled at the end; gaps log-uniform in [n_slots, T - n_slots].

    n_slots: payloads per sequence. n_values: values of a payload. n_noise: noise tokens to draw from.
    Tokens: noise, then n_values per slot, then one query per slot. A label is the payload token itself.
    Slices are octaves of the gap, named by their lower edge: n_slots, 2 n_slots, 4 n_slots...
    Raises ValueError when T < 2 n_slots.
    """

    title: ClassVar[str] = "recall tagged tokens across a gap"

    def __init__(
        self,
        T: int,
        *,
        n_slots: Annotated[int, Ge(1)] = 4,
        n_values: Annotated[int, Ge(2)] = 8,
        n_noise: Annotated[int, Ge(1)] = 16,
    ) -> None:
        super().__init__(T, n_slots=n_slots, n_values=n_values, n_noise=n_noise)
        if 2 * n_slots > T:
            raise ValueError(f"distance with n_slots = {n_slots} needs T of at least {2 * n_slots}, got {T}")
        self.n_slots, self.n_values, self.n_noise = n_slots, n_values, n_noise
        self.vocab_size = n_noise + n_slots * (n_values + 1)
        self.chance = self.floor = 1 / n_values
        self.octaves = [n_slots * 2**i for i in range((T // n_slots - 1).bit_length())]
        self.slice_names = tuple(map(str, self.octaves))

    @classmethod
    def min_T(cls, *, n_slots: int = 4, **options: Any) -> int:
        """Every slot once as a payload and once as a query."""
        return 2 * n_slots

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        slot = torch.arange(self.n_slots)
        first_query = self.T - self.n_slots
        gap = self._gaps(n, generator)
        payload = self.n_noise + self.n_values * slot + self._randint(self.n_values, (n, self.n_slots), generator)
        tokens = self._randint(self.n_noise, (n, self.T), generator)
        tokens.scatter_(1, (first_query - gap)[:, None] + slot, payload)
        tokens[:, first_query:] = self.n_noise + self.n_values * self.n_slots + slot
        labels = torch.full_like(tokens, IGNORE)
        labels[:, first_query:] = payload
        slices = torch.full_like(tokens, -1)
        slices[:, first_query:] = self._octave(gap)[:, None]
        return Batch(tokens, labels, slices)

    def _gaps(self, n: int, generator: Generator) -> Tensor:
        """(n,) gaps, P(g) proportional to log((g + 1) / g): every legal one has its chance."""
        low, high = self.n_slots, self.T - self.n_slots
        share = torch.rand(n, generator=generator, dtype=torch.float64)
        return (low * ((high + 1) / low) ** share).long().clamp(max=high)

    def _octave(self, gap: Tensor) -> Tensor:
        """The last octave whose lower edge does not exceed the gap."""
        return torch.bucketize(gap, torch.tensor(self.octaves), right=True) - 1

    @staticmethod
    def _randint(high: int, shape: tuple[int, int], generator: Generator) -> Tensor:
        return torch.randint(high, shape, generator=generator)

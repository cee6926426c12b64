"""Copying strings of any length. Jelassi et al. 2024, arXiv 2402.01032 (Repeat After Me), section 3.

A sequence is s | s: a random string, a separator, and the string again but for its last symbol, then padding. At the
separator and behind it the label is the next symbol of the string, so a model that writes the copy itself reads what
stands here. With one fixed length the answer would stand at one fixed distance and any short window could find it.

Departures: no begin and end tokens, the end of a copy is not scored; one string per sequence, padded on the right.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Generator, Tensor

from attnbench.settings import Role
from attnbench.tasks import Batch
from attnbench.tasks.draw import randint, rows_of
from attnbench.tasks.strings import Strings


class Copy(Strings):
    """Write a string again; its length is uniform in [min_length, T // 2]. Options, scores and slices as in `Strings`.

    Tokens: symbols, the separator, padding.
    """

    title: ClassVar[str] = "copy a string of any length"
    slice_unit: ClassVar[str] = "length"
    roles: ClassVar[tuple[Role, ...]] = ("causal",)
    n_places = 2

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        length = self.draw_lengths(n, generator)
        string = randint(self.n_symbols, (n, self.max_length), generator)
        t = torch.arange(self.T)
        first = string.gather(1, t.expand(n, -1).clamp(max=self.max_length - 1))
        again = string.gather(1, (t - length).clamp(0, self.max_length - 1))  # (n, T): the label, where one is due
        tokens = torch.where(t < length, first, again.roll(1, dims=1))
        tokens = tokens.masked_fill(t == length, self.mark).masked_fill(t >= 2 * length, self.padding)
        return Batch(tokens, *self.scored(again, (t >= length) & (t < 2 * length), length))

    def solve(self, batch: Batch) -> Tensor:
        """What stands before the separator, once more from the separator on."""
        found = []
        for row in batch.tokens.tolist():
            string = row[: row.index(self.mark)]
            found.append([*string, *string])
        return rows_of(found, self.T)

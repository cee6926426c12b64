"""Reversing strings, as sequence to sequence. The task stands in Delétang et al. 2023, arXiv 2207.02098, appendix A.

An encoder reads the string s, padded on the right to T; a decoder is given a begin token and the reversed string but
for its last symbol, and its label is the reversed string. The mixer under test fills the encoder (bidirectional) and
the decoder (causal); the cross-attention between them is the same for every variant, `fused`. So `fused` here is the
Transformer of Vaswani et al. 2017, and `lstm` is the classic baseline: a bidirectional LSTM encoder and a causal LSTM
decoder with cross-attention between (after Bahdanau et al. 2015).

Cross-attention over learned positions reverses strings by itself once there are two layers: the variant `none` shows
it. With positions `none` the order has to come from the mixer. Read a score beside that of `none`.

Departures: strings of random length in one batch; no end token, the end of an answer is not scored.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from attnbench.settings import Role
from attnbench.tasks import Batch, Source
from attnbench.tasks.draw import randint, rows_of
from attnbench.tasks.strings import Strings


class Reverse(Strings):
    """Write a string backwards; its length is uniform in [min_length, T]. Options, scores and slices as in `Strings`.

    Tokens: symbols, the begin token, padding.
    """

    title: ClassVar[str] = "write a string backwards, as sequence to sequence"
    slice_unit: ClassVar[str] = "length"
    kind: ClassVar[Literal["tokens", "seq2seq"]] = "seq2seq"
    roles: ClassVar[tuple[Role, ...]] = ("causal",)

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences, S = T; the same generator state gives the same tensors."""
        length = self.draw_lengths(n, generator)
        string = randint(self.n_symbols, (n, self.T), generator)
        t = torch.arange(self.T)
        real = t < length
        backwards = string.gather(1, (length - 1 - t).clamp(min=0))
        tokens = backwards.roll(1, dims=1).masked_fill(~real, self.padding).masked_fill(t == 0, self.mark)
        source = Source(string.masked_fill(~real, self.padding), real)
        return Batch(tokens, *self.scored(backwards, real, length), source)

    def solve(self, batch: Batch) -> Tensor:
        """The symbols of the source, from its last one back."""
        assert batch.source is not None
        strings = [[token for token in row if token != self.padding] for row in batch.source.tokens.tolist()]
        return rows_of([string[::-1] for string in strings], self.T)

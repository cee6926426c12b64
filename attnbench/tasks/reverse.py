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

from copy import copy
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Generator

from attnbench.settings import Role
from attnbench.tasks import IGNORE, Batch, Source, Task
from attnbench.tasks.draw import edges, randint, slice_of


class Reverse(Task):
    """Write a string backwards; its length is uniform in [min_length, T].

    n_symbols: symbols of a string. Tokens: symbols, the begin token, padding.
    min_length: of the shortest string. train_max_length: of the longest one in training and validation; 0: all lengths,
    in test data always all.
    `accuracy` is over symbols, `sequence_accuracy` over whole strings.
    Slices are octaves of the length, named by their lower edge, with one more edge where training ends.
    Raises ValueError when T < min_length, or when no string is short enough to train on.
    """

    title: ClassVar[str] = "write a string backwards, as sequence to sequence"
    slice_unit: ClassVar[str] = "length"
    kind: ClassVar[Literal["tokens", "seq2seq"]] = "seq2seq"
    roles: ClassVar[tuple[Role, ...]] = ("causal",)

    def __init__(
        self,
        T: int,
        *,
        n_symbols: Annotated[int, Ge(2)] = 16,
        min_length: Annotated[int, Ge(1)] = 4,
        train_max_length: Annotated[int, Ge(0)] = 0,
    ) -> None:
        super().__init__(T, n_symbols=n_symbols, min_length=min_length, train_max_length=train_max_length)
        if min_length > T:
            raise ValueError(f"reverse with min_length = {min_length} needs T of at least {min_length}, got {T}")
        if 0 < train_max_length < min_length:
            raise ValueError(
                f"train_max_length must be 0 or at least min_length = {min_length}, got {train_max_length}"
            )
        self.n_symbols, self.min_length, self.train_max_length = n_symbols, min_length, train_max_length
        self.max_length = T
        self.vocab_size = n_symbols + 2
        self.chance = self.floor = 1 / n_symbols
        self.edges = edges(min_length, T, train_max_length)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, *, min_length: int = 4, **options: Any) -> int:
        """The shortest string; the decoder's input is as long."""
        return min_length

    def for_training(self) -> Reverse:
        """The same with strings of train_max_length at most."""
        if not self.train_max_length:
            return self
        shorter = copy(self)
        shorter.max_length = min(self.max_length, self.train_max_length)
        return shorter

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences, S = T; the same generator state gives the same tensors."""
        begin, padding = self.n_symbols, self.n_symbols + 1
        length = self.min_length + randint(self.max_length - self.min_length + 1, (n, 1), generator)
        string = randint(self.n_symbols, (n, self.T), generator)
        t = torch.arange(self.T)
        real = t < length
        backwards = string.gather(1, (length - 1 - t).clamp(min=0))
        tokens = backwards.roll(1, dims=1).masked_fill(~real, padding).masked_fill(t == 0, begin)
        return Batch(
            tokens=tokens,
            labels=backwards.masked_fill(~real, IGNORE),
            slices=slice_of(length, self.edges).expand(n, self.T).masked_fill(~real, -1),
            source=Source(string.masked_fill(~real, padding), real),
        )

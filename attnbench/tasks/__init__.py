"""The task interface: labelled token sequences from a task's own generator, the same for every variant.

A task subclasses `Task`, names its options as keyword-only arguments after T, and writes `sample`, `solve` and `min_T`.
Tasks enter by the entry-point group `attnbench.tasks`, or from a plugin file, as variants do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor

from attnbench.settings import Role

IGNORE = -100


@dataclass(frozen=True)
class Source:
    """What an encoder reads beside N sequences. tokens: (N, S) int64. mask: (N, S) bool, True where a token is real.

    Padding stands on the right, as one token that stands nowhere else.
    """

    tokens: Tensor
    mask: Tensor

    def rows(self, index: slice | Tensor) -> Source:
        """As `Batch.rows`."""
        return Source(self.tokens[index], self.mask[index])

    @staticmethod
    def join(sources: Sequence[Source]) -> Source:
        """As `Batch.join`."""
        return Source(torch.cat([part.tokens for part in sources]), torch.cat([part.mask for part in sources]))


@dataclass(frozen=True)
class Batch:
    """N sequences of length T.

    tokens: (N, T) int64. labels: (N, T) int64, IGNORE where a position is not scored.
    slices: (N, T) int64, an index into the task's `slice_names`, -1 where a position is not scored.
    source: what the encoder reads, of a task of the kind `seq2seq`; then tokens are the decoder's input.
    values: (N, T) float32, a number that the model reads beside each token, of a task that `reads_values`.
    numbers: (N, T) float32, the answers of a task whose `answers` are numbers; its labels are 0 where it is scored.
    """

    tokens: Tensor
    labels: Tensor
    slices: Tensor
    source: Source | None = None
    values: Tensor | None = None
    numbers: Tensor | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def inputs(self) -> Tensor:
        """All that a model reads, source first: (N, n) int64. It tells one sequence from another."""
        source = () if self.source is None else (self.source.tokens,)
        values = () if self.values is None else (self.values.contiguous().view(torch.int32).long(),)
        return torch.cat((*source, self.tokens, *values), dim=1)

    def rows(self, index: slice | Tensor) -> Batch:
        """Some of the sequences: a slice, (M,) indices or an (N,) bool mask."""
        source = None if self.source is None else self.source.rows(index)
        values = None if self.values is None else self.values[index]
        numbers = None if self.numbers is None else self.numbers[index]
        return Batch(self.tokens[index], self.labels[index], self.slices[index], source, values, numbers)

    @staticmethod
    def join(batches: Sequence[Batch]) -> Batch:
        """All sequences of some batches of one task, at least one, in order."""
        parts = zip(*((batch.tokens, batch.labels, batch.slices) for batch in batches), strict=True)
        tokens, labels, slices = map(torch.cat, parts)
        sources = [batch.source for batch in batches if batch.source is not None]
        values = [batch.values for batch in batches if batch.values is not None]
        numbers = [batch.numbers for batch in batches if batch.numbers is not None]
        return Batch(
            tokens,
            labels,
            slices,
            Source.join(sources) if sources else None,
            torch.cat(values) if values else None,
            torch.cat(numbers) if numbers else None,
        )


class Task(ABC):
    """Sequences of length T with labels at scored positions.

    chance: accuracy of guessing a label uniformly. floor: accuracy of the best guess that has not found the answer
    (among the values that a sequence holds, say): models sit there before they learn. floor_from: what guess that is.
    ceiling: accuracy of the exact solver, below 1 only where the answers are noisy.
    slice_names: groups of scored positions that are reported apart, in order.
    slice_unit: what the names count, in the singular, as a report says it: "By gap", "the gap up to which …".
    options: the options this task was built with, as its constructor hands them to `Task`; they stand in the record
    and, with the class and T, decide which sequences are drawn.
    kind: `tokens` for one stack over one sequence, `seq2seq` for an encoder over the source and a decoder.
    roles: those in which a model may read the tokens; a task whose answers stand among them is causal only.
    answers: `label` for one of vocab_size tokens, `number` for regression: trained on squared errors, right within
    `tolerance`. reads_values: a sequence is a token and a number at each position.
    by_content: which tokens a sequence holds tells the answers, in any order and at any distance: to guess from the bag
    of its tokens is then a way to solve the task, and the floor is not held to it.
    usual_T: the length at which the task is audited and listed, unless another is asked for.
    Raises ValueError from the constructor when T is below the smallest legal one, naming it.
    """

    vocab_size: int
    chance: float
    floor: float
    slice_names: tuple[str, ...]
    title: ClassVar[str]
    slice_unit: ClassVar[str] = "slice"
    kind: ClassVar[Literal["tokens", "seq2seq"]] = "tokens"
    roles: ClassVar[tuple[Role, ...]] = ("causal", "bidirectional")
    answers: ClassVar[Literal["label", "number"]] = "label"
    tolerance: ClassVar[float] = 0.0
    reads_values: ClassVar[bool] = False
    floor_from: ClassVar[str] = "chance"
    by_content: ClassVar[bool] = False
    usual_T: ClassVar[int] = 64
    ceiling: float = 1.0

    def __init__(self, T: int, **options: int | float | str) -> None:
        self.T, self.options = T, options

    @abstractmethod
    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""

    def solve(self, batch: Batch) -> Tensor:
        """The exact answers (N, T), found from `batch.inputs` alone, by another way than `sample` drew them.

        int64 labels, or float32 numbers; positions that are not scored may hold anything. An audit holds the labels to
        it. Raises NotImplementedError when the task has no solver; an audit says so.
        """
        raise NotImplementedError(f"{type(self).__name__} has no solver")

    def for_training(self) -> Task:
        """The task that training and validation sequences come from; test sequences always come from `self`.

        Itself, unless a task trains on a part (short gaps, short strings) and tests on the whole.
        """
        return self

    @classmethod
    @abstractmethod
    def min_T(cls, **options: Any) -> int:
        """Smallest legal T with these options; what is not given is at its default."""

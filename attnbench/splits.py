"""Training, validation and test sequences of a task: disjoint by construction, the same for every variant.

A hash of all that a model reads of a sequence decides its split, so no sequence can be in two of them, whatever the
seed. Generators are seeded from the task, its options, T, the seed and the split: never from the variant, never from
the global state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Generator, Tensor

from attnbench.settings import TrainSettings
from attnbench.tasks import Batch, Task, repeats

Split = Literal["training", "validation", "test"]
_BUCKETS: tuple[Split, ...] = ("validation", "test") + ("training",) * 6  # an eighth, an eighth, the rest
_BLOCK, _BLOCK_TOKENS = 4096, 2**19  # sequences, and tokens, drawn at a time at most
_PATIENCE, _PATIENT_ROWS = 16, 1024  # blocks, and sequences, drawn in a row without a new one: a split is exhausted


def in_split(inputs: Tensor, split: Split) -> Tensor:
    """Which rows of a batch's inputs (N, T) belong to a split: (N,) bool. Equal rows always agree."""
    mine = torch.tensor([name == split for name in _BUCKETS])
    return mine[_row_hash(inputs) % len(_BUCKETS)]


def held_out(task: Task, split: Split, n: int, seed: int) -> Batch:
    """The first n distinct sequences of a split. Raises ValueError when the task does not have that many."""
    found: list[Batch] = []
    seen: set[int] = set()
    barren, patience = 0, _patience(task)
    for block in _blocks(task, split, seed):
        keys = _row_hash(block.inputs).tolist()
        first = {key: i for i, key in reversed(list(enumerate(keys)))}  # where each key stands for the first time
        new = sorted(i for key, i in first.items() if key not in seen)
        seen |= first.keys()
        found.append(block.rows(torch.tensor(new, dtype=torch.int64)))
        barren = 0 if new else barren + 1
        if len(seen) >= n:
            break
        if barren == patience:
            raise ValueError(_too_small(task, f"{len(seen)} distinct {split} sequences, {n} are needed"))
    return Batch.join(found).rows(slice(n))


def training_batches(task: Task, batch_size: int, seed: int, n_distinct: int | None = None) -> Iterator[Batch]:
    """Endless training batches: fresh ones, or those of the first n_distinct sequences, again and again.

    Raises ValueError when the task has no training sequence, or fewer than n_distinct.
    """
    if n_distinct is not None:
        yield from _repeated(held_out(task, "training", n_distinct, seed), batch_size, seed)
    pending: list[Batch] = []
    barren, patience = 0, _patience(task)
    for block in _blocks(task, "training", seed):
        barren = 0 if len(block) else barren + 1
        if barren == patience:
            raise ValueError(_too_small(task, "no training sequence"))
        ready = Batch.join([*pending, block])
        n_whole = len(ready) // batch_size * batch_size
        for first in range(0, n_whole, batch_size):
            yield ready.rows(slice(first, first + batch_size))
        pending = [ready.rows(slice(n_whole, None))]


def training_sample(task: Task, n: int, seed: int) -> Batch:
    """The first training sequences, n at most, and no more than are drawn at a time."""
    return next(training_batches(task, min(n, _block_size(task)), seed))


def overlap(task: Task, test: Batch, settings: TrainSettings, seed: int) -> float:
    """Share of the test sequences that training has: among its n_training, or its first block of fresh ones."""
    if settings.n_training is not None:
        trained = held_out(task, "training", settings.n_training, seed)
    else:
        trained = next(_blocks(task, "training", seed))
    return repeats.overlap(trained, test)


def fingerprint(*batches: Batch) -> str:
    """SHA-256 of all that is read and of the labels: equal fingerprints mean equal data."""
    digest = hashlib.sha256()
    for batch in batches:
        numbers = b"" if batch.numbers is None else batch.numbers.numpy().tobytes()
        digest.update(batch.inputs.numpy().tobytes() + batch.labels.numpy().tobytes() + numbers)
    return digest.hexdigest()


def _repeated(sequences: Batch, batch_size: int, seed: int) -> Iterator[Batch]:
    """Endless batches that take every sequence once, in random order, before any of them a second time."""
    generator, order = Generator().manual_seed(seed), torch.empty(0, dtype=torch.int64)
    while True:
        while len(order) < batch_size:
            order = torch.cat((order, torch.randperm(len(sequences), generator=generator)))
        yield sequences.rows(order[:batch_size])
        order = order[batch_size:]


def _blocks(task: Task, split: Split, seed: int) -> Iterator[Batch]:
    generator = Generator().manual_seed(_digest(task, split, seed))
    n = _block_size(task)
    source = task if split == "test" else task.for_training()
    while True:
        block = source.sample(n, generator)
        yield block.rows(in_split(block.inputs, split))


def _block_size(task: Task) -> int:
    return max(1, min(_BLOCK, _BLOCK_TOKENS // task.T))


def _patience(task: Task) -> int:
    """Barren blocks in a row that mean that nothing is left: a short block may hold no row of a split by chance."""
    return max(_PATIENCE, -(-_PATIENT_ROWS // _block_size(task)))


def _digest(task: Task, split: Split, seed: int) -> int:
    key = json.dumps([type(task).__name__, task.T, task.options, seed, split], sort_keys=True)
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")


def _row_hash(tokens: Tensor) -> Tensor:
    """(N, T) -> (N,) int64: a random odd multiplier per position, summed and mixed, all modulo 2^64."""
    multipliers = _mix(torch.arange(1, tokens.shape[1] + 1)) | 1  # (T,)
    return _mix((tokens * multipliers).sum(1))


def _mix(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit of x touches every bit of the result."""
    x = (x ^ _shifted(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shifted(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Right shift that brings in zeros, which int64's own does not."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _too_small(task: Task, found: str) -> str:
    name = type(task).__name__.lower()
    return f"{name} at T = {task.T} with {task.options} is too small: found {found}; take fewer or a larger T"

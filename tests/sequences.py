"""What is asked of every task's sequences, and what a guess is worth."""

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor

from attnbench import registry
from attnbench.tasks import IGNORE, Batch, Task


def drawn(task: Task, n: int = 20_000, seed: int = 0) -> Batch:
    return task.sample(n, Generator().manual_seed(seed))


def rows(batch: Batch):
    """Tokens, labels and slices of each sequence, as lists."""
    return zip(batch.tokens.tolist(), batch.labels.tolist(), batch.slices.tolist(), strict=True)


def in_slice(task: Task, index: int, size: int) -> bool:
    """Whether a size belongs to a slice that is named by its lower edge."""
    edges = [*map(int, task.slice_names), size + 1]
    return edges[index] <= size < edges[index + 1]


def assert_well_formed(task: Task, batch: Batch) -> None:
    """Shapes, types and ranges; a slice wherever a label is; the solver finds every label from what is read."""
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (len(batch), task.T)
    assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices)} == {torch.int64}
    scored = batch.labels != IGNORE
    for part in (batch.tokens, batch.labels[scored]):
        assert ((part >= 0) & (part < task.vocab_size)).all()
    assert ((batch.slices >= 0) == scored).all()
    assert (batch.slices < len(task.slice_names)).all()
    blank = Batch(batch.tokens, torch.zeros_like(batch.labels), torch.zeros_like(batch.slices))
    assert torch.equal(task.solve(blank)[scored], batch.labels[scored])


def assert_repeatable(task: Task, seed: int) -> None:
    one, same, other = (drawn(task, 60, s) for s in (seed, seed, seed + 1))
    for name in ("tokens", "labels", "slices"):
        assert torch.equal(getattr(one, name), getattr(same, name))
    assert not torch.equal(one.tokens, other.tokens)


def assert_smallest(task: type[Task], smallest: int, **options) -> None:
    """That this T is legal and the one below it an error that names it."""
    assert task.min_T(**options) == task(smallest, **options).T == smallest
    assert_well_formed(task(smallest, **options), drawn(task(smallest, **options), 50))
    with pytest.raises(ValueError, match=f"T of at least {smallest}, got {smallest - 1}"):
        task(smallest - 1, **options)


def assert_registered(name: str, task: type[Task]) -> None:
    assert registry.load(registry.find(name, registry.installed(registry.TASKS), "task")) is task


def commonest(tokens: Tensor, n_values: int) -> Tensor:
    """(N,) the commonest of the tokens 0 … n_values - 1 in each row (N, n); others are not counted."""
    seen = tokens.where((tokens >= 0) & (tokens < n_values), n_values)
    counts = torch.zeros(len(tokens), n_values + 1, dtype=torch.int64).scatter_add_(1, seen, torch.ones_like(seen))
    return counts[:, :n_values].argmax(1)


def worth(batch: Batch, guess: Tensor | int | Callable[[Tensor], Tensor]) -> float:
    """The share of scored positions at which a guess, (N, T) or one for all, is the label."""
    scored = batch.labels != IGNORE
    guessed = guess(batch.tokens) if callable(guess) else torch.as_tensor(guess)
    return (guessed.expand(batch.labels.shape)[scored] == batch.labels[scored]).double().mean().item()

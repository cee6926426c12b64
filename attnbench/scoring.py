"""How a model meets a batch, and what its answers are worth: totals over scored tokens, never means of batch means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnbench.tasks import IGNORE, Batch
from attnbench.transformer import Model

Hidden = Callable[..., Tensor]  # what a model reads -> (B, T, d_model)


@dataclass(frozen=True)
class Score:
    """Accuracy and loss over n_scored tokens: totals, never a mean of batch means. The rest as in TrainResult."""

    accuracy: float
    sequence_accuracy: float
    loss: float
    n_scored: int
    slices: dict[str, dict[str, float | int | None]]


@dataclass(frozen=True)
class Chunk:
    """A batch as a model meets it: what it reads, and where in B·T its n scored tokens are, (n,) each.

    inputs: tokens (B, T), with numbers (B, T) where a task has them, or source (B, S), tokens, source mask (B, S): the
    arguments of the model's `hidden`. row: the sequence that a scored token is of. numbers: answers of a regression.
    """

    inputs: tuple[Tensor, ...]
    at: Tensor
    row: Tensor
    labels: Tensor
    slices: Tensor
    numbers: Tensor | None = None

    def losses(self, outputs: Tensor) -> Tensor:
        """(n,) nats, or squared errors, of a head's outputs (n, n_outputs)."""
        if self.numbers is None:
            return F.cross_entropy(outputs, self.labels, reduction="none")
        return (outputs[:, 0] - self.numbers).square()

    def right(self, outputs: Tensor, tolerance: float) -> Tensor:
        """(n,) bool: the likeliest label is the answer, or the number lies within `tolerance` of it."""
        if self.numbers is None:
            return outputs.argmax(-1) == self.labels
        return (outputs[:, 0] - self.numbers).abs() <= tolerance


@torch.no_grad()
def evaluate(
    model: Model, batch: Batch, slice_names: tuple[str, ...], batch_size: int, tolerance: float = 0.0
) -> Score:
    """Score the labels of `batch` that are not IGNORE, batch_size sequences at a time; no label is a ValueError.

    tolerance: how far from the answer a number is still right.
    """
    model.eval()
    parts = []
    for chunk in chunks_of(batch, batch_size, device_of(model)):
        outputs = outputs_of(model, chunk)
        parts.append((chunk.right(outputs, tolerance), chunk.losses(outputs), chunk.slices, chunk.row))
    model.train()
    right, losses, slices, row = (torch.cat(part).cpu() for part in zip(*parts, strict=True))
    return _score(right, losses, slices, row, slice_names)


def _score(right: Tensor, losses: Tensor, slices: Tensor, row: Tensor, slice_names: tuple[str, ...]) -> Score:
    """Totals over scored tokens: right (n,) bool, losses (n,), slices (n,), row (n,): the sequence a token is of."""
    if not len(right):
        raise ValueError("nothing to score: every label is IGNORE")
    n_per_slice = torch.bincount(slices, minlength=len(slice_names)).tolist()
    n_right = torch.bincount(slices[right], minlength=len(slice_names)).tolist()
    by_slice: dict[str, dict[str, float | int | None]] = {
        name: {"accuracy": r / n if n else None, "n": n}
        for name, r, n in zip(slice_names, n_right, n_per_slice, strict=True)
    }
    n_rows, n_wrong = len(set(row.tolist())), len(set(row[~right].tolist()))
    return Score(
        accuracy=right.sum().item() / len(right),
        sequence_accuracy=(n_rows - n_wrong) / n_rows,
        loss=losses.double().mean().item(),
        n_scored=len(right),
        slices=by_slice,
    )


def outputs_of(model: Model, chunk: Chunk, hidden: Hidden | None = None) -> Tensor:
    """(n, n_outputs): the head meets the scored positions alone. hidden: stands in for the model's own."""
    states = (hidden or model.hidden)(*chunk.inputs)
    scored = states.flatten(0, 1).index_select(0, chunk.at)  # (B·T, d_model) -> (n, d_model)
    outputs: Tensor = model.head(scored).float()
    return outputs


def chunks_of(batch: Batch, batch_size: int, device: torch.device) -> Iterator[Chunk]:
    """The sequences of a batch, at most batch_size at a time, on the device."""
    T = batch.tokens.shape[1]
    for first in range(0, len(batch), batch_size):
        part = batch.rows(slice(first, first + batch_size))
        labels, slices = part.labels.flatten(), part.slices.flatten()
        at = (labels != IGNORE).nonzero()[:, 0]  # found on the CPU: on a GPU it would wait
        scored = [at, first + at // T, labels[at], slices[at]]
        scored += [] if part.numbers is None else [part.numbers.flatten()[at]]
        yield Chunk(tuple(tensor.to(device) for tensor in _read(part)), *(tensor.to(device) for tensor in scored))


def _read(batch: Batch) -> tuple[Tensor, ...]:
    """What a model's `hidden` takes."""
    if batch.source is not None:
        return batch.source.tokens, batch.tokens, batch.source.mask
    return (batch.tokens,) if batch.values is None else (batch.tokens, batch.values)


def device_of(model: nn.Module) -> torch.device:
    """Where the parameters lie."""
    return next(model.parameters()).device

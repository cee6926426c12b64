"""Train a model on a task: choose the learning rate on validation data, score once on test data.

Every variant sees the same sequences in the same order; every trial of a cell starts from the same initial weights.
The rule, for each cell: a trial is judged by its validation accuracy at its own last step (ties: lower loss); the best
trial's model, as it is at that step, is scored on the test sequences. Nothing else ever sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from attnbench.mixer import Mixer
from attnbench.positions import Positions
from attnbench.settings import TrainSettings
from attnbench.splits import fingerprint, held_out, training_batches
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.transformer import Model, n_params_body


@dataclass(frozen=True)
class TrainResult:
    """What training a cell gave.

    status: `ok`, or `diverged` when no trial kept a finite loss; then accuracies, loss, lr are None and slices empty.
    accuracy, loss: on n_scored test tokens of n_test sequences; loss in nats, or a squared error where answers are
    numbers. chance, floor, ceiling: the task's own, for accuracy.
    sequence_accuracy: share of the test sequences with every scored token right.
    slices: name -> {"accuracy", "n"}, over the same tokens; the accuracy of an empty slice is None. slice_unit: what
    their names count.
    trials: one dict per learning rate that was tried; see `Trial`. lr: the one chosen.
    fingerprint: SHA-256 of the validation and test sequences.
    """

    status: Literal["ok", "diverged"]
    accuracy: float | None
    sequence_accuracy: float | None
    loss: float | None
    chance: float
    floor: float
    ceiling: float
    n_scored: int
    n_test: int
    slices: dict[str, dict[str, float | int | None]]
    slice_unit: str
    lr: float | None
    trials: list[dict[str, Any]]
    n_params: int
    n_params_body: int
    fingerprint: str


@dataclass(frozen=True)
class Trial:
    """One learning rate. validation_accuracy, validation_loss: at the last step; None when it diverged.

    steps: batches seen, fewer than asked for when it reached stop_at or diverged. best_step: where validation accuracy
    was highest. curve: [step, validation accuracy, validation loss] wherever they were looked at.
    """

    lr: float
    diverged: bool
    steps: int
    validation_accuracy: float | None
    validation_loss: float | None
    best_step: int | None
    curve: list[list[float]]

    @property
    def rank(self) -> tuple[float, float]:
        """Larger is better; a diverged trial is below every other."""
        if self.validation_accuracy is None or self.validation_loss is None:
            return -1.0, 0.0
        return self.validation_accuracy, -self.validation_loss


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


def train(
    build: Callable[[], Model], task: Task, settings: TrainSettings, seed: int, *, device: str = "cpu"
) -> TrainResult:
    """Train fresh models from `build` on `task`, one per learning rate, and score the best on test data.

    Learning rates are tried in order, until one reaches stop_at. The global random state is seeded for `build` and for
    training, and is afterwards what it was before. On a CPU the result is the same bit for bit, for a given number of
    threads. Raises ValueError when the task is too small to fill its splits.
    """
    validation = held_out(task, "validation", settings.n_validation, seed)
    test = held_out(task, "test", settings.n_test, seed)
    with _own_random_state(device):
        trials, best, model = _tried(build, task, settings, seed, validation, device)
        score = None if best is None else evaluate(model, test, task.slice_names, settings.batch_size, task.tolerance)
    return TrainResult(
        status="diverged" if score is None else "ok",
        accuracy=None if score is None else score.accuracy,
        sequence_accuracy=None if score is None else score.sequence_accuracy,
        loss=None if score is None else score.loss,
        chance=task.chance,
        floor=task.floor,
        ceiling=task.ceiling,
        n_scored=int((test.labels != IGNORE).sum()),
        n_test=len(test),
        slices={} if score is None else score.slices,
        slice_unit=task.slice_unit,
        lr=None if best is None else best.lr,
        trials=[asdict(trial) for trial in trials],
        n_params=sum(p.numel() for p in model.parameters()),
        n_params_body=n_params_body(model),
        fingerprint=fingerprint(validation, test),
    )


def _tried(
    build: Callable[[], Model], task: Task, settings: TrainSettings, seed: int, validation: Batch, device: str
) -> tuple[list[Trial], Trial | None, Model]:
    """A trial per learning rate, until one reaches stop_at; the best one and its model, or None and the last model."""
    trials: list[Trial] = []
    best: tuple[Trial, Model] | None = None
    for lr in settings.lr:
        torch.manual_seed(seed)
        model = build().to(device)
        trial = _run_trial(model, task, settings, lr, seed, validation)
        trials.append(trial)
        if not trial.diverged and (best is None or trial.rank > best[0].rank):
            best = trial, model
        if _reached(trial.validation_accuracy, settings):
            break
    return trials, *(best or (None, model))


@torch.no_grad()
def evaluate(
    model: Model, batch: Batch, slice_names: tuple[str, ...], batch_size: int, tolerance: float = 0.0
) -> Score:
    """Score the labels of `batch` that are not IGNORE, batch_size sequences at a time; no label is a ValueError.

    tolerance: how far from the answer a number is still right.
    """
    model.eval()
    parts = []
    for chunk in _chunks(batch, batch_size, _device(model)):
        outputs = _outputs(model, chunk)
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


def _run_trial(model: Model, task: Task, settings: TrainSettings, lr: float, seed: int, validation: Batch) -> Trial:
    """Train one model at one learning rate, looking at validation data every eval_every steps and after the last."""
    optimizer = AdamW(_parameter_groups(model, lr, settings.weight_decay))
    schedule = LambdaLR(optimizer, lambda step: _lr_factor(step, settings))
    curve: list[list[float]] = []
    loss_sum = torch.zeros((), device=_device(model))
    for step, chunk in enumerate(_training_chunks(task, settings, seed, _device(model)), start=1):
        loss_sum += _train_step(model, chunk, optimizer, settings.clip)
        schedule.step()
        if step % settings.eval_every and step < settings.steps:
            continue
        score = evaluate(model, validation, task.slice_names, settings.batch_size, task.tolerance)
        if not (math.isfinite(loss_sum.item()) and math.isfinite(score.loss)):
            return Trial(lr, True, step, None, None, None, curve)
        curve.append([step, score.accuracy, score.loss])
        if _reached(score.accuracy, settings):
            break
    best_step = int(max(curve, key=lambda point: point[1])[0])
    return Trial(lr, False, step, score.accuracy, score.loss, best_step, curve)


def _train_step(model: Model, chunk: Chunk, optimizer: AdamW, clip: float) -> Tensor:
    """One update; returns the batch's mean loss, still on its device, so that no step waits for a device."""
    loss = chunk.losses(_outputs(model, chunk)).sum() / max(1, len(chunk.labels))
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def _outputs(model: Model, chunk: Chunk) -> Tensor:
    """(n, n_outputs): the head meets the scored positions alone."""
    scored = model.hidden(*chunk.inputs).flatten(0, 1).index_select(0, chunk.at)  # (B·T, d_model) -> (n, d_model)
    outputs: Tensor = model.head(scored).float()
    return outputs


def _training_chunks(task: Task, settings: TrainSettings, seed: int, device: torch.device) -> Iterator[Chunk]:
    """settings.steps batches; their sequences are drawn in blocks, ahead of need."""
    for batch in islice(training_batches(task, settings.batch_size, seed, settings.n_training), settings.steps):
        yield from _chunks(batch, settings.batch_size, device)


def _chunks(batch: Batch, batch_size: int, device: torch.device) -> Iterator[Chunk]:
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


def _parameter_groups(model: nn.Module, lr: float, weight_decay: float) -> list[dict[str, Any]]:
    """Groups by weight decay (matrices only; embeddings and no_decay excepted) and by factor on the learning rate."""
    exempt = {p for m in model.modules() if isinstance(m, nn.Embedding | Positions) for p in m.parameters()}
    scale: dict[nn.Parameter, float] = {}
    for mixer in (m for m in model.modules() if isinstance(m, Mixer)):
        named = dict(mixer.named_parameters())
        if unknown := sorted({*mixer.no_decay, *mixer.lr_scale} - named.keys()):
            raise ValueError(f"{type(mixer).__name__} has no parameter {', '.join(unknown)} to treat apart")
        exempt |= {named[name] for name in mixer.no_decay}
        scale |= {named[name]: factor for name, factor in mixer.lr_scale.items()}
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for p in model.parameters():
        groups.setdefault((p.ndim >= 2 and p not in exempt, scale.get(p, 1.0)), []).append(p)
    return [
        {"params": params, "lr": lr * factor, "weight_decay": weight_decay if decays else 0.0}
        for (decays, factor), params in groups.items()
    ]


def _lr_factor(step: int, settings: TrainSettings) -> float:
    """Linear warm-up to 1, then a cosine to 0.1 at the last step."""
    n_warmup = round(settings.warmup * settings.steps)
    if step < n_warmup:
        return (step + 1) / n_warmup
    progress = (step - n_warmup) / max(1, settings.steps - 1 - n_warmup)
    return 0.55 + 0.45 * math.cos(math.pi * min(1.0, progress))


def _reached(accuracy: float | None, settings: TrainSettings) -> bool:
    return accuracy is not None and settings.stop_at is not None and accuracy >= settings.stop_at


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


@contextmanager
def _own_random_state(device: str) -> Iterator[None]:
    """Keep the global random state of the CPU, and of the GPU in use, as it was."""
    with torch.random.fork_rng(devices=[] if torch.device(device).type == "cpu" else [device]):
        yield

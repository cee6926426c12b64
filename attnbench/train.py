"""Train a model on a task: choose a trial on validation data, score it once on test data. See docs/protocol.md.

Every variant sees the same sequences in the same order, and is tried with the same settings; every trial of a cell
starts from the same initial weights. A trial is judged by its validation accuracy (ties: lower loss) at its own last
step, or at its best one where the sweep says so; the best trial's model, as it was at that step, is scored on the test
sequences. Nothing else ever sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from attnbench.elsewhere import Elsewhere, prepared, tested
from attnbench.optimise import adamw, hidden_of, lr_factor, train_step
from attnbench.protocol import Setting, rule, settings_of, steps_to_learn
from attnbench.scoring import Chunk, Score, chunks_of, device_of, evaluate
from attnbench.settings import TrainSettings
from attnbench.splits import fingerprint, held_out, overlap, training_batches, training_sample
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.baselines import baselines_on
from attnbench.transformer import Model, n_params_body

N_FITTED = 2048  # training sequences that trivial guesses are fitted on, at most


@dataclass(frozen=True)
class TrainResult:
    """What training a cell gave.

    status: `ok`, or `diverged` when no trial kept a finite loss; then accuracies, loss, lr are None and slices empty.
    accuracy, loss: on n_scored test tokens of n_test sequences; loss in nats, or a squared error where answers are
    numbers. chance, floor, ceiling: the task's own, for accuracy.
    sequence_accuracy: share of the test sequences with every scored token right.
    slices: name -> {"accuracy", "n"}, over the same tokens; the accuracy of an empty slice is None. slice_unit: what
    their names count.
    trials: one dict per setting that was tried; see `Trial`. lr, weight_decay: of the one chosen. steps_to_learn: of
    the one chosen, None where it never learnt. rule: how it was chosen and scored. quick: whether trials were left out.
    baselines: accuracy of trivial guesses by name, fitted to other sequences and scored on the test sequences.
    tested: accuracies at other places, see `elsewhere.Prepared.row`.
    overlap: share of the test sequences that training draws too. fingerprint: SHA-256 of validation and test sequences.
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
    weight_decay: float | None
    steps_to_learn: int | None
    trials: list[dict[str, Any]]
    rule: str
    quick: bool
    baselines: dict[str, float]
    overlap: float
    n_params: int
    n_params_body: int
    fingerprint: str
    compile: bool
    amp: str | None
    tested: list[dict[str, Any]]


@dataclass(frozen=True)
class Trial:
    """One setting. validation_accuracy, validation_loss: at the step it is judged at; None when it diverged.

    steps: batches seen, fewer than asked for when it reached stop_at or diverged. best_step: where validation accuracy
    was highest. curve: [step, validation accuracy, validation loss] wherever they were looked at.
    """

    lr: float
    weight_decay: float
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


def train(
    build: Callable[[], Model],
    task: Task,
    settings: TrainSettings,
    seed: int,
    *,
    device: str = "cpu",
    places: Sequence[Elsewhere] = (),
) -> TrainResult:
    """Train models from `build` on `task`, one per setting, and score the best on test data.

    places: where it is scored as well, by the same weights.
    The global random state is seeded for `build` and for training, and is afterwards what it was before. On a CPU the
    result is the same bit for bit, for a given number of threads. Raises ValueError when the task is too small to fill
    its splits, or a place speaks of other tokens.
    """
    return trained(build, task, settings, seed, device=device, places=places)[0]


def trained(
    build: Callable[[], Model],
    task: Task,
    settings: TrainSettings,
    seed: int,
    *,
    device: str = "cpu",
    places: Sequence[Elsewhere] = (),
) -> tuple[TrainResult, Model]:
    """As `train`, with the model that was scored; or with the last one, where no trial kept a finite loss."""
    validation = held_out(task, "validation", settings.n_validation, seed)
    test = held_out(task, "test", settings.n_test, seed)
    others = prepared(task, places, settings.n_test, seed)
    baselines = baselines_on(task, training_sample(task, N_FITTED, seed), test)
    with _own_random_state(device):
        trials, best, model = _tried(build, task, settings, seed, validation, device)
        score = None if best is None else evaluate(model, test, task.slice_names, settings.batch_size, task.tolerance)
        elsewhere = tested(None if best is None else model, others, settings.batch_size)
    result = TrainResult(
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
        weight_decay=None if best is None else best.weight_decay,
        steps_to_learn=None if best is None else steps_to_learn(best.curve),
        trials=[asdict(trial) for trial in trials],
        rule=rule(settings),
        quick=settings.quick,
        baselines=baselines,
        overlap=overlap(task, test, settings, seed),
        n_params=sum(p.numel() for p in model.parameters()),
        n_params_body=n_params_body(model),
        fingerprint=fingerprint(validation, test),
        compile=settings.compile,
        amp=settings.amp,
        tested=elsewhere,
    )
    return result, model


def _tried(
    build: Callable[[], Model], task: Task, settings: TrainSettings, seed: int, validation: Batch, device: str
) -> tuple[list[Trial], Trial | None, Model]:
    """A trial per setting; the best one and its model, or None and the last model."""
    trials: list[Trial] = []
    best: tuple[Trial, Model] | None = None
    for setting in settings_of(settings):
        torch.manual_seed(seed)
        model = build().to(device)
        trial = _run_trial(model, task, settings, setting, seed, validation)
        trials.append(trial)
        if not trial.diverged and (best is None or trial.rank > best[0].rank):
            best = trial, model
    return trials, *(best or (None, model))


def _run_trial(
    model: Model, task: Task, settings: TrainSettings, setting: Setting, seed: int, validation: Batch
) -> Trial:
    """Train one model with one setting, looking at validation data every eval_every steps and after the last.

    The model is left as it was at the step that it is judged at.
    """
    optimizer = adamw(model, setting.lr, setting.weight_decay)
    hidden = hidden_of(model, settings.compile)
    schedule = LambdaLR(optimizer, lambda step: lr_factor(step, settings))
    watch = _Watch(model, settings)
    loss_sum = torch.zeros((), device=device_of(model))
    for step, chunk in enumerate(_training_chunks(task, settings, seed, device_of(model)), start=1):
        loss_sum += train_step(model, chunk, optimizer, settings.clip, amp=settings.amp, hidden=hidden)
        schedule.step()
        if step % settings.eval_every and step < settings.steps:
            continue
        score = evaluate(model, validation, task.slice_names, settings.batch_size, task.tolerance)
        if not (math.isfinite(loss_sum.item()) and math.isfinite(score.loss)):
            return Trial(setting.lr, setting.weight_decay, True, step, None, None, None, watch.curve)
        if watch.sees(step, score):
            break
    accuracy, loss = watch.judged()
    return Trial(setting.lr, setting.weight_decay, False, step, accuracy, loss, watch.best_step, watch.curve)


class _Watch:
    """Validation scores of one trial, and the weights of the best step where it is judged there."""

    def __init__(self, model: Model, settings: TrainSettings) -> None:
        self.model, self.settings = model, settings
        self.curve: list[list[float]] = []
        self.weights: dict[str, Tensor] = {}

    def sees(self, step: int, score: Score) -> bool:
        """Take down one score; whether the trial is at its end."""
        is_best = not self.curve or score.accuracy > max(accuracy for _, accuracy, _ in self.curve)
        self.curve.append([step, score.accuracy, score.loss])
        if is_best and self.settings.judged_at == "best":
            self.weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        return self.settings.stop_at is not None and score.accuracy >= self.settings.stop_at

    @property
    def best_step(self) -> int:
        """Where validation accuracy was highest, the first of equals."""
        return int(max(self.curve, key=lambda point: point[1])[0])

    def judged(self) -> tuple[float, float]:
        """Accuracy and loss at the step that counts, whose weights the model has from now on."""
        if self.settings.judged_at == "best":
            self.model.load_state_dict(self.weights)
            return next((accuracy, loss) for step, accuracy, loss in self.curve if step == self.best_step)
        return self.curve[-1][1], self.curve[-1][2]


def _training_chunks(task: Task, settings: TrainSettings, seed: int, device: torch.device) -> Iterator[Chunk]:
    """settings.steps batches; their sequences are drawn in blocks, ahead of need."""
    for batch in islice(training_batches(task, settings.batch_size, seed, settings.n_training), settings.steps):
        yield from chunks_of(batch, settings.batch_size, device)


@contextmanager
def _own_random_state(device: str) -> Iterator[None]:
    """Keep the global random state of the CPU, and of the GPU in use, as it was."""
    with torch.random.fork_rng(devices=[] if torch.device(device).type == "cpu" else [device]):
        yield

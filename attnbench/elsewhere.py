"""A trained model scored once more, at other lengths and with other options than it was trained at.

What is measured is how far learning goes beyond training: the model is the one chosen and scored as ever, the test data
of each place come from the task there, by the same split and seed. Nothing is trained, and nothing chosen, on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.scoring import Score, evaluate
from attnbench.splits import fingerprint, held_out
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.transformer import Model


@dataclass(frozen=True)
class Elsewhere:
    """One place. task: as it is there. changed: the names of the options that were asked for there."""

    task: Task
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A place with its test sequences."""

    place: Elsewhere
    test: Batch

    def row(self, score: Score | None, reason: str | None) -> dict[str, Any]:
        """One entry of the record's column `tested`. Without a score, reason says why.

        n: scored answers. slices: as in `TrainResult`. fingerprint: SHA-256 of the test sequences.
        """
        task = self.place.task
        return {
            "T": task.T,
            "options": {name: task.options.get(name) for name in self.place.changed},
            "accuracy": None if score is None else score.accuracy,
            "sequence_accuracy": None if score is None else score.sequence_accuracy,
            "chance": task.chance,
            "floor": task.floor,
            "n": int((self.test.labels != IGNORE).sum()),
            "slices": {} if score is None else score.slices,
            "slice_unit": task.slice_unit,
            "fingerprint": fingerprint(self.test),
            "reason": reason,
        }


def prepared(trained: Task, places: Sequence[Elsewhere], n_test: int, seed: int) -> list[Prepared]:
    """The places with their test sequences, drawn before anything is trained.

    Raises ValueError where a task is too small to fill its split, or speaks of other tokens than the one trained on.
    """
    for place in places:
        if place.task.vocab_size != trained.vocab_size:
            told = f"at T = {place.task.T} with {dict(place.task.options)} the task has {place.task.vocab_size} tokens"
            raise ValueError(f"test_at: {told}, the model was trained on {trained.vocab_size}")
    return [Prepared(place, held_out(place.task, "test", n_test, seed)) for place in places]


def tested(model: Model | None, places: Sequence[Prepared], batch_size: int) -> list[dict[str, Any]]:
    """One entry per place. model: None where no trial kept a finite loss.

    A model that cannot run at a place (its mixer is of one length, say) has no accuracy there, and the reason.
    """
    return [_tested(model, place, batch_size) for place in places]


def _tested(model: Model | None, at: Prepared, batch_size: int) -> dict[str, Any]:
    if model is None:
        return at.row(None, "no learning rate kept a finite loss")
    task = at.place.task
    try:
        score = evaluate(model, at.test, task.slice_names, batch_size, task.tolerance)
    except Exception as error:  # a plugin's mixer may raise anything at a length that it was not made for
        return at.row(None, " ".join(f"{type(error).__name__}: {error}".split()))
    if not math.isfinite(score.loss):
        return at.row(None, "its outputs are not finite there")
    return at.row(score, None)

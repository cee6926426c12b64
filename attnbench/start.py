"""Weights to start from: a model is trained on another task first, and kept in a file for all cells that start there.

Trials that start from weights that were read and from those that were just trained give the same result bit for bit, so
it does not matter which of several visits finds the file, or whether two of them train at once.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from attnbench.settings import TrainSettings
from attnbench.tasks import Task
from attnbench.train import trained
from attnbench.transformer import Model

_HASH_BYTES = 32  # of SHA-256, in front of what it was taken of


@dataclass(frozen=True)
class Start:
    """What pretraining gave.

    weights: by name, on the CPU. accuracy: on test sequences of its own task. steps: batches that it saw.
    fingerprint: of its data, as `TrainResult` has it.
    """

    weights: dict[str, Tensor]
    accuracy: float
    steps: int
    fingerprint: str

    def given_to(self, model: Model) -> Model:
        """The model with these weights. Raises RuntimeError where it has others."""
        model.load_state_dict(self.weights)
        return model

    def with_data(self, fingerprint: str) -> str:
        """The fingerprint of the data of pretraining and of what is trained on after it, together."""
        return hashlib.sha256(f"{self.fingerprint} {fingerprint}".encode()).hexdigest()

    @property
    def told(self) -> dict[str, Any]:
        """The columns that a record has of it."""
        return {"pretrain_accuracy": self.accuracy, "pretrain_steps": self.steps}


def start_from(
    build: Callable[[], Model], task: Task, settings: TrainSettings, seed: int, *, device: str, file: Path | None
) -> Start | None:
    """Weights of a model from `build` trained on `task`: those of `file`, or new ones that are then kept there.

    Training is that of `settings` with the first learning rate and weight decay, on fresh sequences. A file that is
    not whole counts as none. None where no loss was finite. Raises ValueError when the task is too small.
    """
    found = read(file) if file else None
    if found is None:
        found = _pretrained(build, task, settings, seed, device)
        if found and file:
            write(found, file)
    return found


def read(file: Path) -> Start | None:
    """What `write` wrote; None where there is no such file, or one that is not whole."""
    with suppress(OSError):
        content = file.read_bytes()
        digest, body = content[:_HASH_BYTES], content[_HASH_BYTES:]
        if hashlib.sha256(body).digest() == digest:
            return Start(**torch.load(io.BytesIO(body), weights_only=True))
    return None


def write(start: Start, file: Path) -> None:
    """Put it into a file that is whole whenever it is there, whoever else writes it at the same time."""
    body = io.BytesIO()
    torch.save(asdict(start), body)
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.{uuid4().hex}.part")
    draft.write_bytes(hashlib.sha256(body.getvalue()).digest() + body.getvalue())
    draft.replace(file)


def _pretrained(
    build: Callable[[], Model], task: Task, settings: TrainSettings, seed: int, device: str
) -> Start | None:
    once = settings.model_copy(update={"quick": True, "n_training": None})
    result, model = trained(build, task, once, seed, device=device)
    if result.accuracy is None:
        return None
    weights = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    return Start(weights, result.accuracy, result.trials[0]["steps"], result.fingerprint)

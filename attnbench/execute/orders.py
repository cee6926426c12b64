"""What passes between the parent and its fresh processes. No torch here: the parent never imports it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from attnbench.cells import Cell
from attnbench.registry import Source
from attnbench.settings import Measure, TimingSettings, TrainSettings

# Fields of a cell that do not decide the weights of pretraining.
AFTERWARDS = ("T", "S", "task", "task_options", "n_training", "measures", "label", "digest")


@dataclass(frozen=True)
class Visit:
    """What a visit is sent to do: one measure of one cell, where the classes are, and the settings in force.

    variants: one for each part of the cell.
    cross: the cross-attention of an encoder-decoder's decoder, where the cell has one.
    pretrain: the task of pretraining, where the cell has one. weights: the folder where trained weights are kept.
    """

    cell: Cell
    measure: Measure
    variants: tuple[Source, ...]
    task: Source | None
    timing: TimingSettings
    train: TrainSettings
    memory_limit: int | None = None
    cross: Source | None = None
    pretrain: Source | None = None
    weights: Path | None = None

    def weights_file(self, vocab_size: int) -> Path | None:
        """Where the weights that the cell starts from are kept: its name is a digest of all that decides them.

        vocab_size: of the model. Cells that differ in what is trained on afterwards have one file.
        """
        decides = {key: value for key, value in asdict(self.cell).items() if key not in AFTERWARDS}
        decides |= {"pretrain": self.cell.pretrain_name, "vocab_size": vocab_size}
        digest = hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()
        return self.weights and self.weights / f"{digest[:16]}.pt"


@dataclass(frozen=True)
class Judgement:
    """What is known of a cell before it runs: why it cannot, or None, and its operations, or None."""

    reason: str | None = None
    flops: float | None = None

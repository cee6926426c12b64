"""What passes between the parent and its fresh processes. No torch here: the parent never imports it."""

from __future__ import annotations

from dataclasses import dataclass

from attnbench.cells import Cell
from attnbench.registry import Source
from attnbench.settings import Measure, TimingSettings, TrainSettings


@dataclass(frozen=True)
class Visit:
    """What a visit is sent to do: one measure of one cell, where the classes are, and the settings in force.

    variants: one for each part of the cell.
    cross: the cross-attention of an encoder-decoder's decoder, where the cell has one.
    """

    cell: Cell
    measure: Measure
    variants: tuple[Source, ...]
    task: Source | None
    timing: TimingSettings
    train: TrainSettings
    memory_limit: int | None = None
    cross: Source | None = None


@dataclass(frozen=True)
class Judgement:
    """What is known of a cell before it runs: why it cannot, or None, and its operations, or None."""

    reason: str | None = None
    flops: float | None = None

"""What a run tells whoever shows its progress."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnbench.cells import Cell
from attnbench.records import Record
from attnbench.settings import Measure


class Listener:
    """Hears of a run and does nothing about it; a subclass overrides what it wants to know."""

    def started(self, *, run: Path, n_cells: int, expected_s: Sequence[tuple[Measure, float]]) -> None:
        """Called once, before the first visit; expected_s: the measure and the expected time of each visit."""

    def uncounted(self, *, n_cells: int) -> None:
        """Called once, where the folder holds records of cells that are not asked for now; they stay, uncounted."""

    def ended(
        self, *, cell: Cell, record: Record, n_visits: int, took_s: float, expected_s: float, detail: str | None
    ) -> None:
        """Called for each record.

        n_visits: how many of the announced visits it settles; all that are left of a cell when one goes wrong, none
        when it was disturbed and will be repeated, or when it is one of a further round.
        took_s, expected_s: the time that went into it, and that they had been expected to take; of visits side by
        side, each is given its share. detail: a traceback or last output, where something went wrong.
        """

    def settled(self, *, cells: Sequence[Cell], status: str, reason: str, detail: str | None) -> None:
        """Called once for all cells that the check of their variant gives a status; `ended` follows for each record."""

    def narrowing(self, *, n_cells: int) -> None:
        """Called before each further round, of n_cells whose time is known less well than asked."""

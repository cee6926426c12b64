"""Progress of a run on standard error: a bar with a time to finish, plain lines now and then without a terminal."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from attnbench.cells import Cell
from attnbench.execute.listener import Listener
from attnbench.records import AS_ASKED, Record
from attnbench.settings import Measure

QUIET_S = 15.0  # between plain lines


class ShownProgress(Listener):
    """Shows a run. Use as a context manager. `debug` adds tracebacks to what went wrong."""

    def __init__(self, *, debug: bool = False) -> None:
        self.debug = debug
        self.console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("visits", total=None, left="")
        self.folder: Path | None = None  # of the run, once it has one
        self._visits = self._made = 0
        self._spoke_s = 0.0
        self._narrows = False
        self._told = set[str]()  # cells whose status was said for many at once
        self._left = TimeLeft()

    def __enter__(self) -> ShownProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def started(self, *, run: Path, n_cells: int, expected_s: Sequence[tuple[Measure, float]]) -> None:
        """Say where the run goes and how much there is to do."""
        self.folder, self._visits = run, len(expected_s)
        self._left.expect(expected_s)
        self._bar.update(self._task, total=self._visits)
        self._say(f"{n_cells} cells, {self._visits} visits to make, about {self._left}, into {run}")

    def uncounted(self, *, n_cells: int) -> None:
        """Say that what was measured of other cells is not lost, and not shown."""
        cells = "1 cell" if n_cells == 1 else f"{n_cells} cells"
        why = "but not asked for now, or by code that has changed since"
        self._say(f"note: {cells} measured earlier, {why}: kept, and not counted")

    def settled(self, *, cells: Sequence[Cell], status: str, reason: str, detail: str | None) -> None:
        """Say once what is wrong with all of these cells."""
        self._told.update(cell.id for cell in cells)
        n_cells = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        self._say(f"{n_cells} of {cells[0].label}: {status}: {reason}")
        if self.debug and detail:
            self._say(detail)

    def ended(
        self, *, cell: Cell, record: Record, n_visits: int, took_s: float, expected_s: float, detail: str | None
    ) -> None:
        """Count visits; what did not go as asked is told at once, with its reason."""
        self._made += n_visits
        if cell.id in self._told or record["status"] == "unsupported":
            self._left.drop(record["measure"], expected_s)
        else:
            self._left.learn(record["measure"], took_s, expected_s)
        left = f"{self._left} left"
        self._bar.update(self._task, completed=self._made, left=left)
        if cell.id in self._told:
            return
        if record["status"] not in AS_ASKED:
            self._say(f"{record['status']}: {title(cell)}, {record['measure']}: {record['reason']}")
            if self.debug and detail:
                self._say(detail)
        elif not self.console.is_terminal and time.monotonic() - self._spoke_s > QUIET_S:
            self._say(f"{self._made} of {self._visits} visits, {left}")

    def narrowing(self, *, n_cells: int) -> None:
        """Say once that the rest of the budget is put to use."""
        if not self._narrows:
            self._narrows = True
            cells = "1 cell" if n_cells == 1 else f"{n_cells} cells"
            self._say(f"all visits made; the rest of the budget goes to {cells} with wide intervals")

    def _say(self, line: str) -> None:
        self._spoke_s = time.monotonic()
        self.console.print(line, markup=False)


class TimeLeft:
    """Time to finish: what was expected, corrected by how long visits of the same measure have really taken."""

    def __init__(self) -> None:
        self._left_s: defaultdict[Measure, float] = defaultdict(float)
        self._expected_s: defaultdict[Measure, float] = defaultdict(float)
        self._took_s: defaultdict[Measure, float] = defaultdict(float)

    def expect(self, visits: Sequence[tuple[Measure, float]]) -> None:
        """All visits that are to be made."""
        for measure, expected_s in visits:
            self._left_s[measure] += expected_s

    def drop(self, measure: Measure, expected_s: float) -> None:
        """Visits that will not be made; nothing is learnt from them."""
        self._left_s[measure] -= expected_s

    def learn(self, measure: Measure, took_s: float, expected_s: float) -> None:
        """One more visit is made."""
        self.drop(measure, expected_s)
        self._expected_s[measure] += expected_s
        self._took_s[measure] += took_s

    @property
    def seconds(self) -> float:
        """Seconds to go."""
        return sum(left_s * self._factor(measure) for measure, left_s in self._left_s.items())

    def _factor(self, measure: Measure) -> float:
        expected_s = self._expected_s[measure]
        return self._took_s[measure] / expected_s if expected_s else 1.0

    def __str__(self) -> str:
        return duration(self.seconds)


def title(cell: Cell) -> str:
    """A cell in a few words."""
    what = cell.task if cell.task else f"{cell.level} {cell.phase}"
    what += f" after {cell.pretrain}" if cell.pretrain else ""
    what += f" n_training={cell.n_training}" if cell.n_training else ""
    return f"{cell.label} {what} T={cell.T} d_model={cell.d_model}"


def duration(seconds: float) -> str:
    """`45 s`, `6 min`, `2.1 h`."""
    seconds = max(seconds, 0.0)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

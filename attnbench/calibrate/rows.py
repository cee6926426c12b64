"""A row of the calibration: what is sampled of the instrument, idle and beside a busy neighbour, and what is asked.

A sample counts when the machine was quiet just before and just after it. One that was not is thrown away and taken
again; a row that has lost too much time so is not run at all, for a wrong figure is worse than none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

Sample = TypeVar("Sample")
Beside = Callable[[], AbstractContextManager[object]]
LIMIT_S = 300.0  # what a row may lose to a machine that is not quiet
PAUSE_S = 2.0


@dataclass(frozen=True)
class Line(Generic[Sample]):
    """One line of the table. told: samples in words. met: whether those idle and those beside a neighbour will do."""

    what: str
    target: str
    told: Callable[[Sequence[Sample]], str]
    met: Callable[[Sequence[Sample], Sequence[Sample]], bool]


@dataclass(frozen=True)
class Row(Generic[Sample]):
    """What `take` gives, n_idle and n_busy times in turns, and the lines that tell of it.

    n_busy = 0: nothing is timed or weighed, so that it does not matter what else the machine does.
    """

    take: Callable[[], Sample]
    lines: tuple[Line[Sample], ...]
    n_idle: int = 1
    n_busy: int = 1


@dataclass(frozen=True)
class Samples(Generic[Sample]):
    """What a row took of each kind."""

    idle: list[Sample]
    busy: list[Sample]


class NeverQuietError(Exception):
    """The machine was not left in peace for long enough."""


class Patience:
    """Takes samples of a quiet machine, for as long as no more than limit_s are lost to one that is not.

    quiet: whether it is so now.
    """

    def __init__(
        self,
        quiet: Callable[[], bool],
        limit_s: float = LIMIT_S,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._quiet, self._left_s, self._clock, self._sleep = quiet, limit_s, clock, sleep

    def undisturbed(self, take: Callable[[], Sample]) -> Sample:
        """What `take` returns when the machine is quiet before and after. Raises NeverQuietError."""
        while True:
            self._wait()
            start_s = self._clock()
            taken = take()
            if self._quiet():
                return taken
            self._lose(start_s)

    def _wait(self) -> None:
        start_s = self._clock()
        while not self._quiet():
            self._sleep(PAUSE_S)
            self._lose(start_s)
            start_s = self._clock()

    def _lose(self, since_s: float) -> None:
        self._left_s -= self._clock() - since_s
        if self._left_s <= 0:
            raise NeverQuietError


def measured(row: Row[Sample], patience: Patience, neighbour: Beside) -> Samples[Sample] | None:
    """All samples of a row, idle and busy in turns; None when the machine was never quiet for long enough.

    neighbour: keeps a core busy while it is entered; it is left whatever happens.
    """
    found = Samples[Sample]([], [])
    if not row.n_busy:
        found.idle.extend(row.take() for _ in range(row.n_idle))
        return found
    kinds: tuple[tuple[list[Sample], int, Beside], ...] = (
        (found.idle, row.n_idle, nullcontext),
        (found.busy, row.n_busy, neighbour),
    )
    try:
        for n in range(max(row.n_idle, row.n_busy)):
            for samples, n_wanted, beside in kinds:
                if n < n_wanted:
                    samples.append(patience.undisturbed(partial(_taken, row, beside)))
    except NeverQuietError:
        return None
    return found


def _taken(row: Row[Sample], beside: Beside) -> Sample:
    with beside():
        return row.take()


def table_lines(row: Row[Any], samples: Samples[Any] | None) -> list[tuple[str, ...]]:
    """The lines of a row as they stand in the table: what, idle, with a busy neighbour, target, met."""
    if samples is None:
        return [(line.what, "not run", "not run", line.target, "not run") for line in row.lines]
    return [
        (
            line.what,
            line.told(samples.idle),
            line.told(samples.busy) if samples.busy else "no timer",
            line.target,
            "yes" if line.met(samples.idle, samples.busy) else "no",
        )
        for line in row.lines
    ]

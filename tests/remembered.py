"""What whole runs of one test process ask again and again is asked once: the machine's peaks, and sound variants.

A run measures this machine and tries each variant's promises before it visits a cell, in fresh processes, which takes
longer than the tiny cells of these tests. The first run of a process does both. A later one is given the same peaks,
and no variant of the package that has kept its promises is tried again. Plugins always are, and what the answers are
worth is tried in test_roofs, test_quiet and test_conformance, which do not go through a run. The forkserver of the
process loads what a training needs too, whoever starts it, so that no later visit has to.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from attnbench.execute import runner
from attnbench.execute.local import FreshProcesses, Job, Outcome

PACKAGE = "attnbench_variants."


class Remembered:
    """Stands for `runner.peaks` and for `FreshProcesses.run` in one test process."""

    def __init__(self) -> None:
        self._peaks: dict[Any, dict[str, Any]] = {}
        self._sound: dict[str, Outcome] = {}
        self._measure: Callable[..., dict[str, Any]] = runner.peaks
        self._begin: Callable[..., None] = FreshProcesses.__init__
        self._run: Callable[..., Iterator[tuple[Job, Outcome]]] = FreshProcesses.run

    def peaks(self, processes: FreshProcesses, wanted: Iterable[tuple[str, int, str]]) -> dict[str, Any]:
        """The peaks of this machine, measured the first time that these are wanted."""
        asked = tuple(sorted(set(wanted)))
        if asked not in self._peaks:
            self._peaks[asked] = self._measure(processes, asked)
        return self._peaks[asked]

    def run(self, processes: FreshProcesses, jobs: Iterable[Job], at_once: int) -> Iterator[tuple[Job, Outcome]]:
        """Each job with its outcome; the check of a variant that is known to be sound ends before it begins."""
        known: list[Job] = []

        def unknown() -> Iterator[Job]:
            for job in jobs:
                if _key(job) in self._sound:
                    known.append(job)
                else:
                    yield job

        for job, outcome in self._run(processes, unknown(), at_once):
            if (key := _key(job)) and outcome.status == "ok" and not outcome.value:
                self._sound[key] = outcome
            yield job, outcome
        yield from ((job, self._sound[str(_key(job))]) for job in known)

    def put_in(self, patch: pytest.MonkeyPatch) -> None:
        """From here on every run of this process goes through this."""

        def run(processes: FreshProcesses, jobs: Iterable[Job], at_once: int) -> Iterator[tuple[Job, Outcome]]:
            return self.run(processes, jobs, at_once)

        def begin(processes: FreshProcesses, start_method: str | None = None, *, training: bool = False) -> None:
            del training  # the first run of a process decides what its forkserver loads, and a later one may train
            self._begin(processes, start_method, training=True)

        patch.setattr(runner, "peaks", self.peaks)
        patch.setattr(FreshProcesses, "run", run)
        patch.setattr(FreshProcesses, "__init__", begin)


def _key(job: Job) -> str | None:
    """What a check tries, but for the sizes of the cells; None for any other job and for a plugin's variant."""
    if job.function != "attnbench.execute.cell:check":
        return None
    cell, part, source, _ = job.arguments
    return runner._check_key(cell, part) if source.target.startswith(PACKAGE) else None

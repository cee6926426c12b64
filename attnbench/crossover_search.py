"""At which T is one variant cheaper than another: a run whose sweep grows by the sizes that the search asks for.

Each step is the same run gone on with, so that everything measured stands in one folder, which a report reads like any
other, and which the same question asked again goes on with. At the end the levels core, layer, block and model are
timed at the crossover, to tell what of an advantage is left in a whole block.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pandas import DataFrame

from attnbench.analyse.amdahl import LEVELS
from attnbench.analyse.bisection import located, next_sizes
from attnbench.analyse.compare import verdicts
from attnbench.analyse.crossover import Crossover
from attnbench.analyse.points import MEMORY, TIME, Measure, asked, points
from attnbench.execute.listener import Listener
from attnbench.execute.tables import run_tables
from attnbench.records import AS_ASKED

TIMING = {"visits": 3, "warmup_s": 0.05, "max_s": 0.2, "repeats": 1}
MORE_VISITS, MOST_VISITS = 2, 9
TIMEOUT_S = 60
VISIT_S, STEP_S = 0.6, 4.0  # what a visit, and a step, take beside the calls
SPLIT_SHARE = 0.25  # of the time, kept for the levels
MEASURES = {"time": TIME, "memory": MEMORY}


@dataclass(frozen=True)
class Question:
    """At which T is `other` cheaper than `baseline`, at these widths and batches? plugins: files that offer them."""

    baseline: str
    other: str
    widths: tuple[int, ...]
    batches: tuple[int, ...] = (1,)
    phase: str = "forward"
    level: str = "layer"
    T_max: int = 8192
    plugins: tuple[Path, ...] = ()
    role: str = "causal"

    def __str__(self) -> str:
        return f"At which T is {self.other} cheaper than {self.baseline}?"


class Place(NamedTuple):
    """What is searched by itself: one measure at one width and batch."""

    measure: str
    d_model: int
    B: int


@dataclass(frozen=True)
class Answer:
    """What a search found. spent: where time was over before it was done."""

    question: Question
    frame: DataFrame
    crossovers: Mapping[Place, Crossover]
    spent: frozenset[Place]

    @property
    def is_one(self) -> bool:
        """Whether each variant ran, or cannot and says why: what failed is no answer."""
        return bool(self.frame["status"].isin(AS_ASKED).groupby(self.frame["label"]).any().all())

    @cached_property
    def reasons(self) -> dict[Place, str]:
        """Of each place without a ratio, why: what became of the first of its cells without one."""
        cells = self.frame[~self.frame["status"].isin(["ok"])]
        told = {}
        for place, found in self.crossovers.items():
            here = asked(cells[(cells["d_model"] == place.d_model) & (cells["B"] == place.B)], MEASURES[place.measure])
            if not found.n_sizes and len(here):
                first = here.iloc[0]
                told[place] = f"{first['label']}: {first['status']}: {first['reason']}"
        return told

    @property
    def split(self) -> DataFrame:
        """The cells of the asked phase, at every level."""
        return self.frame[self.frame["phase"] == self.question.phase]


class Search:
    """One search. Call `run` once.

    folder: of the run. shown: gives the listener of each step, entered for as long as that takes. say: is told in a
    line what each step asks.
    """

    def __init__(
        self,
        question: Question,
        folder: Path,
        *,
        budget_s: float,
        shown: Callable[[], AbstractContextManager[Listener]],
        say: Callable[[str], None],
        timing: Mapping[str, Any] = TIMING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.question, self.folder, self.shown, self.say, self.timing = question, folder, shown, say, dict(timing)
        self._clock, self._end_s, self._kept_s = clock, clock() + budget_s, SPLIT_SHARE * budget_s
        widths, batches = question.widths, question.batches
        self.sizes: dict[Place, set[int]] = {Place(m, d, B): set() for m in MEASURES for B in batches for d in widths}
        self.n_visits: dict[tuple[Place, int], int] = {}  # that were asked for, of times
        self.split_at: dict[Place, int] = {}
        self.spent = set[Place]()
        self.frame = DataFrame()

    def run(self) -> Answer:
        """Search, then split. Raises RequestError before anything runs when the request is wrong."""
        while step := self._affordable(self._wanted()):
            self._measure(step)
        if self.question.phase != "train_step":  # one of a whole model, which has no parts of that phase
            self._split()
        found = {place: one for place in self.sizes if (one := self._crossover(place)) is not None}
        return Answer(self.question, self.frame, found, frozenset(self.spent))

    def _wanted(self) -> dict[Place, list[int]]:
        """The sizes that each place wants next; known ones that have had many visits are left out."""
        wanted = {place: next_sizes(self._compared(place), self.question.T_max) for place in self.sizes}
        return {
            place: [T for T in sizes if self.n_visits.get((place, T), 0) < MOST_VISITS]
            for place, sizes in wanted.items()
        }

    def _affordable(self, wanted: Mapping[Place, list[int]]) -> dict[Place, list[int]]:
        """The cheapest of these sizes, as many as there is time for; what misses one now is spent.

        The first step is made however little time there is.
        """
        left_s = self._end_s - self._clock() - self._kept_s - STEP_S if len(self.frame) else math.inf
        costs = sorted((self._expected_s(place, T), place, T) for place, sizes in wanted.items() for T in sizes)
        self.spent.clear()
        step: dict[Place, list[int]] = {}
        for cost_s, place, T in costs:
            left_s -= cost_s
            if left_s < 0:
                self.spent.add(place)
            else:
                step.setdefault(place, []).append(T)
        return {place: sorted(step[place]) for place in self.sizes if place in step}

    def _measure(self, step: Mapping[Place, list[int]]) -> None:
        """Visit what a step asks for: first more often what is known, then what is new, with all that came before."""
        again = {place: [T for T in sizes if T in self.sizes[place]] for place, sizes in step.items()}
        new = {place: [T for T in sizes if T not in self.sizes[place]] for place, sizes in step.items()}
        self.say("; ".join([*_told(new, "T ="), *_told(again, "again T =")]))
        if any(again.values()):
            visits = MORE_VISITS + max(self.n_visits[place, T] for place, sizes in again.items() for T in sizes)
            self.n_visits |= {(place, T): visits for place, sizes in again.items() for T in sizes}
            self._run(self._grids(again), visits)
        for place, sizes in new.items():
            self.sizes[place] |= set(sizes)
            self.n_visits |= {(place, T): self.timing["visits"] for T in sizes}
        self._run(self._all_grids())

    def _split(self) -> None:
        """Time each level at the crossover of each width, or at the largest T that both were timed at."""
        for place, sizes in self.sizes.items():
            found = self._crossover(place) if place.measure == "time" else None
            if found is not None and found.n_sizes:
                at = found.crossings[-1].T if found.crossings else found.T_max
                known = [T for T in sizes if found.T_min <= T <= found.T_max]
                self.split_at[place] = min(known, key=lambda T: abs(math.log(T / at)))
        if self.split_at:
            told = "; ".join(f"{_where(place)}: T = {T}" for place, T in self.split_at.items())
            self.say(f"what a block is made of, {told}")
            self._run(self._all_grids())

    def _run(self, grids: Iterable[Mapping[str, Any]], visits: int | None = None) -> None:
        question, timing = self.question, self.timing | ({"visits": visits} if visits else {})
        tables = {"question": str(question), "baseline": question.baseline, "timeout": TIMEOUT_S}
        tables |= {"timing": timing, "defaults": {"phase": question.phase, "role": question.role}, "grid": list(grids)}
        with TemporaryDirectory(prefix="attnbench-crossover-") as name, self.shown() as listener:
            asked_for = {"plugins": question.plugins, "resume": True, "listener": listener}
            self.frame = run_tables(tables, Path(name), out=self.folder, **asked_for).frame

    def _all_grids(self) -> list[dict[str, Any]]:
        return [*self._grids(self.sizes), *(self._grid(place, [T], LEVELS) for place, T in self.split_at.items())]

    def _grids(self, sizes: Mapping[Place, Iterable[int]]) -> list[dict[str, Any]]:
        return [self._grid(place, chosen, [self.question.level]) for place, chosen in sizes.items() if chosen]

    def _grid(self, place: Place, sizes: Iterable[int], levels: Iterable[str]) -> dict[str, Any]:
        variants = [self.question.baseline, self.question.other]
        where = {"d_model": place.d_model, "B": place.B, "T": sorted(sizes), "level": list(levels)}
        return {"measure": [place.measure], "variant": variants, **where}

    def _cells(self, place: Place) -> DataFrame:
        """The cells that were asked for at the level of the question, at one place or, B alone given, at all widths."""
        frame, question = self.frame, self.question
        here = (frame["level"] == question.level) & (frame["phase"] == question.phase) & (frame["B"] == place.B)
        return asked(frame[here], MEASURES[place.measure])

    def _compared(self, place: Place) -> DataFrame:
        """The verdicts of one place; all widths of a batch are one family, as in a report's table."""
        if not len(self.frame):
            return DataFrame({"T": []})
        measure: Measure = MEASURES[place.measure]
        merged = points(self._cells(place), measure)
        compared = verdicts(merged, self.question.baseline, resolution=measure.resolution)
        return compared[compared["d_model"] == place.d_model]

    def _crossover(self, place: Place) -> Crossover | None:
        compared = self._compared(place)
        return next(iter(located(compared)), None) if len(compared) else None

    def _expected_s(self, place: Place, T: int) -> float:
        """A guess at what both variants take at one size, from their times at the nearest size that is known."""
        if not len(self.frame):
            return 0.0
        frame = self.frame[(self.frame["d_model"] == place.d_model) & (self.frame["B"] == place.B)]
        known = frame[(frame["level"] == self.question.level) & frame["time_s"].notna()]
        total_s = 0.0
        for _, one in known.groupby("label"):
            nearest = one.loc[(one["T"] / T).map(math.log).abs().idxmin()]
            call_s = nearest["time_s"] * max(T / nearest["T"], 1.0) ** 2
            total_s += VISIT_S + 3 * call_s
        return total_s * (self.timing["visits"] if place.measure == "time" else 1)


def _told(step: Mapping[Place, list[int]], what: str) -> list[str]:
    """One part of a line for each place that asks for a size."""
    return [
        f"{place.measure}, {_where(place)}: {what} {', '.join(map(str, sizes))}"
        for place, sizes in step.items()
        if sizes
    ]


def _where(place: Place) -> str:
    """ "d = 64", with B where that is not 1."""
    return f"d = {place.d_model}" + (f", B = {place.B}" if place.B != 1 else "")

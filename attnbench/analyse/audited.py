"""One variant's audit: what it claims beside what a run of its cells shows. The run is made by `attnbench.audit`.

In T both costs are read at level core (layer, for a mixer without one) at d = WIDTH. In d, time is read at level layer,
where the maps are that a claim's d^2 speaks of, at the short T = SHORT. Memory in d is what SHORT positions take more
than half of them: gradients of weights take d^2 whatever T is, and are no part of what a claim counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame

from attnbench.analyse.audit import DISTURBED, Axis, Cost, Growth, Point, Verdict, growth, judge
from attnbench.analyse.claims import highest
from attnbench.analyse.fit import FIT, Fit, fits
from attnbench.analyse.points import MEMORY, TIME, Measure, asked, disturbed, points
from attnbench.errors import RequestError

PHASE = "forward_backward"
WIDTH, OTHER_WIDTH = 64, 128  # d of the sweep in T; the second width tells a fit how terms grow with d
SHORT = 128  # T of the sweep in d
STATE_T = (256, 512)  # prompts after which the state of decoding is read
N_HEADS = 4
BETWEEN = 96  # a width that no cell has, for a prediction
CLAIMS: tuple[tuple[Cost, Axis], ...] = (("time", "T"), ("memory", "T"), ("time", "d"), ("memory", "d"))
MEASURES: Mapping[Cost, Measure] = {"time": TIME, "memory": MEMORY}


@dataclass(frozen=True)
class Claimed:
    """What a variant says of itself. claim: None where it says nothing. core: whether it has a level core.

    phase: in which costs are read: PHASE, or `forward` where there is no backward pass.
    """

    name: str
    claim: Mapping[str, str | None] | None
    options: tuple[str, ...]
    role: str
    core: bool
    phase: str = PHASE

    @property
    def level(self) -> str:
        """The level at which growth in T is read."""
        return "core" if self.core else "layer"

    def power(self, cost: Cost, axis: Axis) -> float | None:
        """The highest claimed power, None without a claim. Raises RequestError where the claim cannot be read."""
        text = self.claim and self.claim[cost]
        if not text:
            return None
        try:
            return highest(text, axis, self.options)
        except ValueError as error:
            raise RequestError([f'{self.name}: claim {cost}="{text}": {error}']) from error


def cells(about: Claimed, cost: Cost, T: Sequence[int], widths: Sequence[int]) -> list[dict[str, Any]]:
    """The grids of a sweep that one cost of `Audited.points` is read from: over T, and over widths at SHORT."""
    over_T: dict[str, Any] = {
        "measure": [cost],
        "phase": about.phase,
        "level": about.level,
        "T": [*T],
        "d_model": [WIDTH],
    }
    short = {"level": "layer", "T": [SHORT]} if cost == "time" else {"T": [SHORT // 2, SHORT]}
    return [over_T, over_T | short | {"d_model": [*widths]}]


class Predicted(NamedTuple):
    """The time at a T and d that no cell has, by the fitted terms.

    errors: of the largest measured T, predicted by a fit to the others, less 1.
    """

    T: float
    d_model: float
    time_s: float
    errors: tuple[float, ...]


@dataclass(frozen=True)
class Audited:
    """An audit. frame: its cells. probe: of `execute.probes.probed`, at the lengths probe_T."""

    claimed: Claimed
    frame: DataFrame
    probe: Mapping[str, list[int | None]]
    probe_T: tuple[int, ...] = ()

    @property
    def trouble(self) -> str:
        """Why nothing was measured, where no cell is ok: "nonconformant: ..."; else empty."""
        frame = self.frame[self.frame["phase"] == self.claimed.phase]
        if (frame["status"] == "ok").any():
            return ""
        return next(
            (f"{status}: {reason}" for status, reason in zip(frame["status"], frame["reason"], strict=True)), ""
        )

    @property
    def wrong(self) -> bool:
        """Whether a claim is refuted, or the variant was not measured for another reason than that it cannot run."""
        told = self.trouble and not self.trouble.startswith("unsupported")
        return bool(told) or any(verdict.status == "refuted" for verdict in self.verdicts)

    @property
    def verdicts(self) -> list[Verdict]:
        """One for each claim; none without a claim."""
        found = []
        for cost, axis in CLAIMS:
            power = self.claimed.power(cost, axis)
            if power is not None:
                found.append(judge(cost, axis, power, *self.points(cost, axis)))
        return found

    def growth(self, cost: Cost, axis: Axis) -> Growth | None:
        """How one cost grows, with or without a claim."""
        return growth(self.points(cost, axis)[0])

    def points(self, cost: Cost, axis: Axis) -> tuple[list[Point], str]:
        """The points of one cost over T or d, and what became of those without a value."""
        measure, frame = MEASURES[cost], self.frame[self.frame["phase"] == self.claimed.phase]
        level = "layer" if (cost, axis) == ("time", "d") else self.claimed.level
        frame = asked(frame[frame["level"] == level], measure)
        frame = frame if cost == "memory" else _undisturbed(frame)
        if axis == "T":
            chosen = frame[(frame["d_model"] == WIDTH) & (frame["T"] > SHORT)]
            return _points(chosen, measure, "T")
        if cost == "memory":
            return _increments(frame, measure)
        return _points(frame[frame["T"] == SHORT], measure, "d_model")

    @property
    def state_bytes(self) -> list[float]:
        """Of one sequence in one layer, after prompts of STATE_T; NaN where nothing is known."""
        frame = self.frame[self.frame["phase"] == "prefill"].set_index("T")["state_bytes"].astype(float)
        return [float(frame.get(T, np.nan)) for T in STATE_T]

    @property
    def fit(self) -> Fit | None:
        """The terms of the time at `level`, over T and two widths."""
        frame = self.frame[(self.frame["phase"] == self.claimed.phase) & (self.frame["level"] == self.claimed.level)]
        frame = asked(frame[frame["d_model"].isin((WIDTH, OTHER_WIDTH)) & (frame["T"] > SHORT)], TIME)
        found = fits(points(frame, TIME, FIT)) if len(frame) else {}
        return next((one for one in found.values() if one.terms), None)

    @property
    def predicted(self) -> Predicted | None:
        """The time at twice the largest measured T, and a width in between; None without a fit."""
        found = self.fit
        if found is None:
            return None
        time_s = float(found.predict(2 * found.T, BETWEEN, N_HEADS))
        return Predicted(2 * found.T, BETWEEN, time_s, tuple(one.error for one in found.held_out))


def _undisturbed(frame: DataFrame) -> DataFrame:
    """The cells without times that something else disturbed: these speak neither for a claim nor against one."""
    busy = disturbed(frame)
    return frame.assign(time_s=frame["time_s"].mask(busy), status=frame["status"].mask(busy, DISTURBED))


def _points(frame: DataFrame, measure: Measure, axis: str) -> tuple[list[Point], str]:
    """The points over one column of sizes, and the statuses of those without a value."""
    merged = points(frame, measure)
    missing = ", ".join(dict.fromkeys(merged["status"][merged["status"] != "ok"]))
    merged = merged[merged["value"].notna()]
    low, high = (merged[end].where(merged[end].notna(), merged["value"]) for end in ("low", "high"))
    rows = zip(merged[axis], merged["value"], low, high, strict=True)
    return [Point(*map(float, row)) for row in rows], missing


def _increments(frame: DataFrame, measure: Measure) -> tuple[list[Point], str]:
    """What SHORT positions take more than half of them, over d."""
    short, missing = _points(frame[frame["T"] == SHORT], measure, "d_model")
    half, others = _points(frame[frame["T"] == SHORT // 2], measure, "d_model")
    less = {point.size: point.value for point in half}
    more = [(point.size, point.value - less[point.size]) for point in short if point.size in less]
    return [Point(size, value, value, value) for size, value in more], missing or others

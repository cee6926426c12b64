"""Whether the order of variants depends on what they were matched in: rankings, and the pairs that change places.

Of two variants one is ahead where the difference is above the measure's margin and its 95 % interval does not hold 0;
else they are tied. The interval of an accuracy is Student's over seeds (one seed decides nothing), that of a time its
own; those of two variants add up as squares. A flip needs two such differences of opposite sign, so the many pairs of a
table bring few by chance, and a tie is never one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pandas import DataFrame, Series
from scipy.special import stdtrit

from attnbench.analyse.compare import MARGIN
from attnbench.analyse.learning import Why, unranked
from attnbench.analyse.points import ACCURACY, POINT, Group, Measure, good, groups, points

MARGINS = {"time": math.log1p(MARGIN), "accuracy": 0.01}  # a smaller difference is a tie: of logs, and of accuracies


@dataclass(frozen=True)
class Score:
    """One variant at one place: value as measured, and merit with its bounds, which is larger the better it is."""

    label: str
    value: float
    merit: float
    low: float
    high: float


@dataclass(frozen=True)
class Ranking:
    """The variants of one width and T under one way of matching, the best first.

    settings: of their cells. absent: labels without a value for every seed, each with why. blind: why an order means
    nothing here, see `learning.unranked`; None where it does mean something.
    """

    settings: Mapping[str, Any]
    match: str
    d_model: int
    T: int
    scores: tuple[Score, ...]
    absent: Mapping[str, str]
    blind: Why | None = None


@dataclass(frozen=True)
class Flip:
    """Two variants at one width and T: under some ways of matching `first` is ahead, under others it is behind."""

    settings: Mapping[str, Any]
    d_model: int
    T: int
    first: str
    second: str
    ahead: tuple[str, ...]
    behind: tuple[str, ...]


def ahead(one: Score, other: Score, margin: float) -> int:
    """1 where `one` is the better, -1 where `other` is, 0 where they are tied."""
    off = one.merit - other.merit
    reach = math.hypot(one.merit - one.low, other.high - other.merit)
    if off < 0:
        reach = math.hypot(one.high - one.merit, other.merit - other.low)
    return 0 if abs(off) <= max(margin, reach) else int(math.copysign(1, off))


def rankings(frame: DataFrame, measure: Measure, control: str) -> list[Ranking]:
    """Of cells that were asked for the measure, at the places where there are several ways of matching.

    control: the label without which an accuracy means nothing.
    """
    found = [ranking for group in groups(frame) for ranking in _of_group(group, measure, control)]
    places = [_place(ranking) for ranking in found]
    return [ranking for ranking, place in zip(found, places, strict=True) if places.count(place) > 1]


def flips(ranked: Sequence[Ranking], measure: Measure) -> list[Flip]:
    """Pairs that one way of matching puts in one order and another in the opposite one, at the same place."""
    by_place: dict[tuple[object, ...], list[Ranking]] = {}
    for ranking in ranked:
        if ranking.blind is None:
            by_place.setdefault(_place(ranking), []).append(ranking)
    return [flip for ways in by_place.values() for flip in _flips(ways, MARGINS[measure.name])]


def _flips(ways: Sequence[Ranking], margin: float) -> Iterator[Flip]:
    scores = [{score.label: score for score in way.scores} for way in ways]
    at = ways[0]
    for first, second in combinations(dict.fromkeys(label for known in scores for label in known), 2):
        sides = {
            way.match: ahead(known[first], known[second], margin)
            for way, known in zip(ways, scores, strict=True)
            if first in known and second in known
        }
        leads, trails = (tuple(match for match, side in sides.items() if side == sign) for sign in (1, -1))
        if leads and trails:
            yield Flip(at.settings, at.d_model, at.T, first, second, leads, trails)


def _place(ranking: Ranking) -> tuple[object, ...]:
    """What rankings share that differ in the way of matching alone."""
    shared = sorted((name, str(value)) for name, value in ranking.settings.items() if name != "match")
    return (*shared, ranking.d_model, ranking.T)


def _of_group(group: Group, measure: Measure, control: str) -> Iterator[Ranking]:
    """One for each d_model and T."""
    match = str(group.frame["match"].iloc[0])
    silent = unranked(group.frame, control) if measure is ACCURACY else {}
    scored = _scores(group.frame, measure)
    for at, part in points(group.frame, measure).groupby(["d_model", "T"]):
        d_model, T = (int(size) for size in at)
        known = [scored[label, d_model, T] for label in part["label"] if (label, d_model, T) in scored]
        best = tuple(sorted(known, key=lambda score: -score.merit))
        absent = {p.label: _lacking(p) for p in part.itertuples() if (p.label, d_model, T) not in scored}
        yield Ranking(group.settings, match, d_model, T, best, absent, silent.get((d_model, T)))


def _lacking(point: Any) -> str:
    """Why a point has no value, or has it for some seeds alone: those that are left may be the lucky ones."""
    return str(point.status) if not point.n_good else f"{point.n_good} of {point.n_cells} seeds"


def _scores(frame: DataFrame, measure: Measure) -> dict[tuple[str, int, int], Score]:
    """Of each point with a value; of accuracies, with one for every seed."""
    if measure.low is not None:
        merged = points(frame, measure).dropna(subset=["value"])
        return {(p.label, p.d_model, p.T): _timed(p.label, p.value, p.low, p.high) for p in merged.itertuples()}
    cells = frame[POINT].assign(value=good(frame[measure.column], positive=measure.positive))
    return {
        (str(at[0]), int(at[1]), int(at[2])): _over_seeds(str(at[0]), part["value"])
        for at, part in cells.groupby(POINT)
        if part["value"].notna().all()
    }


def _timed(label: str, value: float, low: float, high: float) -> Score:
    """Merit is the log of how often it runs in a second; a time without bounds is exact."""
    merit = -math.log(value)
    return Score(label, value, merit, *(-math.log(end) if end > 0 else merit for end in (high, low)))


def _over_seeds(label: str, values: Series) -> Score:
    """The mean, with Student's interval of 95 %: endless for one seed."""
    mean, n = float(values.mean()), len(values)
    reach = float(stdtrit(n - 1, 0.975) * values.std() / math.sqrt(n)) if n > 1 else math.inf
    return Score(label, mean, mean, mean - reach, mean + reach)

"""What matching decides: the order of variants under each way of matching them, and the pairs that change places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pandas import DataFrame

from attnbench.analyse.flips import MARGINS, Flip, Ranking, Score, ahead, flips, rankings
from attnbench.analyse.points import ACCURACY, TIME, Measure, asked
from attnbench.report import words
from attnbench.report.learning import WHY
from attnbench.report.writers import Table

WAYS = {
    "none": "at the same width",
    "params": "at equal parameters",
    "flops": "at equal operations",
    "state": "at equal state",
}
RULES = {
    "accuracy": f">: better by more than {MARGINS['accuracy']:g} and than the 95 % interval over seeds; ~: tied",
    "time": ">: faster by more than 3 % and than the 95 % interval; ~: tied",
}


def tables(frame: DataFrame, baseline: str) -> list[Table]:
    """Rankings and flips of accuracy and of time, where cells of several ways of matching stand beside each other."""
    return [table for measure in (ACCURACY, TIME) for table in _of_measure(frame, measure, baseline)]


def sentence(frame: DataFrame, measure: Measure, baseline: str) -> str:
    """Which pairs change places: "linear is ahead of gru at the same width and behind it at equal state."; or ""."""
    ranked = rankings(asked(frame, measure), measure, baseline)
    if not ranked:
        return ""
    told = [_told(flip, _apart(ranked)) for flip in flips(ranked, measure)]
    ways = ", ".join(WAYS[way] for way in dict.fromkeys(ranking.match for ranking in ranked if ranking.blind is None))
    if not ways:
        whys = dict.fromkeys(WHY[ranking.blind].format(control=baseline) for ranking in ranked if ranking.blind)
        return f"Under no way of matching does an order mean anything: {'; '.join(whys)}."
    return f"{'; '.join(told)}." if told else f"no two variants surely change places between cells {ways}."


def _of_measure(frame: DataFrame, measure: Measure, baseline: str) -> list[Table]:
    ranked = rankings(asked(frame, measure), measure, baseline)
    if not ranked:
        return []
    apart = _apart(ranked)
    shown = DataFrame([{**_at(r, apart), "match": r.match, "order": _order(r, measure, baseline)} for r in ranked])
    data = DataFrame([row for ranking in ranked for row in _rows(ranking, apart, measure)])
    made = [Table(f"matching_{measure.name}", f"Order by {measure.name}", shown, data, RULES[measure.name])]
    if found := flips(ranked, measure):
        changed = DataFrame([_flipped(flip, apart) for flip in found])
        made.append(Table(f"flips_{measure.name}", f"Pairs that change places by {measure.name}", changed, changed))
    return made


def _apart(ranked: Sequence[Ranking]) -> list[str]:
    """The settings in which rankings differ, other than the way of matching."""
    names = dict.fromkeys(name for ranking in ranked for name in ranking.settings if name != "match")
    return [name for name in names if len({str(ranking.settings.get(name)) for ranking in ranked}) > 1]


def _at(found: Ranking | Flip, apart: Sequence[str]) -> dict[str, Any]:
    return {**{name: found.settings.get(name) for name in apart}, "d_model": found.d_model, "T": found.T}


def _order(ranking: Ranking, measure: Measure, baseline: str) -> str:
    """ "fused 0.995 > linear 0.912 ~ window 0.905; gru: unsupported"."""
    if ranking.blind is not None:
        return f"not ranked: {WHY[ranking.blind].format(control=baseline)}"
    texts = [f"{score.label} {_value(score, measure)}" for score in ranking.scores]
    signs = [" > " if ahead(*pair, MARGINS[measure.name]) else " ~ " for pair in pairwise(ranking.scores)]
    order = "".join(part for both in zip(texts, [*signs, ""], strict=False) for part in both)
    return "; ".join([*([order] if order else []), *(f"{label}: {why}" for label, why in ranking.absent.items())])


def _value(score: Score, measure: Measure) -> str:
    return words.scaled(score.value, words.TIME_UNITS) if measure is TIME else words.share(score.value)


def _rows(ranking: Ranking, apart: Sequence[str], measure: Measure) -> list[dict[str, Any]]:
    """One row per variant, the best first; those without a value last, with their status."""
    head: dict[str, Any] = {**_at(ranking, apart), "match": ranking.match}
    known: list[tuple[str, float | None, str]] = [(score.label, score.value, "ok") for score in ranking.scores]
    known += [(label, None, why) for label, why in ranking.absent.items()]
    return [{**head, "variant": label, measure.column: value, "status": why} for label, value, why in known]


def _flipped(flip: Flip, apart: Sequence[str]) -> dict[str, Any]:
    both = {"variant": flip.first, "other": flip.second}
    return _at(flip, apart) | both | {"ahead": ", ".join(flip.ahead), "behind": ", ".join(flip.behind)}


def _told(flip: Flip, apart: Sequence[str]) -> str:
    """One flip in words, with the place."""
    leads, trails = (" and ".join(WAYS[way] for way in ways) for ways in (flip.ahead, flip.behind))
    place = ", ".join([words.settings(flip.settings, tuple(apart)), f"d = {flip.d_model}", f"T = {flip.T}"]).lstrip(
        ", "
    )
    return f"{flip.first} is ahead of {flip.second} {leads} and behind it {trails} ({place})"

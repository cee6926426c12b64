"""How surely, how soon and with how much tuning each variant learns: figures over the seeds and trials of one group.

A seed whose every trial diverged has no accuracy: the mean is over the others, and it counts as one that has not
solved the task. A diverged trial counts as an accuracy of 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame

from attnbench.analyse.chance import at_chance
from attnbench.analyse.points import ACCURACY, POINT, good, points
from attnbench.analyse.seeds import difference, interval
from attnbench.protocol import LEARNED, best_of, steps_to_learn, working_range

Key = tuple[str, int, int]  # label, d_model, T
Trials = Sequence[Mapping[str, Any]]  # of one seed
Why = Literal["no control", "no score", "at floor", "no room"]


class Steps(NamedTuple):
    """Steps to LEARNED, the median over seeds; more than this where `more`. n_censored of n seeds never learnt it."""

    median: float
    more: bool
    n_censored: int
    n: int


class Rates(NamedTuple):
    """The learning rates that work: low to high, NaN where none does. tried: all of them, ascending."""

    low: float
    high: float
    tried: tuple[float, ...]


def learning(frame: DataFrame, control: str) -> DataFrame:
    """One row per variant at each d_model and T of one group, the control first; columns as the functions below name.

    accuracy, accuracy_low, accuracy_high: the mean over n_seeds and its 95 % interval of Student's t, cut to 0 to 1;
    none for one seed. n_solved: of n_trained seeds, those with at least LEARNED of the ceiling. above_floor: whether
    guessing does worse, None where that is unknown. rank, rank_worst: see `ranks`. status: "ok", or why there is none.
    """
    guessing, ranked, rows = at_chance(frame), ranks(frame, control), []
    for key, cells in _by_point(frame):
        best, worst = ranked.get(key, (None, None))
        told = {"above_floor": _above(key, cells, guessing), "rank": best, "rank_worst": worst}
        rows.append(dict(zip(POINT, key, strict=True)) | _scores(cells) | told | _tuning(cells))
    found = (
        DataFrame(rows)
        .astype({"rank": "Int64", "rank_worst": "Int64"})
        .merge(points(frame, ACCURACY)[[*POINT, "n_cells", "status"]], on=POINT)
    )
    place = {label: (label != control, i) for i, label in enumerate(dict.fromkeys(frame["label"]))}
    order = sorted(found.index, key=lambda i: (*found.loc[i, ["d_model", "T"]], *place[found.loc[i, "label"]]))
    return found.loc[order].reset_index(drop=True)


def unranked(frame: DataFrame, control: str) -> dict[tuple[int, int], Why]:
    """The (d_model, T) of one group at which nothing follows from an order of its variants, and why.

    The control is missing, has no score, or is not above guessing; or the task's exact solver is not either.
    """
    guessing, found = at_chance(frame), dict[tuple[int, int], Why]()
    for (d_model, T), part in frame.groupby(["d_model", "T"], sort=False):
        control_cells = part[part["label"] == control]
        if control_cells.empty:
            found[d_model, T] = "no control"
        elif (part["ceiling"].astype(float) <= _guess(part)).any():
            found[d_model, T] = "no room"
        elif good(control_cells["accuracy"], positive=False).isna().all():
            found[d_model, T] = "no score"
        elif (control, d_model, T) in guessing:
            found[d_model, T] = "at floor"
    return found


def ranks(frame: DataFrame, control: str) -> dict[Key, tuple[int, int]]:
    """The best and the worst rank that a variant may have: 1 and how many are surely, and may be, better.

    By Welch's interval of 95 %; two that solved every seed are equal.

    Only variants above guessing with a score for each of two seeds or more have one, and none where it is `unranked`.
    """
    silent, guessing = unranked(frame, control), at_chance(frame)
    places = dict[tuple[int, int], dict[str, DataFrame]]()
    for key, cells in _by_point(frame):
        scored = len(cells) > 1 and good(cells["accuracy"], positive=False).notna().all()
        if scored and key not in guessing and key[1:] not in silent:
            places.setdefault(key[1:], {})[key[0]] = cells
    return {
        (label, d_model, T): _rank(cells, [other for name, other in of_place.items() if name != label])
        for (d_model, T), of_place in places.items()
        for label, cells in of_place.items()
    }


def best_by_n(frame: DataFrame) -> DataFrame:
    """The validation accuracy to expect of the best of n trials: label, d_model, T, n, accuracy and its ends, n_seeds.

    The mean over seeds, and their range where there are several; see `protocol.best_of`. Points of one trial are left
    out.
    """
    rows = []
    for key, cells in _by_point(frame):
        seeds = [[trial["validation_accuracy"] for trial in trials] for trials in _trials(cells) if trials]
        n_trials = min(map(len, seeds), default=0)
        for n in range(1, n_trials + 1) if n_trials > 1 else ():
            best = [best_of(accuracies, n) for accuracies in seeds]
            ends = (min(best), max(best)) if len(best) > 1 else (math.nan, math.nan)
            rows.append((*key, n, statistics.fmean(best), *ends, len(best)))
    return DataFrame(rows, columns=[*POINT, "n", "accuracy", "accuracy_low", "accuracy_high", "n_seeds"])


def curves(frame: DataFrame) -> DataFrame:
    """Validation accuracy of each seed's chosen trial wherever it was looked at: label, d_model, T, seed, x, value.

    x: the step. A trial that ended early keeps its last accuracy up to the last step of its place, d_model and T.
    """
    rows = [
        (*key, seed, step, accuracy)
        for key, cells in _by_point(frame)
        for seed, trials in zip(cells["seed"], cells["trials"], strict=True)
        if isinstance(trials, list) and (best := chosen(trials))
        for step, accuracy, *_ in best["curve"]
    ]
    found = DataFrame(rows, columns=[*POINT, "seed", "x", "value"])
    parts = [_prolonged(part) for _, part in found.groupby(["d_model", "T"], sort=False)]
    return pd.concat(parts, ignore_index=True) if parts else found


def chosen(trials: Trials) -> Mapping[str, Any] | None:
    """The trial that is scored on test data: best on validation data, ties by lower loss. None: all diverged."""
    kept = [trial for trial in trials if not trial["diverged"]]
    return max(kept, key=lambda trial: (trial["validation_accuracy"], -trial["validation_loss"]), default=None)


def steps(seeds: Sequence[Trials]) -> Steps:
    """Of the chosen trials. A censored seed counts as more than the steps it was given; of a diverged one, than any."""
    most = max((trial["steps"] for trials in seeds for trial in trials), default=0)
    ends = []
    for trials in seeds:
        best = chosen(trials)
        learnt = best and steps_to_learn(best["curve"])
        ends.append((learnt is None, learnt or (best["steps"] if best else most)))
    ends.sort()
    middle = ends[(len(ends) - 1) // 2 : len(ends) // 2 + 1]
    median = statistics.fmean(end for _, end in middle) if middle else math.nan
    return Steps(median, any(more for more, _ in middle), sum(more for more, _ in ends), len(ends))


def rates(seeds: Sequence[Trials]) -> Rates:
    """A learning rate works when its best trials reach LEARNED on validation data, in the mean over seeds."""
    best: dict[float, list[float]] = {}
    for trials in seeds:
        of_seed: dict[float, float] = {}
        for trial in trials:
            of_seed[trial["lr"]] = max(of_seed.get(trial["lr"], 0.0), trial["validation_accuracy"] or 0.0)
        for lr, accuracy in of_seed.items():
            best.setdefault(lr, []).append(accuracy)
    pooled = [{"lr": lr, "validation_accuracy": statistics.fmean(found)} for lr, found in best.items()]
    low, high = working_range(pooled) or (math.nan, math.nan)
    return Rates(low, high, tuple(sorted(best)))


def _by_point(frame: DataFrame) -> list[tuple[Key, DataFrame]]:
    return [(key, cells) for key, cells in frame.groupby(POINT, sort=False)]


def _trials(cells: DataFrame) -> list[Trials]:
    """Of each seed that was trained: none, [], of one whose pretraining diverged before any trial of its own."""
    found = (trials if isinstance(trials, list) else [] for trials in cells["trials"])
    return [trials for trials, status in zip(found, cells["status"], strict=True) if trials or status == "diverged"]


def _scores(cells: DataFrame) -> dict[str, Any]:
    """Accuracy over seeds."""
    scores = good(cells["accuracy"], positive=False).dropna().tolist()
    found = interval(scores) if scores else None
    low, high = np.clip([found.low, found.high], 0, 1) if found else (math.nan, math.nan)
    return {
        "accuracy": found.mean if found else math.nan,
        "accuracy_low": low,
        "accuracy_high": high,
        "n_seeds": len(scores),
        "n_trained": len(scores) + int((cells["status"] == "diverged").sum()),
        "n_solved": int(_solved(cells).sum()),
    }


def _tuning(cells: DataFrame) -> dict[str, Any]:
    """What the trials say, and the task's and the protocol's facts."""
    seeds = _trials(cells)
    soon, works = steps(seeds), rates(seeds)
    facts = {name: _first(cells, name) for name in ("chance", "floor", "ceiling", "rule", "quick")}
    return {
        "steps_to_learn": soon.median,
        "steps_are_more": soon.more,
        "n_censored": soon.n_censored,
        "n_trials": sum(map(len, seeds)),
        "n_tried": sum(map(bool, seeds)),
        "n_diverged": sum(trial["diverged"] for trials in seeds for trial in trials),
        "lr_low": works.low,
        "lr_high": works.high,
        "lr_decades": math.log10(works.high / works.low),
        "lr_tried": list(works.tried),
        "lr_decades_tried": math.log10(works.tried[-1] / works.tried[0]) if works.tried else math.nan,
    } | facts


def _first(cells: DataFrame, name: str) -> Any:
    known = cells[name].dropna()
    return known.iloc[0] if len(known) else None


def _guess(cells: DataFrame) -> pd.Series:
    return cells[["chance", "floor"]].astype(float).max(axis=1)


def _above(key: Key, cells: DataFrame, guessing: set[Key]) -> bool | None:
    """Whether it is above guessing; None without a score, or without anything to compare it with."""
    known = cells[["accuracy", "n_scored", "n_test"]].notna().all(axis=1) & _guess(cells).notna()
    return key not in guessing if known.any() else None


def _solved(cells: DataFrame) -> pd.Series:
    """Which cells reach LEARNED of what the exact solver scores."""
    return good(cells["accuracy"], positive=False) >= LEARNED * cells["ceiling"].astype(float).fillna(1.0)


def _rank(cells: DataFrame, others: Sequence[DataFrame]) -> tuple[int, int]:
    """Two variants that solve the task with every seed are equally good."""
    rivals = [other for other in others if not (_solved(other).all() and _solved(cells).all())]
    ahead = [difference(other["accuracy"].tolist(), cells["accuracy"].tolist()) for other in rivals]
    return 1 + sum(interval.low > 0 for interval in ahead), 1 + sum(interval.high > 0 for interval in ahead)


def _prolonged(curves: DataFrame) -> DataFrame:
    """Curves of one place at the steps of all of them, each with its last accuracy behind its own end."""
    wide = curves.pivot_table(index="x", columns=["label", "seed"], values="value", sort=False).sort_index().ffill()
    long = wide.melt(ignore_index=False).reset_index().dropna()
    return long.assign(d_model=curves["d_model"].iloc[0], T=curves["T"].iloc[0])[list(curves.columns)]

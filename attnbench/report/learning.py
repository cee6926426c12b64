"""How surely, how soon and with how much tuning variants learn, as tables. The pictures are in `figures`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
from pandas import DataFrame

from attnbench.analyse.learning import Why, best_by_n, learning, unranked
from attnbench.analyse.points import ACCURACY, Group, asked, groups
from attnbench.protocol import LEARNED
from attnbench.report import notes, words
from attnbench.report.tables import AT_CHANCE, NOT_ASKED, for_csv, spread
from attnbench.report.writers import Table

STEPS, RATES, UNRANKED = f"steps to {LEARNED:g}", "learning rates that work", "not ranked"
HEADS = ("d_model", "T", "variant", "rank", "accuracy", "solved", STEPS, "trials per seed", "diverged", RATES)
WHY: Mapping[Why, str] = {
    "no control": "{control}, the control, is not among the cells",
    "no score": "{control}, the control, has no score",
    "at floor": "{control}, the control, has learned nothing",
    "no room": "the exact solver does no better than guessing",
}
NOTES = (
    "accuracy: mean over seeds on test data with Student's interval of 95 %, none for one seed",
    f"solved: seeds with at least {LEARNED:g} of what the exact solver scores",
    f"{STEPS}: median over seeds on validation data; one that never got there took more than it was given",
    f"{RATES}: {LEARNED:g} on validation data in the mean over seeds, at the rates that were tried",
)
RANKED = (
    "rank: from 1 and how many variants are surely better to 1 and how many may be (Welch's interval of 95 %; variants "
    "that every seed solves are equal); "
    f"none for what is {AT_CHANCE}, or has no two seeds or not a score for each"
)
BEST = (
    "accuracy on validation data to expect of the best of n trials, drawn from those that were run: mean over seeds, "
    "from the lowest to the highest; a diverged trial counts as 0"
)


def tables(frame: DataFrame, baseline: str) -> list[Table]:
    """Of each group of trained cells, what learning took and, where trials are several, the best of n of them."""
    made = [table for group in groups(asked(frame, ACCURACY)) for table in _tables(group, baseline)]
    names = words.distinct(table.name for table in made)
    return [replace(table, name=name) for table, name in zip(made, names, strict=True)]


def _tables(group: Group, baseline: str) -> Iterator[Table]:
    found, silent = learning(group.frame, baseline), unranked(group.frame, baseline)
    places = list(zip(found["d_model"], found["T"], strict=True))
    shown = DataFrame([_row(point) for point in found.itertuples()], columns=list(HEADS), dtype="object")
    shown.loc[[place in silent for place in places], "rank"] = UNRANKED
    title = words.title("learning", group.settings)
    data = for_csv(found.assign(not_ranked=[silent.get(place) for place in places]), group, ACCURACY)
    note = "; ".join(_notes(group, found, silent, baseline))
    yield Table(words.file_name("learning", group.settings, group.differs), title, shown, data, note)
    best = best_by_n(group.frame)
    if len(best):
        best = best.loc[(best["label"] != baseline).sort_values(kind="stable").index]
        name = words.file_name("learning_best_of_n", group.settings, group.differs)
        yield Table(name, f"Best of n trials: {title}", _best(best), for_csv(best, group, ACCURACY), BEST)


def _row(point: Any) -> list[str]:
    """One variant at one place, in the order of HEADS."""
    return [
        str(point.d_model),
        str(point.T),
        point.label,
        NOT_ASKED if pd.isna(point.rank) else "–".join(dict.fromkeys((str(point.rank), str(point.rank_worst)))),
        _accuracy(point),
        f"{point.n_solved} of {point.n_trained}" if point.n_trained else NOT_ASKED,
        _steps(point) if point.n_trials else NOT_ASKED,
        f"{point.n_trials / point.n_tried:.3g}{' (quick)' if point.quick else ''}" if point.n_trials else NOT_ASKED,
        f"{point.n_diverged} of {point.n_trials}" if point.n_trials else NOT_ASKED,
        _rates(point) if point.n_trials else NOT_ASKED,
    ]


def _accuracy(point: Any) -> str:
    """ "0.984 [0.951, 1.000], not above chance", or why there is none."""
    if not point.n_seeds:
        return str(point.status)
    text = words.share(point.accuracy, point.accuracy_low, point.accuracy_high)
    text += f" ({point.n_seeds} of {point.n_cells} seeds)" if point.n_seeds < point.n_cells else ""
    return f"{text}, {AT_CHANCE}" if point.above_floor is False else text


def _steps(point: Any) -> str:
    """ "350", or "> 1000 (2 of 3 never)" where that many seeds did not get there."""
    text = f"{'> ' if point.steps_are_more else ''}{words.whole(point.steps_to_learn)}"
    return f"{text} ({point.n_censored} of {point.n_trained} never)" if point.n_censored else text


def _rates(point: Any) -> str:
    """ "0.001 to 0.01 (1.0 of 1.5 decades)", "0.003 alone (of 4)", "none of 4"."""
    n_tried = len(point.lr_tried)
    if pd.isna(point.lr_low):
        return f"none of {n_tried}"
    if point.lr_low == point.lr_high:
        return f"{point.lr_low:.3g} alone (of {n_tried})" if n_tried > 1 else f"{point.lr_low:.3g}, the one tried"
    width = f"{point.lr_decades:.1f} of {point.lr_decades_tried:.1f} decades"
    return f"{point.lr_low:.3g} to {point.lr_high:.3g} ({width})"


def _best(best: DataFrame) -> DataFrame:
    """Variant × n."""
    texts = [words.share(point.accuracy, point.accuracy_low, point.accuracy_high) for point in best.itertuples()]
    return spread(best.assign(text=texts), ["d_model", "T", "label"], "n")


def _notes(group: Group, found: DataFrame, silent: Mapping[tuple[int, int], Why], baseline: str) -> Iterator[str]:
    """What the table leaves out first, then what its columns are."""
    for why in dict.fromkeys(silent.values()):
        places = ", ".join(f"T = {T}, d = {d}" for (d, T), one in silent.items() if one == why)
        yield f"{UNRANKED} at {places}: {WHY[why].format(control=baseline)}"
    yield notes.measured(group.frame, ACCURACY)
    yield from NOTES
    if found["rank"].notna().any():
        yield RANKED
    yield from (f"chosen by: {rule}" for rule in found["rule"].dropna().unique())

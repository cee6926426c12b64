"""How far learning goes beyond training: T_train × T_test, and more of an option (pairs, say) than in training.

From the column `tested` of cells with `test_at`, and from their own score, which is a place like the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pandas import DataFrame

from attnbench.analyse.points import ACCURACY, APART, POINT, asked, free_settings

PLACE = [*POINT, "T_test", "options"]
COLUMNS = [*PLACE, "n_changed", "option", "level", "trained_level", "seed", "accuracy", "chance", "floor", "reason"]


def parts(frame: DataFrame) -> list[DataFrame]:
    """The cells of each task that were scored elsewhere too, with labels that say what else tells their lines apart.

    Unlike `points.groups`, cells that differ in positions, say, stay together: those are what is compared here.
    """
    scored = asked(frame, ACCURACY)
    split = [part for _, part in scored.groupby(list(APART), dropna=False, sort=False)] if len(scored) else []
    return [_labelled(part) for part in split if part["tested"].map(_is_list).any()]


def long(part: DataFrame) -> DataFrame:
    """One row per cell and place: label, d_model, T (trained), T_test, options, …, seed, accuracy, chance, floor.

    part: one of `parts`. options: those that differ from training, "n_pairs=16", else "". Where that is one number,
    option, level and trained_level are its name and its values there and in training; n_changed counts them all.
    reason: why there is no accuracy. A cell that failed has a row without one at each place of its other seeds.
    """
    cells = part.to_dict("records")
    known = {_point(cell): cell["tested"] for cell in cells if _is_list(cell["tested"])}
    rows = [row for cell in cells for row in _rows(cell, known.get(_point(cell), []))]
    return DataFrame(rows, columns=COLUMNS).drop_duplicates([*PLACE, "seed"], ignore_index=True)


def places(part: DataFrame) -> DataFrame:
    """One row per label, d_model, T, T_test and options: accuracy (mean over seeds), its range, n_good of n_cells.

    low, high: the range, NaN for one seed. reason: of those without an accuracy, where none has one.
    """
    rows = long(part)
    kept = {name: (name, "first") for name in ("n_changed", "option", "level", "trained_level", "chance", "floor")}
    found = (
        rows.groupby(PLACE, sort=False, dropna=False)
        .agg(
            **kept,
            value=("accuracy", "mean"),
            low=("accuracy", "min"),
            high=("accuracy", "max"),
            n_good=("accuracy", "count"),
            n_cells=("accuracy", "size"),
            reason=("reason", "first"),
        )
        .reset_index()
    )
    found.loc[found["n_good"] < 2, ["low", "high"]] = np.nan
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _labelled(part: DataFrame) -> DataFrame:
    """Labels with the settings that take several values for one and the same label: "fused[positions=none]"."""
    labels = part["label"].copy()
    for label, own in part.groupby("label", sort=False):
        if free := free_settings(own):
            told = [", ".join(f"{name}={row[name]}" for name in free) for row in own[free].to_dict("records")]
            head, bracket, tail = str(label).partition("[")
            labels.loc[own.index] = [f"{head}[{text}{f', {tail}' if bracket else ']'}" for text in told]
    return part.assign(label=labels)


def _point(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(cell[name] for name in (*POINT, "task_options"))


def _rows(cell: Mapping[str, Any], known: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The cell's own place, and those of `tested`; of a cell without them, the places known of its other seeds."""
    trained = json.loads(cell["task_options"]) if isinstance(cell["task_options"], str) else {}
    own = {name: cell[name] for name in (*POINT, "seed", "accuracy", "chance", "floor")}
    scored = isinstance(cell["accuracy"], int | float) and np.isfinite(cell["accuracy"])
    why = None if scored else f"{cell['status']}: {cell['reason']}"
    yield own | _changes({}, trained) | {"T_test": cell["T"], "reason": why}
    was_tested = _is_list(cell["tested"])
    for place in cell["tested"] if was_tested else known:
        given = {name: place.get(name) for name in ("accuracy", "chance", "floor", "reason")}
        given |= {} if was_tested else {"accuracy": None, "reason": why}
        yield own | given | _changes(place["options"], trained) | {"T_test": place["T"]}


def _changes(options: Mapping[str, Any], trained: Mapping[str, Any]) -> dict[str, Any]:
    """What the options of a place change of those that were trained on."""
    changed = {name: value for name, value in options.items() if trained.get(name) != value}
    text = ", ".join(f"{name}={value}" for name, value in changed.items())
    told: dict[str, Any] = {"options": text, "n_changed": len(changed)}
    if len(changed) == 1:
        ((name, value),) = changed.items()
        numbers = all(isinstance(one, int | float) for one in (value, trained.get(name)))
        told |= {"option": name, "level": value, "trained_level": trained[name]} if numbers else {}
    return told

"""The data of two figures of crossovers: T* against the width d, and T*/d against the batch size B.

Beside what was measured stands what counting operations says: where both variants execute equally many, and where
their mixing alone does, as the variants' own formulas have it at the measured sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pandas as pd
from pandas import DataFrame

from attnbench.analyse.bisection import located
from attnbench.analyse.compare import verdicts
from attnbench.analyse.crossover import Crossover, crossovers
from attnbench.analyse.points import TIME, Group, Measure, points

DIAGONAL = "T = d"
BY_OPERATIONS = {"flops": "equal operations", "flops_core": "equal operations of mixing alone"}
Row = tuple[object, ...]
COLUMNS = ["label", "facet", "x", "x_text", "value", "low", "high"]


class Lines(NamedTuple):
    """What `curves.curves` draws: points and lines of reference. n_other: places with no crossover, or with several."""

    points: DataFrame
    references: DataFrame
    n_other: int


def over_width(group: Group, baseline: str) -> Lines | None:
    """T* over d, one facet per variant; None where none has a crossover at two widths or more."""
    found = _found(group, baseline)
    several = _labels_with_two([(one.label, one.d_model) for one in found if len(one.crossings) == 1])
    found = [one for one in found if one.label in several]
    if not found:
        return None
    rows: list[Row] = [(one.label, one.label, one.d_model, str(one.d_model), *_place(one, 1)) for one in found]
    lines: list[Row] = [(DIAGONAL, one.label, one.d_model, one.d_model) for one in found]
    for column, name in BY_OPERATIONS.items():
        lines += [(name, *where) for where in _by_operations(group, baseline, column) if where[0] in several]
    return _lines(rows, lines, found)


def over_batch(parts: Iterable[Group], baseline: str) -> Lines | None:
    """T*/d over B, one facet per d_model, of groups that differ in B alone; None without two B for a variant."""
    found = [(int(group.settings["B"]), one) for group in parts for one in _found(group, baseline)]
    several = _labels_with_two([((one.label, one.d_model), B) for B, one in found if len(one.crossings) == 1])
    found = [(B, one) for B, one in found if (one.label, one.d_model) in several]
    if not found:
        return None
    found.sort(key=lambda pair: pair[1].d_model)
    rows: list[Row] = [(one.label, f"d = {one.d_model}", B, str(B), *_place(one, one.d_model)) for B, one in found]
    lines: list[Row] = [(DIAGONAL, f"d = {one.d_model}", B, 1.0) for B, one in found]
    return _lines(rows, lines, [one for _, one in found])


def _found(group: Group, baseline: str) -> list[Crossover]:
    return located(verdicts(points(group.frame, TIME), baseline))


def _labels_with_two(pairs: Sequence[tuple[object, int]]) -> set[object]:
    """The first of each pair that stands with two different sizes or more."""
    sizes: dict[object, set[int]] = {}
    for key, size in pairs:
        sizes.setdefault(key, set()).add(size)
    return {key for key, known in sizes.items() if len(known) > 1}


def _place(one: Crossover, unit: float) -> tuple[float, float, float]:
    """T* with its interval, in a unit; NaN where there is no one crossover."""
    if len(one.crossings) != 1:
        return float("nan"), float("nan"), float("nan")
    at = one.crossings[0]
    return at.T / unit, at.low / unit, at.high / unit


def _by_operations(group: Group, baseline: str, column: str) -> list[tuple[str, int, float]]:
    """Label, d_model and T where a variant and the baseline count equally many operations, in the measured range."""
    counted = points(group.frame, Measure(column, column))
    return [
        (one.label, one.d_model, one.crossings[0].T)
        for one in crossovers(verdicts(counted, baseline))
        if len(one.crossings) == 1
    ]


def _lines(rows: list[Row], lines: list[Row], found: Sequence[Crossover]) -> Lines:
    """What is drawn: crossings, lines of reference in their order, and how many places have no crossing or several."""
    references = DataFrame(lines, columns=["name", "facet", "x", "value"]).drop_duplicates()
    references = references.astype({"x": float, "value": float}).sort_values("x", kind="stable")
    drawn = DataFrame(rows, columns=COLUMNS).astype({"x": float})
    order = pd.Categorical(references["name"], [DIAGONAL, *BY_OPERATIONS.values()])
    references = references.assign(order=order).sort_values(["order", "x"], kind="stable").drop(columns="order")
    return Lines(drawn, references, sum(len(one.crossings) != 1 for one in found))

"""Ratios to a baseline, and the T at which a variant and the baseline change places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from pandas import DataFrame

Side = Literal["below", "above"]
ROUNDING = 1e-12  # logs of ratios smaller than this are a ratio of 1


@dataclass(frozen=True)
class Crossing:
    """The T at which a ratio passes through 1.

    to: on which side of 1 the ratio is beyond T. low, high: between these T the intervals of both sides overlap;
    infinite where they still do at the end of the measured range, NaN without intervals.
    """

    T: float
    to: Side
    low: float = np.nan
    high: float = np.nan


@dataclass(frozen=True)
class Crossover:
    """One variant against the baseline at one d_model.

    crossings: ascending, all inside the measured range T_min to T_max, which holds n_sizes common sizes.
    side: where the ratio is when it never passes through 1; None when it does, or when it is 1 everywhere.
    """

    label: str
    d_model: int
    crossings: tuple[Crossing, ...]
    side: Side | None
    n_sizes: int
    T_min: float
    T_max: float


def ratios(points: DataFrame, baseline: str, at: Sequence[str] = ("d_model", "T")) -> DataFrame:
    """The points of all other labels, with ratio = value / the baseline's value at the same d_model and T (or `at`).

    ratio_low, ratio_high: the widest range that both intervals allow. Where the baseline alone is missing, status is
    "no baseline".
    """
    base = points.loc[points["label"] == baseline, [*at, "value", "low", "high"]]
    others = points[points["label"] != baseline]
    joined = others.merge(base, how="left", on=list(at), suffixes=("", "_base"))
    joined["ratio"] = joined["value"] / joined["value_base"]
    joined["ratio_low"] = joined["low"] / joined["high_base"]
    joined["ratio_high"] = joined["high"] / joined["low_base"]
    joined.loc[joined["value"].notna() & joined["value_base"].isna(), "status"] = "no baseline"
    return joined.drop(columns=["value_base", "low_base", "high_base"])


def crossings(
    T: ArrayLike, ratio: ArrayLike, low: ArrayLike | None = None, high: ArrayLike | None = None
) -> tuple[Crossing, ...]:
    """Where `ratio` over T passes through 1, by straight lines in log T and log ratio between measured neighbours.

    low, high: bounds of the ratio. Points without a positive, finite ratio are left out. Nothing is extrapolated.
    """
    sizes, middle = np.asarray(T, dtype=float), _log(ratio)
    found = _sign_changes(sizes, middle)
    if low is None or high is None or not np.isfinite(_log(low) + _log(high))[np.isfinite(middle)].all():
        return tuple(Crossing(at, to) for at, to in found)
    below, above = _sign_changes(sizes, _log(low)), _sign_changes(sizes, _log(high))
    return tuple(_bounded(at, to, *((below, above) if to == "below" else (above, below))) for at, to in found)


def crossovers(points: DataFrame, baseline: str) -> list[Crossover]:
    """Every other label against the baseline, per d_model, in the order of the points; none without a baseline."""
    if baseline not in set(points["label"]):
        return []
    parts = ratios(points, baseline).groupby(["label", "d_model"], sort=False)
    return [_crossover(label, d_model, part.sort_values("T")) for (label, d_model), part in parts]


def _crossover(label: str, d_model: int, part: DataFrame) -> Crossover:
    part = part[part["ratio"].notna()]
    found = crossings(part["T"], part["ratio"], part["ratio_low"], part["ratio_high"])
    sides = np.unique(np.sign(_log(part["ratio"])))
    off_one = sides[sides != 0]
    side: Side | None = None if found or len(off_one) != 1 else "above" if off_one[0] > 0 else "below"
    return Crossover(label, d_model, found, side, len(part), part["T"].min(), part["T"].max())


def _log(ratio: ArrayLike) -> np.ndarray:
    """Natural logs; NaN where there is none, 0 where the ratio is 1 to rounding."""
    values = np.asarray(ratio, dtype=float)
    logs = np.log(np.where(values > 0, values, np.nan))
    return np.where(np.abs(logs) < ROUNDING, 0.0, np.where(np.isfinite(logs), logs, np.nan))


def _sign_changes(T: np.ndarray, r: np.ndarray) -> list[tuple[float, Side]]:
    """Where r goes from one sign to the other, T ascending; a stretch at 0 counts as its first T."""
    order = [i for i in np.argsort(T, kind="stable") if np.isfinite(r[i])]
    off = [i for i in range(len(order)) if r[order[i]] != 0]
    changes: list[tuple[float, Side]] = []
    for i, j in pairwise(off):
        a, b = order[i], order[j]
        if np.sign(r[a]) == np.sign(r[b]):
            continue
        at = T[order[i + 1]] if j > i + 1 else np.exp(np.interp(0, *_rising(r[a], r[b], np.log(T[a]), np.log(T[b]))))
        changes.append((float(at), "above" if r[b] > 0 else "below"))
    return changes


def _rising(r_a: float, r_b: float, x_a: float, x_b: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The two points with r ascending, as np.interp wants them."""
    return ((r_a, r_b), (x_a, x_b)) if r_a < r_b else ((r_b, r_a), (x_b, x_a))


def _bounded(at: float, to: Side, first: list[tuple[float, Side]], last: list[tuple[float, Side]]) -> Crossing:
    """A crossing with its interval: `first` is the bound that passes through 1 before the ratio does."""
    slack = 1 + 1e-9
    before = [T for T, side in first if side == to and at * slack >= T]
    after = [T for T, side in last if side == to and T * slack >= at]
    return Crossing(at, to, max(before, default=-np.inf), min(after, default=np.inf))

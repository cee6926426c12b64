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
MARGIN = 0.03  # a ratio nearer to 1 than this share is never called different, however narrow its interval
ROUNDING = 1e-12  # logs of ratios smaller than this are a ratio of 1


@dataclass(frozen=True)
class Crossing:
    """The T at which a ratio passes through 1.

    to: on which side of 1 the ratio is beyond T. low, high: between these T the intervals of both sides overlap; NaN
    without intervals.
    """

    T: float
    to: Side
    low: float = np.nan
    high: float = np.nan


@dataclass(frozen=True)
class Crossover:
    """One variant against the baseline at one d_model.

    crossings: ascending, all inside the measured range T_min to T_max, which holds n_sizes common sizes.
    side: where the ratio is when it never passes through 1; None when it does, or when it differs from 1 nowhere.
    n_same: at how many of the sizes it does not differ from 1. ratio: of a single size, NaN for several.
    """

    label: str
    d_model: int
    crossings: tuple[Crossing, ...]
    side: Side | None
    n_sizes: int
    n_same: int
    T_min: float
    T_max: float
    ratio: float = np.nan


def sides(ratio: ArrayLike, low: ArrayLike | None = None, high: ArrayLike | None = None) -> np.ndarray:
    """On which side of 1 each ratio is: -1.0 below, 1.0 above, 0.0 the same, NaN without a positive, finite ratio.

    The same is what differs from 1 by less than MARGIN, or has 1 in its interval. A bound that is missing excludes
    nothing.
    """
    middle = _log(ratio)
    side = np.where(np.abs(middle) > np.log1p(MARGIN), np.sign(middle), np.where(np.isnan(middle), np.nan, 0.0))
    if low is None or high is None:
        return side
    holds_one = (np.asarray(low, dtype=float) <= 1) & (np.asarray(high, dtype=float) >= 1)
    return np.where(holds_one & ~np.isnan(middle), 0.0, side)


def ratios(points: DataFrame, baseline: str, at: Sequence[str] = ("d_model", "T")) -> DataFrame:
    """The points of all other labels, with ratio = value / the baseline's value at the same d_model and T (or `at`).

    ratio_low, ratio_high: the widest range that both intervals allow. side: as in `sides`. Where the baseline alone is
    missing, status is "no baseline".
    """
    base = points.loc[points["label"] == baseline, [*at, "value", "low", "high"]]
    others = points[points["label"] != baseline]
    joined = others.merge(base, how="left", on=list(at), suffixes=("", "_base"))
    joined["ratio"] = joined["value"] / joined["value_base"]
    joined["ratio_low"] = joined["low"] / joined["high_base"]
    joined["ratio_high"] = joined["high"] / joined["low_base"]
    joined["side"] = sides(joined["ratio"], joined["ratio_low"], joined["ratio_high"])
    joined.loc[joined["value"].notna() & joined["value_base"].isna(), "status"] = "no baseline"
    return joined.drop(columns=["value_base", "low_base", "high_base"])


def crossings(
    T: ArrayLike, ratio: ArrayLike, low: ArrayLike | None = None, high: ArrayLike | None = None
) -> tuple[Crossing, ...]:
    """Where `ratio` over T passes through 1, by straight lines in log T and log ratio between measured neighbours.

    low, high: bounds of the ratio. A crossing lies between a size where the ratio differs from 1 and the next one where
    it differs to the other side, see `sides`; where noise makes it cross several times between the two, the middle one
    counts. Points without a positive, finite ratio are left out. Nothing is extrapolated.
    """
    sizes, middle, side = np.asarray(T, dtype=float), _log(ratio), sides(ratio, low, high)
    order = [i for i in np.argsort(sizes, kind="stable") if np.isfinite(middle[i])]
    differing = [place for place, i in enumerate(order) if side[i] != 0]
    spans = [order[a : b + 1] for a, b in pairwise(differing) if side[order[a]] != side[order[b]]]
    bounds = None if low is None or high is None else (_log(low), _log(high))
    return tuple(_crossing(sizes[span], middle[span], bounds and (bounds[0][span], bounds[1][span])) for span in spans)


def noise(side: np.ndarray) -> np.ndarray:
    """Which cells of a plane are noise around 1: the same, and not between two that differ to different sides.

    side: (n_d, n_T), as `sides` gives them. Between: along a row or a column, over other cells that are the same
    but over none that is missing.
    """
    differing = DataFrame(np.where(np.isnan(side), 0.0, np.where(side == 0, np.nan, side)))  # nothing passes over a gap
    passes = [differing.ffill(axis=axis) * differing.bfill(axis=axis) < 0 for axis in (0, 1)]
    found: np.ndarray = (side == 0) & ~(passes[0] | passes[1]).to_numpy()
    return found


def crossovers(points: DataFrame, baseline: str) -> list[Crossover]:
    """Every other label against the baseline, per d_model, in the order of the points; none without a baseline."""
    if baseline not in set(points["label"]):
        return []
    parts = ratios(points, baseline).groupby(["label", "d_model"], sort=False)
    return [_crossover(label, d_model, part.sort_values("T")) for (label, d_model), part in parts]


def _crossover(label: str, d_model: int, part: DataFrame) -> Crossover:
    part = part[part["ratio"].notna()]
    found = crossings(part["T"], part["ratio"], part["ratio_low"], part["ratio_high"])
    apart = set(part["side"]) - {0}
    side = _side(apart.pop()) if len(apart) == 1 else None
    n_same, T = int((part["side"] == 0).sum()), part["T"]
    ratio = float(part["ratio"].iloc[0]) if len(part) == 1 else np.nan
    return Crossover(label, d_model, found, side, len(part), n_same, T.min(), T.max(), ratio)


def _side(sign: float) -> Side:
    return "above" if sign > 0 else "below"


def _log(ratio: ArrayLike) -> np.ndarray:
    """Natural logs; NaN where there is none, 0 where the ratio is 1 to rounding."""
    values = np.asarray(ratio, dtype=float)
    logs = np.log(np.where(values > 0, values, np.nan))
    return np.where(np.abs(logs) < ROUNDING, 0.0, np.where(np.isfinite(logs), logs, np.nan))


def _crossing(T: np.ndarray, r: np.ndarray, bounds: tuple[np.ndarray, np.ndarray] | None) -> Crossing:
    """The one crossing of log ratios r over ascending T, with ends on different sides. bounds: logs of low and high."""
    found = _zeros(T, r)
    at, to = found[len(found) // 2], _side(r[-1])
    if bounds is None or np.isnan(bounds).any():
        return Crossing(at, to)
    first, last = bounds if to == "below" else bounds[::-1]  # the bound that passes through 1 first, and the other
    return Crossing(at, to, _zeros(T, first)[0], _zeros(T, last)[-1])


def _zeros(T: np.ndarray, r: np.ndarray) -> list[float]:
    """The T, ascending, where r goes from one sign to the other; a stretch at 0 counts as its first T."""
    off = np.flatnonzero(r)
    found: list[float] = []
    for a, b in pairwise(off):
        if np.sign(r[a]) != np.sign(r[b]):
            x = np.log(T[[a, b]])
            at = T[a + 1] if b > a + 1 else np.exp(x[0] - r[a] * (x[1] - x[0]) / (r[b] - r[a]))
            found.append(float(at))
    return found

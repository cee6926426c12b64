"""The T at which a variant and the baseline change places."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from pandas import DataFrame

from attnbench.analyse.compare import AMBIGUOUS, SAME, Z, log_ratio

Side = Literal["below", "above"]
N_DRAWS = 500


@dataclass(frozen=True)
class Crossing:
    """The T at which a ratio passes through 1.

    to: on which side of 1 the ratio is beyond T. low, high: the 95 % interval of T; NaN for exact ratios.
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
    n_same, n_ambiguous: at how many of the sizes it is the same as the baseline, and at how many nobody can tell.
    ratio: of a single size, NaN for several.
    """

    label: str
    d_model: int
    crossings: tuple[Crossing, ...]
    side: Side | None
    n_sizes: int
    n_same: int
    n_ambiguous: int
    T_min: float
    T_max: float
    ratio: float = np.nan


def crossings(
    T: ArrayLike, ratio: ArrayLike, side: ArrayLike, low: ArrayLike | None = None, high: ArrayLike | None = None
) -> tuple[Crossing, ...]:
    """Where `ratio` over T passes through 1, by straight lines in log T and log ratio between measured neighbours.

    side: of each ratio, as `attnbench.analyse.compare.verdicts` gives it; low, high: bounds of the ratio. A crossing
    lies between a size where the ratio is on one side and the next one where it is on the other; where noise makes it
    cross several times between the two, the middle one counts. Its interval is that of N_DRAWS crossings of ratios
    drawn from theirs. Points without a positive, finite ratio are left out. Nothing is extrapolated.
    """
    sizes, middle, known = np.asarray(T, dtype=float), log_ratio(ratio), np.asarray(side, dtype=float)
    order = [i for i in np.argsort(sizes, kind="stable") if np.isfinite(middle[i])]
    differing = [place for place, i in enumerate(order) if known[i] != 0]
    spans = [order[a : b + 1] for a, b in pairwise(differing) if known[order[a]] != known[order[b]]]
    bounds = None if low is None or high is None else (log_ratio(low), log_ratio(high))
    return tuple(_crossing(sizes[span], middle[span], bounds and (bounds[0][span], bounds[1][span])) for span in spans)


def noise(side: np.ndarray) -> np.ndarray:
    """Which cells of a plane are noise around 1: on no side, and not between two on different sides.

    side: (n_d, n_T), of `attnbench.analyse.compare.verdicts`. Between: along a row or a column, over others on no side
    but over none that is missing.
    """
    differing = DataFrame(np.where(np.isnan(side), 0.0, np.where(side == 0, np.nan, side)))  # nothing passes over a gap
    passes = [differing.ffill(axis=axis) * differing.bfill(axis=axis) < 0 for axis in (0, 1)]
    found: np.ndarray = (side == 0) & ~(passes[0] | passes[1]).to_numpy()
    return found


def crossovers(compared: DataFrame) -> list[Crossover]:
    """Every label per d_model, in the order of the points. compared: of `attnbench.analyse.compare.verdicts`."""
    parts = compared.groupby(["label", "d_model"], sort=False)
    return [_crossover(label, d_model, part.sort_values("T")) for (label, d_model), part in parts]


def _crossover(label: str, d_model: int, part: DataFrame) -> Crossover:
    """What becomes of one variant at one width."""
    part = part[part["ratio"].notna()]
    found = crossings(part["T"], part["ratio"], part["side"], part["ratio_low"], part["ratio_high"])
    apart = set(part["side"]) - {0}
    side = _side(apart.pop()) if len(apart) == 1 else None
    n_same, n_ambiguous = (int((part["verdict_corrected"] == verdict).sum()) for verdict in (SAME, AMBIGUOUS))
    ratio, T = float(part["ratio"].iloc[0]) if len(part) == 1 else np.nan, part["T"]
    return Crossover(label, d_model, found, side, len(part), n_same, n_ambiguous, T.min(), T.max(), ratio)


def _side(sign: float) -> Side:
    return "above" if sign > 0 else "below"


def _crossing(T: np.ndarray, r: np.ndarray, bounds: tuple[np.ndarray, np.ndarray] | None) -> Crossing:
    """The one crossing of log ratios r over ascending T, with ends on different sides. bounds: logs of low and high."""
    at, to = float(_middle_zeros(T, r[None])[0]), _side(r[-1])
    if bounds is None or (bounds[0] == bounds[1]).all():
        return Crossing(at, to)
    low, high = np.quantile(_middle_zeros(T, _drawn(r, *bounds)), (0.025, 0.975))
    return Crossing(at, to, min(float(low), at), max(float(high), at))


def _drawn(r: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """N_DRAWS curves (N_DRAWS, n): normal on each side of r, as wide as the 95 % interval there."""
    errors = np.random.default_rng(0).standard_normal((N_DRAWS, len(r)))
    curves: np.ndarray = r + errors * np.where(errors > 0, high - r, r - low) / Z
    return curves


def _middle_zeros(T: np.ndarray, r: np.ndarray) -> np.ndarray:
    """The T at which each curve of r (n_curves, n) changes sign; of several such T the middle one.

    A stretch at 0 counts as its first T. Curves that keep their sign are left out.
    """
    x = np.log(T)
    found = [_zeros(x, curve) for curve in r]
    return np.array([math.exp(zeros[len(zeros) // 2]) for zeros in found if zeros])


def _zeros(x: np.ndarray, r: np.ndarray) -> list[float]:
    """The x, ascending, where r goes from one sign to the other; a stretch at 0 counts as its first x."""
    off = np.flatnonzero(r)
    passed = [(a, b) for a, b in pairwise(off) if (r[a] > 0) != (r[b] > 0)]
    return [x[a + 1] if b > a + 1 else x[a] - r[a] * (x[b] - x[a]) / (r[b] - r[a]) for a, b in passed]

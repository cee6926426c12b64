"""A cost as a sum of terms, a + b·T + c·T·d + e·T·d² + f·H·T² + g·T²·d, none of them negative.

Each point counts by its relative error, so that small sizes weigh as much as large ones: every row is divided by its
measured value, and non-negative least squares does the rest. Noisy costs (times) get intervals from a bootstrap of
the residuals; costs that repeat to the bit (bytes, operations) have no noise to draw from, and get the range of the
fits that leave out one point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from pandas import DataFrame
from scipy.optimize import nnls

from attnbench.analyse.nonnegative import solve
from attnbench.analyse.scaling import MIN_SIZES
from attnbench.analyse.terms import TERMS, Distinct, Powers, Sizes, distinct

LEVEL = 0.90  # of the intervals of noisy costs
N_DRAWS = 500
NOISE = 0.15  # from here on the residuals, as a share of the cost, are too large to trust the terms
ROUNDING = 1e-9  # a share of the cost below this is zero
MISSED = 1.3  # residuals without a term over those with it: below this, others say as well what the term says
FIT = ["label", "d_model", "T", "n_heads"]  # what the points of a fit differ in

# resolved: its interval excludes 0, it is missed when left out, and its share of the largest size exceeds the noise.
# small: it exceeds the noise at smaller sizes alone. unresolved: these sizes do not show whether it is there.
Seen = Literal["resolved", "small", "unresolved"]


@dataclass(frozen=True)
class Term:
    """One term of a fitted cost.

    coefficient: of T^a · d^b · H^c with the powers, in the unit of the cost; low, high: its interval.
    share: of the fitted cost at the largest T and then d, with its interval; most: its largest share at any point.
    """

    name: str
    powers: Powers
    coefficient: float
    low: float
    high: float
    share: float
    share_low: float
    share_high: float
    most: float
    seen: Seen


@dataclass(frozen=True)
class Prediction:
    """The cost at the largest T, predicted from the smaller ones, beside the measured one; low, high: its interval."""

    T: float
    d_model: float
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Fit:
    """The cost of one series as a sum of terms.

    T, d_model: the largest measured point, to which shares refer. r2: of logs. noise: root mean square of the relative
    residuals, degrees of freedom allowed for. n_points: used; n_dropped: missing, infinite or not positive.
    held_out: one prediction per d_model, ascending; empty where the smaller T alone are too few.
    Where there is too little to fit, terms is empty and `notes` says why.
    """

    n_points: int
    n_dropped: int
    notes: tuple[str, ...]
    terms: tuple[Term, ...] = ()
    T: float = np.nan
    d_model: float = np.nan
    r2: float = np.nan
    noise: float = np.nan
    held_out: tuple[Prediction, ...] = ()

    @property
    def largest(self) -> Term:
        """The term with the largest share. Raises ValueError without terms."""
        return max(self.terms, key=lambda term: term.share)

    def predict(self, T: ArrayLike, d_model: ArrayLike, n_heads: ArrayLike) -> np.ndarray:
        """The fitted cost at any sizes, in the shape of the arguments; 0 without terms."""
        T, d_model, n_heads = np.broadcast_arrays(*(np.asarray(one, dtype=float) for one in (T, d_model, n_heads)))
        sizes = Sizes(T, d_model, n_heads)
        return sum((term.coefficient * sizes.column(term.powers) for term in self.terms), np.zeros(T.shape))


class _Solved(NamedTuple):
    """Of a fit: coefficients (k,), others that the data allow as well (k, m), and relative residuals (n,).

    missed: by which factor the residuals grow when each term is left out, (k,).
    """

    coefficients: np.ndarray
    draws: np.ndarray
    residuals: np.ndarray
    missed: np.ndarray


def fit(
    T: ArrayLike,
    d_model: ArrayLike,
    n_heads: ArrayLike,
    values: ArrayLike,
    *,
    terms: Mapping[str, Powers] = TERMS,
    deterministic: bool = False,
) -> Fit:
    """Fit values (any positive cost) measured at these T, d_model and n_heads, all (n,).

    terms: those that the cost may have. deterministic: the values repeat to the bit, so that residuals are what the
    terms cannot say, and not noise.
    """
    sizes, costs = Sizes(*(np.asarray(one, dtype=float) for one in (T, d_model, n_heads))), np.asarray(values, float)
    usable = np.isfinite(costs) & (costs > 0) & np.isfinite(sizes.T) & (sizes.T > 0)
    n_dropped = int((~usable).sum())
    sizes, costs = sizes.where(usable), costs[usable]
    known = _known(sizes, terms)
    if isinstance(known, str):
        return Fit(len(costs), n_dropped, (known,))
    solved = _solved(sizes, costs, known, deterministic)
    noise, last = _noise(solved.residuals, len(known.terms)), _last(sizes)
    return Fit(
        n_points=len(costs),
        n_dropped=n_dropped,
        notes=known.notes + ((f"residuals of {100 * noise:.0f} %",) if noise > NOISE else ()),
        terms=_terms(sizes, known, solved, deterministic),
        T=float(sizes.T[last]),
        d_model=float(sizes.d_model[last]),
        r2=_r2(costs, costs * (1 - solved.residuals)),
        noise=noise,
        held_out=_held_out(sizes, costs, terms, deterministic),
    )


def fits(points: DataFrame, *, terms: Mapping[str, Powers] = TERMS, deterministic: bool = False) -> dict[str, Fit]:
    """The fit of each label. points: of `attnbench.analyse.points.points`, by FIT; the others are those of `fit`."""
    found = {}
    for label, part in points.groupby("label", sort=False):
        n_heads = part["n_heads"].astype(float).fillna(1.0)
        sizes = part["T"], part["d_model"], n_heads
        found[str(label)] = fit(*sizes, part["value"], terms=terms, deterministic=deterministic)
    return found


def _known(sizes: Sizes, terms: Mapping[str, Powers]) -> Distinct | str:
    """Those of the terms that these sizes tell apart, or why there are none."""
    if len(np.unique(sizes.T)) < MIN_SIZES:
        return "not enough sizes"
    known = distinct(sizes, terms)
    if known is None or len(sizes.T) <= len(known.terms):
        return "not enough points for the terms"
    return known


def _solved(sizes: Sizes, costs: np.ndarray, known: Distinct, deterministic: bool) -> _Solved:
    """Non-negative least squares of relative errors, with draws of the coefficients for intervals."""
    relative = np.stack([sizes.column(powers) for powers in known.terms.values()], axis=1) / costs[:, None]  # (n, k)
    length = np.linalg.norm(relative, axis=0)
    unit = relative / length
    found, _ = nnls(unit, np.ones(len(costs)))
    found[(unit * found).max(axis=0) < ROUNDING] = 0
    residuals = 1 - unit @ found
    draws = _leaving_one_out(unit, found) if deterministic else _resampled(unit, residuals)
    return _Solved(found / length, draws / length[:, None], residuals, _missed(unit, residuals))


def _missed(unit: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """The length of the residuals without each term over that of all together; 1 for a term that says nothing."""
    n, k = unit.shape
    without = [nnls(np.delete(unit, i, axis=1), np.ones(n))[1] if k > 1 else np.sqrt(n) for i in range(k)]
    found: np.ndarray = np.array(without) / max(np.linalg.norm(residuals), ROUNDING)
    return found


def _resampled(unit: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """Coefficients (k, N_DRAWS) of fits to the fitted costs plus residuals drawn with replacement."""
    noise = _drawn(_inflated(residuals, unit.shape[1]), len(residuals))
    return solve(unit, (1 - residuals)[:, None] + noise)


def _leaving_one_out(unit: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Coefficients (k, n + 1) of the whole fit and of the fits to all points but one."""
    parts = [nnls(np.delete(unit, i, axis=0), np.ones(len(unit) - 1))[0] for i in range(len(unit))]
    return np.stack([found, *parts], axis=1)


def _drawn(residuals: np.ndarray, n: int, seed: int = 0) -> np.ndarray:
    """Residuals for n points, drawn with replacement, (n, N_DRAWS)."""
    return np.random.default_rng(seed).choice(residuals, size=(n, N_DRAWS))


def _inflated(residuals: np.ndarray, n_terms: int) -> np.ndarray:
    """Residuals about their mean, as large as they would be had the terms not been fitted to them."""
    n = len(residuals)
    inflated: np.ndarray = (residuals - residuals.mean()) * np.sqrt(n / (n - n_terms))
    return inflated


def _interval(draws: np.ndarray, deterministic: bool) -> tuple[np.ndarray, np.ndarray]:
    """Of draws (k, m): their range, or the part of it that holds LEVEL of them."""
    ends = (0.0, 1.0) if deterministic else ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    low, high = np.quantile(draws, ends, axis=1)
    return low, high


def _terms(sizes: Sizes, known: Distinct, solved: _Solved, deterministic: bool) -> tuple[Term, ...]:
    """Each term with its coefficient, its share at the largest size, their intervals, and whether it is seen."""
    columns = np.stack([sizes.column(powers) for powers in known.terms.values()])  # (k, n)
    parts = solved.coefficients[:, None] * columns
    shares = parts / parts.sum(axis=0)
    last = _last(sizes)
    drawn = solved.draws * columns[:, [last]]  # (k, m)
    low, high = _interval(solved.draws, deterministic)
    drawn = drawn[:, drawn.sum(axis=0) > 0]  # where residuals are as large as costs, a draw may have no term at all
    share_low, share_high = _interval(drawn / drawn.sum(axis=0), deterministic)
    share, most = shares[:, last], shares.max(axis=1)
    limit = max(_noise(solved.residuals, len(columns)), ROUNDING)
    return tuple(
        Term(
            name=name,
            powers=powers,
            coefficient=float(solved.coefficients[i]),
            low=float(low[i]),
            high=float(high[i]),
            share=float(share[i]),
            share_low=float(share_low[i]),
            share_high=float(share_high[i]),
            most=float(most[i]),
            seen=_seen(low[i] > 0 and solved.missed[i] >= MISSED, share[i], most[i], limit),
        )
        for i, (name, powers) in enumerate(known.terms.items())
    )


def _seen(there: bool, share: float, most: float, limit: float) -> Seen:
    """Whether a term is told from nothing, and is large enough at the largest size to count."""
    if not there or most <= limit:
        return "unresolved"
    return "resolved" if share > limit else "small"


def _held_out(
    sizes: Sizes, costs: np.ndarray, terms: Mapping[str, Powers], deterministic: bool
) -> tuple[Prediction, ...]:
    """The largest T of each d_model, predicted by a fit to all smaller T."""
    smaller = sizes.T.max() > sizes.T
    known = _known(sizes.where(smaller), terms)
    if isinstance(known, str):
        return ()
    solved = _solved(sizes.where(smaller), costs[smaller], known, deterministic)
    largest = sizes.where(~smaller)
    columns = np.stack([largest.column(powers) for powers in known.terms.values()], axis=1)  # (points, k)
    drawn = columns @ solved.draws
    if not deterministic:
        drawn *= 1 + _drawn(_inflated(solved.residuals, len(known.terms)), len(drawn), seed=1)
    ends = zip(columns @ solved.coefficients, *_interval(drawn, deterministic), costs[~smaller], strict=True)
    told = zip(largest.T.tolist(), largest.d_model.tolist(), ends, strict=True)
    return tuple(sorted((Prediction(T, d, *map(float, end)) for T, d, end in told), key=lambda one: one.d_model))


def _last(sizes: Sizes) -> int:
    """The point with the largest T, and among those with the largest d_model."""
    return int(np.lexsort((sizes.d_model, sizes.T))[-1])


def _noise(residuals: np.ndarray, n_terms: int) -> float:
    return float(np.sqrt(np.sum(residuals**2) / (len(residuals) - n_terms)))


def _r2(costs: np.ndarray, fitted: np.ndarray) -> float:
    """The share of the variance of log costs that the fit explains."""
    logs = np.log(costs)
    return 1.0 if np.ptp(logs) == 0 else float(1 - np.mean((logs - np.log(fitted)) ** 2) / np.var(logs))

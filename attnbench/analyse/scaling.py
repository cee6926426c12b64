"""How a cost grows with T, or with d: slopes between neighbouring sizes, and one exponent with its fit.

A layer costs a + b·T + c·T·d + e·T·d² + f·H·T² + g·T²·d, so the slope changes with T: attention over T = 256 to 8192
can show 1.57 overall and 1.9 at its end. Local slopes say so; a single exponent comes with its R².
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pandas import DataFrame

Axis = Literal["T", "d_model"]
OTHER: dict[Axis, Axis] = {"T": "d_model", "d_model": "T"}
MIN_SIZES = 3
MIN_R2 = 0.95


@dataclass(frozen=True)
class Scaling:
    """How one series grows.

    sizes: distinct T, or d, with a usable value, ascending. slopes: d log(value) / d log(size) between neighbours.
    exponent, r2: of one power law through all of them. n_dropped: values that were missing, infinite or not positive.
    With fewer than three sizes slopes is empty, exponent and r2 are NaN, and note says so.
    """

    sizes: tuple[float, ...]
    slopes: tuple[float, ...]
    exponent: float
    r2: float
    n_dropped: int

    @property
    def note(self) -> str:
        """What to know before the numbers are used; empty when nothing."""
        if not self.slopes:
            return "not enough sizes"
        return f"no single power law (R² = {self.r2:.2f})" if self.r2 < MIN_R2 else ""


def scaling(sizes: Sequence[float], values: Sequence[float]) -> Scaling:
    """Slopes of values (any positive cost) over sizes, both in logs; values at one size are merged by their median."""
    x, costs = np.asarray(sizes, dtype=float), np.asarray(values, dtype=float)
    usable = np.isfinite(costs) & (costs > 0) & np.isfinite(x) & (x > 0)
    n_dropped = int((~usable).sum())
    distinct = np.unique(x[usable])
    if len(distinct) < MIN_SIZES:
        return Scaling(tuple(distinct.tolist()), (), np.nan, np.nan, n_dropped)
    merged = np.array([np.median(costs[usable & (x == size)]) for size in distinct])
    log_x, y = np.log(distinct), np.log(merged)
    exponent = float(np.cov(log_x, y, bias=True)[0, 1] / np.var(log_x))
    residual = y - y.mean() - exponent * (log_x - log_x.mean())
    r2 = 1.0 if np.ptp(y) == 0 else float(1 - np.var(residual) / np.var(y))
    return Scaling(tuple(distinct.tolist()), tuple((np.diff(y) / np.diff(log_x)).tolist()), exponent, r2, n_dropped)


def scalings(points: DataFrame, over: Axis = "T") -> dict[tuple[str, int], Scaling]:
    """The scaling in T of each (label, d_model) of `attnbench.analyse.points.points`, or in d_model of each (label, T).

    over: the size that changes.
    """
    parts = points.groupby(["label", OTHER[over]], sort=False)
    return {key: scaling(part[over], part["value"]) for key, part in parts}

"""Synthetic visits: samples of processes that differ from each other, on a machine that drifts."""

from __future__ import annotations

import numpy as np

Visits = list[list[float]]


def visits(
    random: np.random.Generator,
    time_s: float,
    n: int,
    *,
    between: float = 0.02,
    within: float = 0.01,
    drift: float = 0.0,
    n_samples: int = 15,
) -> Visits:
    """n visits of a cell that takes time_s: each has a level of its own, and samples around it.

    between, within: standard deviations in logs. drift: by how much the machine is slower in the last visit than in the
    first, in logs; cells visited in the same rounds share it.
    """
    levels = np.log(time_s) + between * random.standard_normal(n) + np.linspace(0, drift, n)
    return np.exp(levels[:, None] + within * random.standard_normal((n, n_samples))).tolist()

"""Rows without a timer: intervals and fits of costs that were made up, so that the truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnbench.analyse.fit import LEVEL, Fit, fit
from attnbench.analyse.terms import TERMS, Sizes
from attnbench.calibrate.rows import Line, Row
from attnbench.intervals import interval, typical_spread
from attnbench.statistics import median

BETWEEN, WITHIN, N_SAMPLES = 0.02, 0.01, 15  # spreads in logs, of processes and of samples within one
N_CELLS = 10  # of a run
LEAST, MOST = 0.93, 0.99
NOISE = 0.05
LAW = {"1": 1e-4, "T": 3e-7, "T d": 5e-9, "T d²": 3e-10, "H T²": 1e-9, "T² d": 2e-10}  # seconds
JUDGED = ("T d²", "T² d")
SIZES_T, SIZES_D, N_HEADS = (64, 128, 256, 512, 1024, 2048, 4096), (64, 128, 256), 4
ERROR, COVERED = 0.1, (0.84, 0.96)


def coverage(n_visits: int, n_runs: int) -> Row[float]:
    """How often the interval of a time holds the true one."""
    line = Line[float](
        f"nominal 95 % intervals of {n_visits} visits hold the true time (made-up samples)",
        f"{100 * LEAST:.0f} to {100 * MOST:.0f} %",
        lambda found: f"{100 * found[0]:.1f} %",
        lambda idle, busy: LEAST <= idle[0] <= MOST,
    )
    return Row(lambda: share_held(n_visits, n_runs), (line,), n_busy=0)


def share_held(n_visits: int, n_runs: int) -> float:
    """Of n_runs made-up runs of N_CELLS cells that take one second, the share of intervals that hold it."""
    random, held = np.random.default_rng(n_visits), 0
    for _ in range(n_runs):
        levels = random.normal(0, BETWEEN, (N_CELLS, n_visits, 1))
        cells = np.exp(levels + random.normal(0, WITHIN, (N_CELLS, n_visits, N_SAMPLES))).tolist()
        typical = typical_spread(cells)
        bounds = [interval(visits, typical) for visits in cells]
        held += sum(low <= 1 <= high for low, high in bounds)
    return held / (n_runs * N_CELLS)


class Recovered(NamedTuple):
    """Of one term of one fit: by which share its coefficient is wrong, and whether its interval holds the true one."""

    error: float
    held: bool


def recovery(n_trials: int) -> Row[list[dict[str, Recovered]]]:
    """Costs of a known formula with noise, fitted."""
    lines = tuple(_recovered(name, n_trials) for name in JUDGED)
    return Row(lambda: [one_fit(seed) for seed in range(n_trials)], lines, n_busy=0)


def _recovered(name: str, n_trials: int) -> Line[list[dict[str, Recovered]]]:
    def figures(found: Sequence[list[dict[str, Recovered]]]) -> tuple[float, float]:
        trials = [trial[name] for trial in found[0]]
        return median([trial.error for trial in trials]), sum(trial.held for trial in trials) / len(trials)

    def met(idle: Sequence[list[dict[str, Recovered]]], busy: Sequence[list[dict[str, Recovered]]]) -> bool:
        error, held = figures(idle)
        return error <= ERROR and COVERED[0] <= held <= COVERED[1]

    return Line(
        f"fit of {name} among all six terms, {100 * NOISE:.0f} % noise: median error, and nominal {100 * LEVEL:.0f} % "
        f"intervals that hold the true one ({n_trials} made-up sweeps)",
        f"at most {100 * ERROR:.0f} %, {100 * COVERED[0]:.0f} to {100 * COVERED[1]:.0f} %",
        lambda found: "{:.1f} %, {:.0f} %".format(*(100 * figure for figure in figures(found))),
        met,
    )


def one_fit(seed: int) -> dict[str, Recovered]:
    """Fit one made-up sweep."""
    T, d_model = (axis.ravel().astype(float) for axis in np.meshgrid(SIZES_T, SIZES_D))
    sizes = Sizes(T, d_model, np.full(T.shape, float(N_HEADS)))
    true = sum(factor * sizes.column(TERMS[name]) for name, factor in LAW.items())
    noise = np.random.default_rng(seed).normal(0, NOISE, T.shape)
    return recovered(fit(sizes.T, sizes.d_model, sizes.n_heads, true * np.exp(noise)))


def recovered(found: Fit) -> dict[str, Recovered]:
    """How far the coefficients of LAW are from what was fitted; a term that was not fitted is wholly wrong."""
    terms = {term.name: term for term in found.terms}
    return {
        name: Recovered(abs(terms[name].coefficient / factor - 1), terms[name].low <= factor <= terms[name].high)
        if name in terms
        else Recovered(1.0, False)
        for name, factor in LAW.items()
    }

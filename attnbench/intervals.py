"""How sure the time of a cell is: an interval for what differs within its visits and between them.

A visit is one process, and what differs between processes (where memory lies, what else the machine does) stays the
same however long one of them samples. So visits are resampled, and samples within them: the hierarchical bootstrap of
Kalibera and Jones, "Rigorous benchmarking in reasonable time" (ISMM 2013). The statistic is the median over visits of
each visit's median.

Few visits resampled show no more than their own range: of normal levels, the nominal 95 % are 63, 79, 93 and 94 % for
2, 3, 5 and 10 visits. The interval is therefore never narrower than Student's for the median of that many visits, by a
spread in which the cell's own visits count as they are and the typical spread of its run as much as PRIOR degrees of
freedom: the moderated variance of Smyth (Stat. Appl. Genet. Mol. Biol. 3, 2004) with a fixed weight. With it they are
95 to 99 %. One visit alone has the spread of the run; without any cell of several visits it is taken to be UNKNOWN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import stdtrit

from attnbench.statistics import median

Visits = Sequence[Sequence[float]]  # the samples of each visit, in seconds
TAILS = (0.025, 0.975)
N_DRAWS = 1000
UNKNOWN = 0.03  # how far visits lie apart where no cell says it: a standard deviation, relative
PRIOR = 4  # degrees of freedom that the run's spread is worth; 3 describe the spreads of the quickstart's cells


@dataclass(frozen=True)
class Spread:
    """The typical standard deviation, in logs, between visits of one cell, and the degrees of freedom behind it."""

    sd: float
    df: int


def typical_spread(cells: Sequence[Visits]) -> Spread:
    """Of the cells of a run: the median over those with several visits, which a few noisy ones do not move.

    UNKNOWN with 0 degrees of freedom where there is none.
    """
    logs = [_logs(visits) for visits in cells if len(visits) > 1]
    if not logs:
        return Spread(UNKNOWN, 0)
    variances = [float(np.var(of_cell, ddof=1)) / _chi_square_median(len(of_cell) - 1) for of_cell in logs]
    return Spread(math.sqrt(median(variances)), sum(len(of_cell) - 1 for of_cell in logs))


def interval(visits: Visits, typical: Spread) -> tuple[float, float]:
    """The 95 % interval of the median over visits of their medians, in seconds. typical: of the run they belong to.

    The same samples give the same interval, whatever other cells there are, but for `typical`.
    """
    centre = median([median(samples) for samples in visits])
    low, high = np.quantile(_resampled(visits), TAILS)
    widest = math.exp(_half_width(_logs(visits), typical))
    return min(float(low), centre / widest), max(float(high), centre * widest)


def widths(cells: Mapping[str, Visits]) -> dict[str, float]:
    """The width of each cell's interval as a share of its time, all being of one run."""
    typical = typical_spread(list(cells.values()))
    found = {}
    for cell, visits in cells.items():
        low, high = interval(visits, typical)
        found[cell] = (high - low) / median([median(samples) for samples in visits])
    return found


def _half_width(logs: np.ndarray, typical: Spread) -> float:
    """Student's half-width, in logs, of the median of these visits, by the moderated spread."""
    n = len(logs)
    of_median = math.sqrt(math.pi / (2 * n + math.pi - 2))  # its standard deviation, in that of one visit
    own, others = n - 1, min(PRIOR, typical.df - (n - 1))
    if own + others == 0:
        return 1.96 * typical.sd * of_median
    squares = (own * float(np.var(logs, ddof=1)) if own else 0.0) + others * typical.sd**2
    return float(stdtrit(own + others, TAILS[1])) * math.sqrt(squares / (own + others)) * of_median


def _resampled(visits: Visits) -> np.ndarray:
    """N_DRAWS times the statistic, of visits drawn with replacement and of samples drawn so within each."""
    n = len(visits)
    choices, medians = _choices(n), np.empty((N_DRAWS, n))
    for visit, samples in enumerate(visits):
        chosen = choices == visit
        medians[chosen] = np.sort(samples)[_ranks(len(samples), n)[chosen]]
    found: np.ndarray = np.median(medians, axis=1)
    return found


@lru_cache(maxsize=64)
def _choices(n_visits: int) -> np.ndarray:
    """Which visits each draw takes, (N_DRAWS, n_visits); the same for all cells, each of which stands alone."""
    return np.random.default_rng([0, n_visits]).integers(n_visits, size=(N_DRAWS, n_visits))


@lru_cache(maxsize=256)
def _ranks(n_samples: int, n_visits: int) -> np.ndarray:
    """Which of the sorted samples is the median of n_samples drawn with replacement, (N_DRAWS, n_visits).

    The median of n uniform numbers has a Beta distribution with both parameters (n + 1) / 2, so that no resample needs
    to be drawn and sorted. Exact for odd n; for even n it stands for the mean of the two middle ones.
    """
    middle = (n_samples + 1) / 2
    uniform = np.random.default_rng([1, n_samples, n_visits]).beta(middle, middle, size=(N_DRAWS, n_visits))
    ranks: np.ndarray = np.minimum((n_samples * uniform).astype(int), n_samples - 1)
    return ranks


def _logs(visits: Visits) -> np.ndarray:
    return np.array([math.log(median(samples)) for samples in visits])


def _chi_square_median(df: int) -> float:
    """The median of a chi-square variable over its degrees of freedom (Wilson and Hilferty 1931)."""
    return (1 - 2 / (9 * df)) ** 3

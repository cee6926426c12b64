"""The interval of a time over visits: what it covers, and that it is never narrower than what is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noisy_visits import visits
from scipy import stats

from attnbench import intervals
from attnbench.intervals import PRIOR, UNKNOWN, Spread, interval, typical_spread
from attnbench.statistics import median

N_TRIALS = 600
SAMPLES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=12)
CELLS = st.lists(SAMPLES, min_size=1, max_size=6)


def coverage(n_visits, seed, n_cells=1, **noise):
    """The share of intervals that hold the true time, of the first of n_cells cells of a run."""
    random = np.random.default_rng(seed)
    held = 0
    for _ in range(N_TRIALS):
        cells = [visits(random, 1.0, n_visits, **noise) for _ in range(n_cells)]
        low, high = interval(cells[0], typical_spread(cells))
        held += low <= 1 <= high
    return held / N_TRIALS


@pytest.mark.parametrize("n_visits", [3, 5, 10])
@pytest.mark.parametrize("n_cells", [1, 12])
def test_the_interval_holds_the_true_time_as_often_as_it_says(n_visits, n_cells):
    assert 0.90 <= coverage(n_visits, seed=n_visits, n_cells=n_cells) <= 0.99


def test_one_visit_is_covered_by_what_the_run_knows_of_processes():
    random = np.random.default_rng(0)
    known = typical_spread([visits(random, 1.0, 3) for _ in range(12)])
    held = 0
    for _ in range(N_TRIALS):
        low, high = interval(visits(random, 1.0, 1), known)
        held += low <= 1 <= high
    assert held / N_TRIALS >= 0.90


def test_resampling_three_visits_alone_would_cover_too_little():
    random = np.random.default_rng(1)
    held = 0
    for _ in range(N_TRIALS):
        low, high = np.quantile(intervals._resampled(visits(random, 1.0, 3)), intervals.TAILS)
        held += low <= 1 <= high
    assert held / N_TRIALS < 0.85


def test_one_process_never_gives_a_narrow_interval():
    low, high = interval([[1.0] * 1000], typical_spread([[[1.0] * 1000]]))
    assert (low, high) == pytest.approx((math.exp(-1.96 * UNKNOWN), math.exp(1.96 * UNKNOWN)))


def test_noise_within_the_only_visit_counts_where_it_is_wider():
    samples = np.random.default_rng(0).lognormal(0, 0.5, 9).tolist()
    low, high = interval([samples], typical_spread([[samples]]))
    assert math.log(high / low) > 4 * UNKNOWN
    assert {low, high} <= set(samples)


def test_the_spread_of_a_run_is_that_of_its_cells_with_several_visits_and_few_noisy_ones_move_it_little():
    random = np.random.default_rng(2)
    quiet = [visits(random, 1.0, n, within=1e-6) for n in (2, 3, 5) for _ in range(60)]
    loud = [visits(random, 1.0, 3, between=0.5) for _ in range(6)]
    known = typical_spread([*quiet, *loud, *([[1.0]] for _ in range(50))])
    assert known.sd == pytest.approx(0.02, rel=0.2)
    assert known.df == 60 * (1 + 2 + 4) + 6 * 2


def test_without_several_visits_the_spread_is_the_one_that_is_documented():
    assert typical_spread([]) == typical_spread([[[1.0, 2.0]]]) == Spread(UNKNOWN, 0)


def test_visits_that_agree_by_luck_do_not_make_a_cell_sure():
    agreed = [[1.0], [1.0], [1.0]]
    run = Spread(0.02, 100)
    low, high = interval(agreed, run)
    moderated = 0.02 * math.sqrt(PRIOR / (PRIOR + 2))
    half = stats.t.ppf(0.975, PRIOR + 2) * moderated * math.sqrt(math.pi / (4 + math.pi))
    assert (low, high) == pytest.approx((math.exp(-half), math.exp(half)))


def test_a_cell_that_is_noisier_than_its_run_has_a_wider_interval():
    run = Spread(0.02, 100)
    widths = [math.log(high / low) for low, high in (interval([[1 / s], [1.0], [s]], run) for s in (1.01, 1.1, 2))]
    assert widths == sorted(widths)
    assert widths[-1] > 2 * math.log(2) * (1 - 1e-9)


def test_more_visits_make_it_narrower():
    random = np.random.default_rng(3)
    known = Spread(0.02, 100)
    widths = [
        np.mean([np.log(np.divide(*reversed(interval(visits(random, 1.0, n), known)))) for _ in range(50)])
        for n in (1, 3, 5, 10, 20)
    ]
    assert widths == sorted(widths, reverse=True)


@given(CELLS)
def test_it_holds_the_reported_time_and_does_not_depend_on_units(cell):
    known = typical_spread([cell])
    low, high = interval(cell, known)
    centre = median([median(samples) for samples in cell])
    assert 0 < low <= centre <= high
    scaled = [[8 * sample for sample in samples] for samples in cell]
    assert interval(scaled, typical_spread([scaled])) == pytest.approx((8 * low, 8 * high))


@given(CELLS)
def test_the_same_samples_give_the_same_interval_in_any_order(cell):
    known = Spread(0.01, 40)
    again = [list(reversed(samples)) for samples in cell]
    assert interval(again, known) == interval(cell, known)


def test_random_numbers_are_drawn_once_for_all_cells_of_one_shape():
    random = np.random.default_rng(4)
    intervals._ranks.cache_clear()
    intervals._choices.cache_clear()
    cells = [visits(random, 1.0, n, n_samples=m) for _ in range(40) for n in (2, 3) for m in (7, 15)]
    known = typical_spread(cells)
    for cell in cells:
        interval(cell, known)
    assert (intervals._ranks.cache_info().misses, intervals._choices.cache_info().misses) == (4, 2)


def test_work_does_not_grow_with_the_samples():
    assert intervals._resampled([[1.0] * 100_000]).shape == intervals._resampled([[1.0]]).shape == (intervals.N_DRAWS,)


def exact_medians(n):
    """P(the k-th smallest of n is the median of n drawn with replacement), k = 0 … n - 1, n odd."""
    below = [stats.binom.sf(n // 2, n, k / n) for k in range(n + 1)]
    return np.diff(below)


@pytest.mark.parametrize("n", [1, 3, 7, 15])
def test_ranks_are_those_of_medians_of_resamples(n):
    found = np.bincount(intervals._ranks(n, 9).ravel(), minlength=n) / (intervals.N_DRAWS * 9)
    assert found == pytest.approx(exact_medians(n), abs=0.02)

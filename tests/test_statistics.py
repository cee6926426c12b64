import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.statistics import median, median_interval

SAMPLES = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=40)


def outside(n: int, k: int) -> float:
    """P(the median of a continuous distribution is not between the k-th smallest and k-th largest of n samples)."""
    return 2 * sum(math.comb(n, i) for i in range(k)) / 2**n


def rank(n: int) -> int:
    """The k that `median_interval` uses for n samples."""
    return int(median_interval(range(n))[0]) + 1


def test_one_slow_sample_does_not_move_the_centre():
    assert median([1e-3] * 9 + [0.1]) == 1e-3


@given(SAMPLES)
def test_the_interval_is_made_of_samples_and_holds_the_median(samples):
    low, high = median_interval(samples)
    assert {low, high} <= set(samples)
    assert low <= median(samples) <= high


@given(SAMPLES, st.randoms())
def test_the_order_of_the_samples_is_of_no_account(samples, random):
    shuffled = random.sample(samples, len(samples))
    assert median_interval(shuffled) == median_interval(samples)


@pytest.mark.parametrize("n", range(1, 6))
def test_too_few_samples_give_all_that_they_have(n):
    assert median_interval(range(n)) == (0, n - 1)
    assert outside(n, 1) > 0.05


@pytest.mark.parametrize("n", [*range(6, 40), 50, 99, 100, 101, 102, 150, 999, 1000])
def test_the_interval_holds_95_percent_and_is_hardly_wider_than_that_needs(n):
    assert outside(n, rank(n)) <= 0.05
    assert outside(n, rank(n) + (1 if n <= 100 else 2)) > 0.05


def test_the_interval_is_symmetric_in_rank():
    low, high = median_interval(range(25))
    assert low + high == 24

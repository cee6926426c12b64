"""A search for the T at which two costs change places, told synthetic costs: no clock, the truth is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas import DataFrame

from attnbench.analyse.bisection import FACTOR, FIRST, enclosing, located, next_sizes
from attnbench.analyse.compare import verdicts

T_MAX = 8192
MOST_STEPS = 30


class Costs:
    """Two costs over T, told with relative noise `sd` as medians over visits are; a size asked again is told better."""

    def __init__(self, base, other, sd=0.0, seed=0, broken=()):
        self.laws, self.sd, self.noise = {"base": base, "other": other}, sd, np.random.default_rng(seed)
        self.broken, self.visits = set(broken), {}

    def measure(self, T):
        self.visits.setdefault(T, []).append(1 + self.sd * self.noise.standard_normal((2, 3)))

    def compared(self):
        rows = [self._row(name, i, T) for T in self.visits for i, name in enumerate(self.laws)]
        columns = ["label", "d_model", "T", "value", "low", "high", "status"]
        return verdicts(DataFrame(rows, columns=columns), "base")

    def _row(self, name, i, T):
        if T in self.broken and name == "other":
            return name, 64, T, np.nan, np.nan, np.nan, "oom"
        seen = np.concatenate([visit[i] for visit in self.visits[T]])
        value = self.laws[name](T) * np.mean(seen)
        half = 1.96 * self.sd / len(seen) ** 0.5
        ends = (value * (1 - half), value * (1 + half)) if self.sd else (np.nan, np.nan)
        return name, 64, T, value, *ends, "ok"


def searched(base, other, T_max=T_MAX, most=MOST_STEPS, **more):
    """The crossover that the search finds, and the sizes it asked for, step by step."""
    costs, steps = Costs(base, other, **more), []
    while (wanted := next_sizes(costs.compared(), T_max)) and len(steps) < most:
        for T in wanted:
            costs.measure(T)
        steps.append(wanted)
    (found,) = located(costs.compared())
    return found, steps


def quadratic(T):
    return 1e-8 * T**2 * 64


def linear(T):
    return 1e-8 * T * 64 * 256


def test_full_and_linear_attention_change_places_at_256():
    found, steps = searched(quadratic, linear)
    (at,) = found.crossings
    assert pytest.approx(256, rel=0.02) == at.T
    assert at.to == "below"
    assert at.low < 256 < at.high <= FACTOR * at.low
    assert steps[0] == list(FIRST)


@pytest.mark.parametrize("at", [1.5, 5, 23, 70, 300, 999, 1500, 5000, 7500])
def test_wherever_the_truth_lies_it_is_found_within_two_percent(at):
    found, steps = searched(quadratic, lambda T: quadratic(T) * at / T)
    assert [one.T for one in found.crossings] == [pytest.approx(at, rel=0.02)]
    assert len(steps) <= 8


@pytest.mark.parametrize("sd", [0.0, 0.01])
def test_curved_costs_are_enclosed_until_a_straight_line_is_right(sd):
    def base(T):
        return 9e-5 + 7e-11 * (8 * T * 64**2 + 2 * T**2 * 64)

    def other(T):
        return 1.5e-4 + 7e-11 * (8 * T * 64**2) + 3e-7 * T

    truth = next(T for T in np.arange(1, 9000, 0.5) if other(T) < base(T))
    found, _ = searched(base, other, sd=sd)
    assert pytest.approx(truth, rel=0.02 if sd == 0 else 0.08) == found.crossings[-1].T


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), at=st.integers(20, 4000))
def test_noise_neither_hides_a_crossing_nor_stops_the_search(seed, at):
    found, steps = searched(quadratic, lambda T: quadratic(T) * (at / T) ** 0.5, sd=0.02, seed=seed)
    assert len(steps) < MOST_STEPS
    assert pytest.approx(at, rel=0.15) == found.crossings[0].T


def test_intervals_of_noisy_costs_hold_the_truth_as_often_as_they_say():
    held = 0
    for seed in range(40):
        found, _ = searched(quadratic, linear, sd=0.02, seed=seed)
        held += any(at.low <= 256 <= at.high for at in found.crossings)
    assert held >= 34


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_costs_that_never_cross_have_no_crossing_within_the_limits(factor):
    found, steps = searched(quadratic, lambda T: factor * quadratic(T))
    assert found.crossings == ()
    assert found.side == ("below" if factor < 1 else "above")
    assert (found.T_min, found.T_max) == (1, T_MAX)
    assert max(T for wanted in steps for T in wanted) == T_MAX


def test_a_crossing_beyond_the_largest_size_is_not_made_up():
    found, _ = searched(quadratic, lambda T: quadratic(T) * 2 * T_MAX / T)
    assert found.crossings == ()
    assert found.T_max == T_MAX


@pytest.mark.parametrize("sd", [0.0, 0.005])
def test_a_ratio_of_one_everywhere_is_no_crossing(sd):
    found, steps = searched(quadratic, quadratic, sd=sd)
    assert found.crossings == ()
    assert found.side is None
    assert len(steps) < MOST_STEPS


def test_several_crossings_are_all_enclosed():
    def other(T):
        return quadratic(T) * (4 if T < 100 or T > 500 else 0.25)

    found, _ = searched(quadratic, other)
    assert [at.to for at in found.crossings] == ["below", "above"]
    assert all(at.low <= truth <= at.high for at, truth in zip(found.crossings, (100, 500), strict=True))


@pytest.mark.parametrize("T_max", [1, 2, 60, 100])
def test_small_limits_are_kept(T_max):
    _, steps = searched(quadratic, linear, T_max=T_max)
    assert {T for wanted in steps for T in wanted} <= set(range(1, T_max + 1))


def test_what_fails_closes_its_end_and_is_not_asked_again():
    found, steps = searched(quadratic, lambda T: quadratic(T) * 3000 / T, broken=[4096, 8192])
    asked = [T for wanted in steps for T in wanted]
    assert len(asked) == len(set(asked))
    assert (found.crossings, found.T_max) == ((), 1024)


def test_where_nothing_works_the_search_ends():
    assert searched(quadratic, linear, broken=FIRST)[1] == [list(FIRST)]


def test_a_search_that_was_cut_short_says_no_more_than_the_sizes_that_enclose():
    found, _ = searched(quadratic, lambda T: quadratic(T) * 500 / T, sd=0.001, most=1)
    (at,) = found.crossings
    assert (at.low, at.high) == (256, 1024)


@given(sizes=st.lists(st.integers(1, 10**4), min_size=2, unique=True), share=st.floats(0.01, 0.99))
def test_a_size_lies_between_those_that_enclose_it(sizes, share):
    sizes = sorted(sizes)
    T = sizes[0] + share * (sizes[-1] - sizes[0])
    below, above = enclosing(sizes, T)
    assert below < T < above
    assert not [size for size in sizes if below < size < above and size != pytest.approx(T, rel=1e-8)]

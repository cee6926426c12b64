"""Crossovers: found where they are, never beyond what was measured."""

from itertools import pairwise

import numpy as np
import pytest
from frames import failed, frame, timed
from hypothesis import given
from hypothesis import strategies as st

from attnbench.analyse.compare import MARGIN, verdicts
from attnbench.analyse.crossover import crossings, crossovers, noise
from attnbench.analyse.points import MEMORY, TIME, points

SIZES = [64, 128, 256, 512, 1024, 2048, 4096]
curves = st.lists(st.tuples(st.integers(1, 10**5), st.floats(0.01, 100)), max_size=9, unique_by=lambda pair: pair[0])


def signs(ratio):
    """On which side of 1 exact ratios are."""
    logs = np.log(np.array(ratio, dtype=float), where=np.array(ratio) > 0, out=np.full(len(ratio), np.nan))
    return np.where(np.abs(logs) > np.log1p(MARGIN), np.sign(logs), 0)


def crossed(T, ratio):
    """The crossings of exact ratios."""
    return crossings(T, ratio, signs(ratio))


def against(rows, baseline, measure=TIME):
    """The crossovers of cells with the baseline."""
    return crossovers(verdicts(points(frame(rows), measure), baseline))


def timed_curves(**laws):
    """The crossovers with `full` at d = 64, of each law of T."""
    return against([timed(name, T, 64, law(T)) for name, law in laws.items() for T in SIZES], "full")


def test_linear_overtakes_full_where_the_costs_are_equal():
    (found,) = timed_curves(full=lambda T: 1e-8 * T**2 * 64, linear=lambda T: 1e-8 * T * 64 * 256)
    assert [(at.T, at.to) for at in found.crossings] == [(pytest.approx(256), "below")]


def test_a_crossover_between_sizes_is_interpolated_in_logs():
    (at,) = crossed([128, 512], [4, 1 / 4])
    assert pytest.approx(256) == at.T


def test_curves_that_never_cross_have_no_crossover_and_a_side():
    curves = timed_curves(full=lambda T: T, slow=lambda T: 2 * T, quick=lambda T: T / 2, same=lambda T: T)
    found = {one.label: one for one in curves}
    assert all(one.crossings == () for one in found.values())
    assert {name: one.side for name, one in found.items()} == {"slow": "above", "quick": "below", "same": None}


@given(curve=curves)
def test_each_crossing_lies_between_neighbours_on_both_sides_of_one(curve):
    curve = sorted(curve)
    T, ratio = [pair[0] for pair in curve], [pair[1] for pair in curve]
    found = crossed(T, ratio)
    assert len(found) == sum(a != b for a, b in pairwise([sign for sign in signs(ratio) if sign]))
    for at in found:
        before = [r for t, r in curve if t < at.T * (1 - 1e-9)]
        after = [r for t, r in curve if t > at.T * (1 + 1e-9)]
        assert T[0] <= at.T * (1 + 1e-9) <= T[-1] * (1 + 2e-9)
        assert (min(after) < 1) if at.to == "below" else (max(after) > 1)
        assert (max(before) > 1) if at.to == "below" else (min(before) < 1)


@given(curve=curves)
def test_the_inverse_ratio_crosses_at_the_same_places_to_the_other_side(curve):
    T, ratio = [pair[0] for pair in curve], np.array([pair[1] for pair in curve])
    there, back = crossed(T, ratio), crossed(T, 1 / ratio)
    assert [at.T for at in back] == pytest.approx([at.T for at in there])
    assert all(a.to != b.to for a, b in zip(there, back, strict=True))


def test_touching_one_is_no_crossover():
    assert crossed([1, 2, 4], [2, 1, 2]) == ()
    assert [at.T for at in crossed([1, 2, 4, 8], [2, 1, 1, 0.5])] == [2]


@pytest.mark.parametrize("bad", [np.nan, 0, -3, np.inf])
def test_a_bad_ratio_is_left_out(bad):
    (at,) = crossings([64, 128, 256], [2, bad, 0.5], [1, np.nan, -1])
    assert pytest.approx(128) == at.T


@given(spread=st.floats(0.001, 0.5), shift=st.floats(-3, 3))
def test_the_interval_of_a_crossover_is_that_of_the_ratios_around_it(spread, shift):
    T = 2.0 ** np.arange(4, 14)
    ratio = 2.0 ** (9 + shift) / T
    side = np.where(np.abs(np.log(ratio)) > np.log1p(max(spread, MARGIN)), np.sign(np.log(ratio)), 0)
    (at,) = crossings(T, ratio, side, ratio / (1 + spread), ratio * (1 + spread))
    assert at.low < at.T < at.high
    assert np.log(at.high / at.low) < 2.4 * np.log1p(spread)  # errors at both ends average out between them
    assert np.log(at.high / at.low) > 1.0 * np.log1p(spread)


def test_the_interval_of_a_crossover_holds_the_true_one():
    random, held = np.random.default_rng(0), 0
    T, error = 2.0 ** np.arange(6, 13), 0.05
    true = 400.0
    for _ in range(200):
        ratio = (true / T) * np.exp(error * random.standard_normal(len(T)))
        (at,) = crossings(T, ratio, np.sign(np.log(ratio)), *(ratio * np.exp(sign * 1.96 * error) for sign in (-1, 1)))
        held += at.low <= true <= at.high
    assert 0.90 <= held / 200 <= 0.99


def test_a_crossing_needs_a_difference_on_both_of_its_sides():
    ratio = [1.2, 1.1, 0.9]
    assert crossings([64, 128, 256], ratio, [0, 0, -1]) == crossings([64, 128, 256], ratio, [1, 1, 0]) == ()
    assert len(crossings([64, 128, 256], ratio, [1, 0, -1])) == 1


@given(curve=curves)
def test_ratios_within_the_margin_never_cross(curve):
    near_one = [pair[1] ** (0.99 * np.log1p(MARGIN) / np.log(100)) for pair in curve]
    rows = [timed(name, pair[0], 8, 1.0) for pair in curve for name in ("a",)]
    rows += [timed("b", pair[0], 8, ratio, spread=0.0) for pair, ratio in zip(curve, near_one, strict=True)]
    assert all(found.crossings == () and found.side is None for found in against(rows, "a"))


def test_noise_around_one_between_two_sides_is_one_crossing():
    (at,) = crossed([1, 2, 4, 8, 16], [2, 1.01, 0.99, 1.01, 0.5])
    assert at.to == "below"
    assert pytest.approx(2 * 2**1.5, rel=0.01) == at.T


def test_a_null_test_has_no_crossing_and_no_side():
    noise = np.random.default_rng(0)
    rows = [timed(name, T, d, noise.normal(1, 0.01), spread=0.002) for name in "ab" for T in SIZES for d in (64, 128)]
    assert {(one.crossings, one.side) for one in against(rows, "a")} == {((), None)}


def test_sizes_where_nothing_differs_are_counted_and_leave_the_side():
    rows = [timed("a", T, 8, 1.0, spread=0.001) for T in (64, 128, 256, 512)]
    rows += [timed("b", 64, 8, 1.01, spread=0.001), timed("b", 128, 8, 0.99, spread=0.2), timed("b", 256, 8, 2.0)]
    rows += [timed("b", 512, 8, 1.0, spread=0.001)]
    (found,) = against(rows, "a")
    assert (found.crossings, found.side) == ((), "above")
    assert (found.n_same, found.n_ambiguous, found.n_sizes) == (2, 1, 4)


def test_noise_is_what_lies_between_no_two_sides():
    side = np.array([[1, 0, -1, 0], [0, 0, 0, 0], [-1, -1, 0, np.nan]])
    assert noise(side).astype(int).tolist() == [[0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 1, 0]]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_missing_cell_ends_what_lies_between_two_sides(axis):
    found = noise(np.expand_dims(np.array([1, 0, np.nan, 0, -1, 0, 1]), axis))
    assert found.ravel().tolist() == [False, True, False, True, False, False, False]


def test_a_single_size_has_its_ratio():
    (found,) = against([timed("a", 64, 8, 2.0), timed("b", 64, 8, 0.5)], "a")
    assert (found.ratio, found.side, found.n_sizes) == (0.25, "below", 1)


def test_no_interval_is_made_up_where_there_is_none():
    rows = [
        timed(name, T, 64, 1, peak_bytes=cost(T)) for name, cost in (("a", float), ("b", lambda T: 300)) for T in SIZES
    ]
    (found,) = against(rows, "a", MEMORY)
    (at,) = found.crossings
    assert pytest.approx(300) == at.T
    assert np.isnan([at.low, at.high]).all()


def test_widths_are_apart_and_the_range_is_the_one_both_were_measured_in():
    rows = [timed("full", T, d, T**2) for T in SIZES for d in (64, 128)]
    rows += [timed("linear", T, d, T * 4 * d) for T in SIZES[:5] for d in (64, 128)]
    rows += [failed("linear", T, d, "oom") for T in SIZES[5:] for d in (64, 128)]
    found = against(rows, "full")
    assert [(one.d_model, one.crossings[0].T) for one in found] == [(64, pytest.approx(256)), (128, pytest.approx(512))]
    assert {(one.T_min, one.T_max, one.n_sizes) for one in found} == {(64, 1024, 5)}

"""Crossovers: found where they are, never beyond what was measured."""

from itertools import pairwise

import numpy as np
import pytest
from frames import failed, frame, timed
from hypothesis import given
from hypothesis import strategies as st

from attnbench.analyse.crossover import MARGIN, crossings, crossovers, noise, ratios, sides
from attnbench.analyse.points import MEMORY, TIME, points

SIZES = [64, 128, 256, 512, 1024, 2048, 4096]
curves = st.lists(st.tuples(st.integers(1, 10**5), st.floats(0.01, 100)), max_size=9, unique_by=lambda pair: pair[0])


def timed_curves(**laws):
    """Points at d = 64 of each law of T."""
    rows = [timed(name, T, 64, law(T)) for name, law in laws.items() for T in SIZES]
    return points(frame(rows), TIME)


def test_linear_overtakes_full_where_the_costs_are_equal():
    merged = timed_curves(full=lambda T: 1e-8 * T**2 * 64, linear=lambda T: 1e-8 * T * 64 * 256)
    (found,) = crossovers(merged, "full")
    assert [(at.T, at.to) for at in found.crossings] == [(pytest.approx(256), "below")]


def test_a_crossover_between_sizes_is_interpolated_in_logs():
    (at,) = crossings([128, 512], [4, 1 / 4])
    assert pytest.approx(256) == at.T


def test_curves_that_never_cross_have_no_crossover_and_a_side():
    merged = timed_curves(full=lambda T: T, slow=lambda T: 2 * T, quick=lambda T: T / 2, same=lambda T: T)
    found = {one.label: one for one in crossovers(merged, "full")}
    assert all(one.crossings == () for one in found.values())
    assert {name: one.side for name, one in found.items()} == {"slow": "above", "quick": "below", "same": None}


@given(curve=curves)
def test_each_crossing_lies_between_neighbours_on_both_sides_of_one(curve):
    curve = sorted(curve)
    T, ratio = [pair[0] for pair in curve], [pair[1] for pair in curve]
    found = crossings(T, ratio)
    signs = [np.sign(np.log(r)) for r in ratio if abs(np.log(r)) > np.log1p(MARGIN)]
    assert len(found) == sum(a != b for a, b in pairwise(signs))
    for at in found:
        before = [r for t, r in curve if t < at.T * (1 - 1e-9)]
        after = [r for t, r in curve if t > at.T * (1 + 1e-9)]
        assert T[0] <= at.T * (1 + 1e-9) <= T[-1] * (1 + 2e-9)
        assert (min(after) < 1) if at.to == "below" else (max(after) > 1)
        assert (max(before) > 1) if at.to == "below" else (min(before) < 1)


@given(curve=curves)
def test_the_inverse_ratio_crosses_at_the_same_places_to_the_other_side(curve):
    T, ratio = [pair[0] for pair in curve], np.array([pair[1] for pair in curve])
    there, back = crossings(T, ratio), crossings(T, 1 / ratio)
    assert [at.T for at in back] == pytest.approx([at.T for at in there])
    assert all(a.to != b.to for a, b in zip(there, back, strict=True))


def test_touching_one_is_no_crossover():
    assert crossings([1, 2, 4], [2, 1, 2]) == ()
    assert [at.T for at in crossings([1, 2, 4, 8], [2, 1, 1, 0.5])] == [2]


@pytest.mark.parametrize("bad", [np.nan, 0, -3, np.inf])
def test_a_bad_ratio_is_left_out(bad):
    (at,) = crossings([64, 128, 256], [2, bad, 0.5])
    assert pytest.approx(128) == at.T


@given(spread=st.floats(0.001, 0.5), shift=st.floats(-3, 3))
def test_the_interval_holds_the_crossover_and_grows_with_the_spread(spread, shift):
    T = 2.0 ** np.arange(4, 14)
    ratio = 2.0 ** (9 + shift) / T
    (at,) = crossings(T, ratio, ratio * (1 - spread), ratio * (1 + spread))
    assert at.low <= at.T * (1 + 1e-9)
    assert at.high * (1 + 1e-9) >= at.T
    assert at.high / at.low == pytest.approx((1 + spread) / (1 - spread), rel=1e-6)


@given(curve=curves)
def test_ratios_within_the_margin_never_cross(curve):
    T, ratio = [pair[0] for pair in curve], np.array([pair[1] for pair in curve])
    near_one = ratio ** (0.99 * np.log1p(MARGIN) / np.log(100))
    assert crossings(T, near_one) == ()
    assert (sides(near_one) == 0).all()


@given(curve=curves, spread=st.floats(0, 3))
def test_a_ratio_differs_only_where_its_interval_leaves_one(curve, spread):
    ratio = np.array([pair[1] for pair in curve])
    side = sides(ratio, ratio / (1 + spread), ratio * (1 + spread))
    assert ((side == 0) == (np.abs(np.log(ratio)) <= np.log1p(max(spread, MARGIN)))).all()
    assert (side[side != 0] == np.sign(np.log(ratio))[side != 0]).all()


def test_an_interval_that_reaches_below_zero_holds_one():
    assert sides([2.0, 2.0], [-1.0, 1.5], [5.0, 5.0]).tolist() == [0, 1]


def test_a_crossing_needs_a_difference_on_both_of_its_sides():
    assert crossings([64, 128, 256], [1.2, 1.1, 0.9], [0.9, 0.8, 0.7], [1.5, 1.3, 1.2]) == ()
    assert crossings([64, 128, 256], [1.2, 1.1, 0.9], [1.1, 1.05, 0.7], [1.5, 1.3, 1.2]) == ()


def test_noise_around_one_between_two_sides_is_one_crossing():
    (at,) = crossings([1, 2, 4, 8, 16], [2, 1.01, 0.99, 1.01, 0.5])
    assert at.to == "below"
    assert pytest.approx(2 * 2**1.5, rel=0.01) == at.T


def test_a_null_test_has_no_crossing_and_no_side():
    noise = np.random.default_rng(0)
    rows = [timed(name, T, d, noise.normal(1, 0.01), spread=0.002) for name in "ab" for T in SIZES for d in (64, 128)]
    assert {(one.crossings, one.side, one.n_same) for one in crossovers(points(frame(rows), TIME), "a")} == {
        ((), None, len(SIZES))
    }


def test_sizes_where_both_are_the_same_are_counted_and_leave_the_side():
    rows = [timed("a", T, 8, 1.0) for T in (64, 128, 256)]
    rows += [timed("b", T, 8, time_s) for T, time_s in ((64, 1.01), (128, 0.99), (256, 2.0))]
    (found,) = crossovers(points(frame(rows), TIME), "a")
    assert (found.crossings, found.side, found.n_same, found.n_sizes) == ((), "above", 2, 3)


def test_noise_is_what_lies_between_no_two_sides():
    side = np.array([[1, 0, -1, 0], [0, 0, 0, 0], [-1, -1, 0, np.nan]])
    assert noise(side).astype(int).tolist() == [[0, 0, 0, 1], [0, 1, 1, 1], [0, 0, 1, 0]]


@pytest.mark.parametrize("axis", [0, 1])
def test_a_missing_cell_ends_what_lies_between_two_sides(axis):
    found = noise(np.expand_dims(np.array([1, 0, np.nan, 0, -1, 0, 1]), axis))
    assert found.ravel().tolist() == [False, True, False, True, False, False, False]


def test_a_single_size_has_its_ratio():
    (found,) = crossovers(points(frame([timed("a", 64, 8, 2.0), timed("b", 64, 8, 0.5)]), TIME), "a")
    assert (found.ratio, found.side, found.n_sizes) == (0.25, "below", 1)


def test_no_interval_is_made_up_where_there_is_none():
    rows = [
        timed(name, T, 64, 1, peak_bytes=cost(T)) for name, cost in (("a", float), ("b", lambda T: 300)) for T in SIZES
    ]
    (found,) = crossovers(points(frame(rows), MEMORY), "a")
    (at,) = found.crossings
    assert pytest.approx(300) == at.T
    assert np.isnan([at.low, at.high]).all()


def test_widths_are_apart_and_the_range_is_the_one_both_were_measured_in():
    rows = [timed("full", T, d, T**2) for T in SIZES for d in (64, 128)]
    rows += [timed("linear", T, d, T * 4 * d) for T in SIZES[:5] for d in (64, 128)]
    rows += [failed("linear", T, d, "oom") for T in SIZES[5:] for d in (64, 128)]
    found = crossovers(points(frame(rows), TIME), "full")
    assert [(one.d_model, one.crossings[0].T) for one in found] == [(64, pytest.approx(256)), (128, pytest.approx(512))]
    assert {(one.T_min, one.T_max, one.n_sizes) for one in found} == {(64, 1024, 5)}


def test_a_missing_baseline_is_said_and_leaves_the_others_alone():
    rows = [timed("full", 64, 8, 1), failed("full", 128, 8, "oom"), timed("a", 64, 8, 2), timed("a", 128, 8, 2)]
    found = ratios(points(frame(rows), TIME), "full").set_index("T")
    assert found["ratio"].tolist() == pytest.approx([2, np.nan], nan_ok=True)
    assert found["status"].tolist() == ["ok", "no baseline"]


def test_an_unknown_baseline_gives_no_crossover():
    assert crossovers(timed_curves(linear=lambda T: T), "absent") == []

"""Local slopes: right on exact laws, silent when there is too little to go by."""

import numpy as np
import pytest
from frames import frame, timed
from hypothesis import given
from hypothesis import strategies as st
from pandas import DataFrame

from attnbench.analyse.points import TIME, points
from attnbench.analyse.scaling import scaling, scalings

sizes = st.lists(st.integers(1, 10**5), min_size=3, max_size=8, unique=True)


@given(T=sizes, exponent=st.floats(-3, 3), factor=st.floats(1e-9, 1e3))
def test_a_power_law_has_its_exponent_as_every_slope(T, exponent, factor):
    found = scaling(T, factor * np.array(T, dtype=float) ** exponent)
    assert found.slopes == pytest.approx([exponent] * (len(T) - 1), abs=1e-6)
    assert found.exponent == pytest.approx(exponent, abs=1e-6)


@given(T=sizes, seed=st.integers(0, 99), factor=st.floats(1e-6, 1e6))
def test_neither_order_nor_unit_changes_a_slope(T, seed, factor):
    noise = np.random.default_rng(seed)
    values = noise.lognormal(size=len(T))
    order = noise.permutation(len(T))
    there, back = scaling(T, values), scaling(np.array(T)[order], factor * values[order])
    assert back.sizes == there.sizes
    assert back.slopes == pytest.approx(there.slopes, rel=1e-6, abs=1e-6)
    assert back.exponent == pytest.approx(there.exponent, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("T", [[], [256], [256, 256], [256, 256, 512, 512], [256, 512]])
def test_fewer_than_three_sizes_give_no_number(T):
    found = scaling(T, [1.0] * len(T))
    assert (found.slopes, found.note) == ((), "not enough sizes")
    assert np.isnan(found.exponent)


def test_an_outlier_in_the_middle_is_flagged_although_the_fit_is_two():
    found = scaling([256, 512, 1024], [1, 100, 16])
    assert found.exponent == pytest.approx(2)
    assert found.note.startswith("no single power law (R² = 0.")
    assert found.slopes[0] > 6 > 0 > found.slopes[1]


def test_an_offset_shows_in_the_local_slopes():
    T = 2.0 ** np.arange(7, 13)
    found = scaling(T, 1 + 1e-6 * T**2)
    assert found.exponent == pytest.approx(0.81, abs=0.005)
    assert found.slopes[-1] == pytest.approx(1.78, abs=0.005)
    assert found.note.startswith("no single power law")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -1.0])
def test_a_bad_value_is_dropped_and_counted(bad):
    found = scaling([64, 128, 256, 512], [64, bad, 256, 512])
    assert (found.sizes, found.n_dropped, found.note) == ((64, 256, 512), 1, "")
    assert found.slopes == pytest.approx([1, 1])


def test_a_constant_cost_is_a_perfect_power_law_of_exponent_zero():
    found = scaling([64, 128, 256], [3, 3, 3])
    assert (found.slopes, found.exponent, found.r2) == ((0, 0), 0, 1)


def test_each_label_and_width_has_slopes_of_its_own():
    rows = [
        timed(name, T, d, T**power) for name, d, power in (("a", 8, 1), ("a", 16, 2), ("b", 8, 3)) for T in (2, 4, 8)
    ]
    found = scalings(points(frame(rows), TIME))
    assert {key: round(one.exponent, 6) for key, one in found.items()} == {("a", 8): 1, ("a", 16): 2, ("b", 8): 3}


def test_each_label_and_length_has_slopes_in_d():
    T, d_model = (64, 128), (32, 64, 128)
    rows = [("fused", T_, d, 3e-9 * T_ * d**2) for T_ in T for d in d_model]
    points = DataFrame(rows, columns=["label", "T", "d_model", "value"])
    found = scalings(points, "d_model")
    assert list(found) == [("fused", 64), ("fused", 128)]
    for one in found.values():
        assert one.sizes == d_model
        assert one.slopes == pytest.approx([2, 2])

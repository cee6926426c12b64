"""Verdicts on pairs: nothing is called different by chance, and what differs is found."""

import itertools

import numpy as np
import pytest
from frames import failed, frame, timed
from hypothesis import given
from hypothesis import strategies as st
from noisy_visits import visits
from pandas import DataFrame

from attnbench.analyse.compare import MARGIN, holm, p_values, verdicts
from attnbench.analyse.points import MEMORY, TIME, points
from attnbench.intervals import interval, typical_spread
from attnbench.statistics import median

N_TRIALS = 200
SIZES = (64, 128, 256, 512)
BOUNDS = st.tuples(st.floats(0.01, 100), st.floats(0, 3), st.floats(0, 3))  # a value, and how far its bounds are off


def trial(random, n_visits, factor, **noise):
    """The verdicts on a twin that takes `factor` times as long at each size, from synthetic visits of one run."""
    keys = [(name, T) for name in ("a", "b") for T in SIZES]
    cells = [visits(random, 1e-5 * T * (factor if name == "b" else 1), n_visits, **noise) for name, T in keys]
    known = typical_spread(cells)
    rows = []
    for (name, T), cell in zip(keys, cells, strict=True):
        low, high = interval(cell, known)
        time_s = median([median(samples) for samples in cell])
        rows.append((name, 8, T, time_s, low, high, "ok"))
    merged = DataFrame(rows, columns=["label", "d_model", "T", "value", "low", "high", "status"])
    return verdicts(merged, "a")["verdict_corrected"].tolist()


def compared(value, low, high, base=(1.0, 0.99, 1.01), n=1):
    """The verdict on one point beside n - 1 others that are exactly the same."""
    rows = [timed("a", T, 8, base[0]) | {"time_low_s": base[1], "time_high_s": base[2]} for T in range(1, n + 1)]
    rows += [timed("b", 1, 8, value) | {"time_low_s": low, "time_high_s": high}]
    rows += [timed("b", T, 8, 1.0, spread=0) for T in range(2, n + 1)]
    return verdicts(points(frame(rows), TIME), "a").iloc[0]


@pytest.mark.parametrize(("n_visits", "drift"), [(2, 0.0), (3, 0.0), (4, 0.05), (5, 0.02)])
def test_one_distribution_under_two_names_is_hardly_ever_called_different(n_visits, drift):
    random = np.random.default_rng([n_visits, int(100 * drift)])
    found = [trial(random, n_visits, 1.0, drift=drift) for _ in range(N_TRIALS)]
    assert sum(bool({"faster", "slower"} & set(each)) for each in found) <= 0.05 * N_TRIALS


def test_a_twin_that_is_a_tenth_slower_is_found_and_never_called_faster():
    random = np.random.default_rng(0)
    found = list(itertools.chain(*(trial(random, 3, 1.1) for _ in range(N_TRIALS))))
    assert found.count("slower") >= 0.9 * len(found)
    assert "faster" not in found
    assert "same" not in found


def test_quiet_twins_are_the_same_and_noisy_ones_ambiguous():
    random = np.random.default_rng(1)
    quiet = list(itertools.chain(*(trial(random, 3, 1.0, between=0.003) for _ in range(40))))
    noisy = list(itertools.chain(*(trial(random, 3, 1.0, between=0.05) for _ in range(40))))
    assert quiet.count("same") > 0.9 * len(quiet)
    assert noisy.count("ambiguous") > 0.9 * len(noisy)


@pytest.mark.parametrize(
    ("value", "low", "high", "verdict"),
    [
        (0.90, 0.89, 0.91, "faster"),
        (1.10, 1.09, 1.11, "slower"),
        (1.005, 1.00, 1.01, "same"),
        (1.015, 1.015, 1.015, "same"),
        (1.02, 1.00, 1.04, "ambiguous"),
        (1.20, 0.95, 1.50, "ambiguous"),
        (1.025, 1.02, 1.06, "ambiguous"),  # surely slower, and by less than counts
    ],
)
def test_a_verdict_needs_a_margin_and_an_interval(value, low, high, verdict):
    found = compared(value, low, high)
    assert (found["verdict"], found["verdict_corrected"]) == (verdict, verdict)


def test_what_one_comparison_shows_is_ambiguous_among_many():
    alone, among = compared(1.1, 1.02, 1.2), compared(1.1, 1.02, 1.2, n=20)
    assert (alone["verdict"], alone["verdict_corrected"]) == ("slower", "slower")
    assert (among["verdict"], among["verdict_corrected"], among["side"]) == ("slower", "ambiguous", 0)
    assert among["p_holm"] == pytest.approx(20 * among["p"])


def test_holm_is_the_one_that_is_computed_by_hand():
    # sorted: 0.005 · 4, 0.01 · 3, 0.03 · 2, 0.04 · 1, none below the one before it
    assert holm([0.01, 0.04, np.nan, 0.03, 0.005]) == pytest.approx([0.03, 0.06, np.nan, 0.06, 0.02], nan_ok=True)
    assert holm([0.6, 0.7]).tolist() == [1.0, 1.0]
    assert holm([]).tolist() == []


@given(p=st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_correction_raises_each_p_keeps_their_order_and_is_bounded_by_bonferroni(p):
    p, corrected = np.array(p), holm(p)
    assert (corrected >= p).all()
    assert (corrected <= np.minimum(len(p) * p, 1)).all()
    assert (np.diff(corrected[np.argsort(p)]) >= 0).all()


def test_p_is_5_percent_where_the_interval_ends_at_0():
    assert p_values([1.0, -1.0, 2.0], [0.0, -3.0, 1.0], [9.0, 0.0, 9.0]) == pytest.approx([0.05, 0.05, 9e-5], rel=0.05)
    assert p_values([0.0, 0.0, 0.1, np.nan], [0.0, -1.0, 0.1, 0.0], [0.0, 1.0, 0.1, 0.0]).tolist()[:3] == [1, 1, 0]


@given(a=BOUNDS, b=BOUNDS)
def test_the_inverse_ratio_has_the_inverse_interval_and_verdict(a, b):
    rows = [timed(name, 1, 8, value) | {"time_low_s": value / (1 + down), "time_high_s": value * (1 + up)}
            for name, (value, down, up) in (("a", a), ("b", b))]  # fmt: skip
    merged = points(frame(rows), TIME)
    (there,), (back,) = (verdicts(merged, name).to_dict("records") for name in "ab")
    assert [there["ratio"], there["ratio_low"], there["ratio_high"], there["p"]] == pytest.approx(
        [1 / back["ratio"], 1 / back["ratio_high"], 1 / back["ratio_low"], back["p"]]
    )
    other = {"faster": "slower", "slower": "faster"}.get(there["verdict"], there["verdict"])
    assert back["verdict"] == other
    outside = not there["ratio_low"] <= 1 <= there["ratio_high"]
    assert (there["verdict"] in ("faster", "slower")) <= (outside and abs(np.log(there["ratio"])) > np.log1p(MARGIN))


def test_the_interval_of_a_ratio_is_that_of_drawing_both():
    random = np.random.default_rng(2)
    a, b = np.exp(0.03 * random.standard_normal(200_000)), np.exp(0.1 + 0.05 * random.standard_normal(200_000))
    rows = [
        timed(name, 1, 8, float(np.median(draws)))
        | dict(zip(("time_low_s", "time_high_s"), np.quantile(draws, (0.025, 0.975)).tolist(), strict=True))
        for name, draws in (("a", a), ("b", b))
    ]
    found = verdicts(points(frame(rows), TIME), "a").iloc[0]
    joint = np.quantile(b / a, (0.025, 0.975))
    assert [found["ratio_low"], found["ratio_high"]] == pytest.approx(joint.tolist(), rel=0.003)


def test_exact_numbers_have_an_interval_of_no_width_and_a_verdict_by_the_margin_alone():
    sizes = {"b": 1000, "c": 1029, "d": 1031, "e": 969}
    rows = [timed(name, 1, 8, 1.0, peak_bytes=n) for name, n in {"a": 1000, **sizes}.items()]
    found = verdicts(points(frame(rows), MEMORY), "a", resolution=1.0)
    assert found["verdict_corrected"].tolist() == ["same", "same", "slower", "faster"]
    assert (found["ratio_low"] == found["ratio"]).all()
    assert (found["ratio_high"] == found["ratio"]).all()


def test_one_byte_is_no_difference():
    rows = [timed(name, 1, 8, 1.0, peak_bytes=n) for name, n in {"a": 16, "b": 17, "c": 18}.items()]
    merged = points(frame(rows), MEMORY)
    assert verdicts(merged, "a", resolution=MEMORY.resolution)["verdict"].tolist() == ["same", "slower"]


def test_equal_times_with_wide_intervals_are_not_the_same():
    assert compared(1.0, 0.9, 1.1)["verdict"] == "ambiguous"


def test_an_interval_that_reaches_to_zero_holds_one():
    found = compared(2.0, 0.0, 5.0)
    assert (found["ratio_low"], found["verdict"]) == (0, "ambiguous")


def test_a_missing_baseline_is_said_has_no_verdict_and_counts_in_no_family():
    rows = [timed("full", 64, 8, 1), failed("full", 128, 8, "oom"), timed("a", 64, 8, 2), timed("a", 128, 8, 2)]
    rows += [failed("b", 64, 8, "timeout")]
    found = verdicts(points(frame(rows), TIME), "full")
    assert found["ratio"].tolist() == pytest.approx([2, np.nan, np.nan], nan_ok=True)
    assert found["status"].tolist() == ["ok", "no baseline", "timeout"]
    assert found["verdict_corrected"].isna().tolist() == [False, True, True]
    assert found["p_holm"].iloc[0] == found["p"].iloc[0]


def test_other_columns_than_sizes_can_say_what_is_compared_with_what():
    rows = [timed(name, T, 8, T * factor) for name, factor in (("a", 1.0), ("b", 2.0)) for T in (64, 128)]
    merged = points(frame(rows), TIME).assign(x=lambda data: data["T"] * 2)
    assert verdicts(merged, "a", at=["x"])["ratio"].tolist() == [2, 2]


def test_the_same_points_give_the_same_verdicts():
    random = np.random.default_rng(3)
    rows = [timed(name, T, 8, random.lognormal()) for name in "abc" for T in SIZES]
    one, two = (verdicts(points(frame(rows), TIME), "a") for _ in range(2))
    assert one.equals(two)

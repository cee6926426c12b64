"""A cost as a sum of terms: exact laws come back exactly, noisy ones within their intervals, and too little is said."""

from itertools import product

import numpy as np
import pytest
import torch
from cores import BIDIRECTIONAL_ONLY, BUILT_IN
from frames import frame, timed
from hypothesis import given
from hypothesis import strategies as st

from attnbench.analyse.fit import FIT, NOISE, fit, fits
from attnbench.analyse.points import TIME, points
from attnbench.analyse.terms import TERMS, Sizes, distinct
from attnbench.measure.cost import cost
from attnbench.mixer import Spec

T_ALL, D_ALL, HEADS = (64, 128, 256, 512, 1024, 2048), (64, 128, 256), 4
LAW = {"1": 1e-4, "T": 3e-7, "T d": 5e-9, "T d²": 3e-10, "H T²": 1e-9, "T² d": 2e-10}
N_TRIALS = 200


def grid(T=T_ALL, d=D_ALL, n_heads=HEADS):
    """T, d_model and n_heads of every point, each (n,); n_heads may depend on d."""
    sizes = np.array(list(product(T, d)), dtype=float)
    return (
        sizes[:, 0],
        sizes[:, 1],
        np.array([float(n_heads(one) if callable(n_heads) else n_heads) for one in sizes[:, 1]]),
    )


def law(sizes, coefficients):
    """The cost at each point by the sum of terms."""
    return sum(c * Sizes(*sizes).column(TERMS[name]) for name, c in coefficients.items())


def coefficients(found):
    return {term.name: term.coefficient for term in found.terms}


# Laws without noise


@given(exponents=st.lists(st.floats(-1, 1), min_size=6, max_size=6), absent=st.sets(st.integers(0, 5), max_size=5))
@pytest.mark.parametrize("deterministic", [True, False])
def test_an_exact_law_comes_back(exponents, absent, deterministic):
    sizes = grid()
    true = {name: c * 10**e for (name, c), e in zip(LAW.items(), exponents, strict=True)}
    true |= {name: 0.0 for i, name in enumerate(true) if i in absent}
    found = fit(*sizes, law(sizes, true), deterministic=deterministic)
    assert coefficients(found) == pytest.approx(true, rel=1e-5, abs=1e-16)
    assert found.noise < 1e-6
    assert found.r2 == pytest.approx(1)
    assert [term.low for term in found.terms] == pytest.approx(list(true.values()), rel=1e-5, abs=1e-13)
    assert [term.high for term in found.terms] == pytest.approx(list(true.values()), rel=1e-5, abs=1e-13)
    assert sum(term.share for term in found.terms) == pytest.approx(1)
    assert found.predict(*sizes) == pytest.approx(law(sizes, true), rel=1e-6)
    assert {term.name for term in found.terms if term.seen == "unresolved"} == {n for n, c in true.items() if c == 0}


@given(factor=st.floats(1e-6, 1e12), seed=st.integers(0, 99))
def test_the_unit_of_a_cost_changes_its_coefficients_and_nothing_else(factor, seed):
    sizes = grid()
    values = law(sizes, LAW) * np.random.default_rng(seed).normal(1, 0.05, len(sizes[0]))
    there, back = fit(*sizes, values), fit(*sizes, factor * values)
    for one, other in zip(there.terms, back.terms, strict=True):
        scaled = [factor * end for end in (one.coefficient, one.low, one.high)]
        assert [other.coefficient, other.low, other.high] == pytest.approx(scaled, rel=1e-6, abs=1e-12 * factor)
        assert (other.share, other.seen) == (pytest.approx(one.share, abs=1e-9), one.seen)
    assert (back.noise, back.r2) == pytest.approx((there.noise, there.r2))


def test_the_order_of_points_changes_no_coefficient():
    sizes, noise = grid(), np.random.default_rng(0)
    values, order = law(sizes, LAW) * noise.normal(1, 0.05, len(sizes[0])), noise.permutation(len(sizes[0]))
    there, back = fit(*sizes, values), fit(*(one[order] for one in sizes), values[order])
    assert coefficients(back) == pytest.approx(coefficients(there), rel=1e-8)
    assert (back.T, back.d_model) == (there.T, there.d_model) == (2048, 256)


def test_the_same_data_gives_the_same_numbers():
    sizes = grid()
    values = law(sizes, LAW) * np.random.default_rng(0).normal(1, 0.05, len(sizes[0]))
    assert fit(*sizes, values) == fit(*sizes, values)


# What sizes can tell


def test_a_block_of_slope_one_and_a_half_has_both_of_its_terms():
    sizes = grid(T=2 ** np.arange(8, 14), d=(256, 512))
    found = fit(*sizes, law(sizes, {"T d²": 8.0, "T² d": 4.0}), deterministic=True)
    assert coefficients(found) == pytest.approx({"1": 0, "T": 0, "T d²": 8, "H T²": 0, "T² d": 4}, abs=1e-9)
    assert {term.name for term in found.terms if term.seen == "resolved"} == {"T d²", "T² d"}
    assert found.predict(1024, 512, 4) == pytest.approx(2 * 8 * 1024 * 512**2)  # at T = 2d both are equal


def test_with_one_width_only_powers_of_T_are_told_apart():
    sizes = grid(d=(64,))
    found = fit(*sizes, law(sizes, LAW))
    assert coefficients(found) == pytest.approx(
        {"1": 1e-4, "T": 3e-7 + 64 * 5e-9 + 64**2 * 3e-10, "T²": 4e-9 + 64 * 2e-10}
    )
    assert found.notes == (
        "T, T d and T d² are one term with these sizes",
        "H T² and T² d are one term with these sizes",
    )


def test_with_two_widths_the_middle_power_is_left_out_and_its_cost_is_kept():
    sizes = grid(d=(64, 128))
    found = fit(*sizes, law(sizes, {"T d": 1.0}), deterministic=True)
    assert list(coefficients(found)) == ["1", "T", "T d²", "H T²", "T² d"]
    assert found.notes == ("T d is a mixture of T and T d² with these sizes and counts among them",)
    assert found.noise < 1e-9


def test_heads_of_one_width_cannot_be_told_from_width():
    sizes = grid(n_heads=lambda d: d / 32)
    found = fit(*sizes, law(sizes, {"T² d": 1.0}), deterministic=True)
    assert found.largest.name == "H T² or T² d"
    assert found.predict(100, 64, 2) == pytest.approx(100**2 * 64)


def test_heads_that_vary_are_told_from_width():
    T, d, _ = grid()
    sizes = tuple(np.concatenate(pair) for pair in ((T, T), (d, d), (np.full(len(T), 1.0), np.full(len(T), 8.0))))
    assert coefficients(fit(*sizes, law(sizes, LAW), deterministic=True)) == pytest.approx(LAW, rel=1e-6)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 2000), st.integers(1, 64)), min_size=3, max_size=30))
def test_terms_that_are_kept_are_independent_and_none_is_lost_in_silence(sizes):
    sizes = Sizes(*np.array(sizes, dtype=float).T)
    known = distinct(sizes)
    if known is not None:
        columns = np.stack([sizes.column(powers) for powers in known.terms.values()], axis=1)
        assert np.linalg.matrix_rank(columns / np.linalg.norm(columns, axis=0), tol=1e-14) == len(known.terms)
        told = " ".join([*known.terms, *known.notes])
        assert all(name in told for name in TERMS if name != "1")


@pytest.mark.parametrize("T", [[], [256], [256, 256], [256, 256, 512, 512], [256, 512]])
def test_fewer_than_three_sizes_give_no_number(T):
    found = fit(T, [64] * len(T), [4] * len(T), [1.0] * len(T))
    assert (found.terms, found.notes, found.held_out) == ((), ("not enough sizes",), ())
    assert np.isnan([found.r2, found.noise]).all()


def test_as_many_terms_as_points_are_no_fit():
    found = fit([256, 512, 1024], [64] * 3, [4] * 3, [1, 100, 16])
    assert (found.terms, found.notes) == ((), ("not enough points for the terms",))


def test_an_outlier_is_flagged():
    found = fit([256, 512, 1024, 2048], [64] * 4, [4] * 4, [1, 100, 16, 64])
    assert found.noise > 4 * NOISE
    assert found.notes[-1].startswith("residuals of ")
    assert found.r2 < 0.95


def test_an_offset_is_a_term_of_its_own():
    T = 2.0 ** np.arange(7, 13)
    found = fit(T, [64] * 6, [4] * 6, 1 + 1e-6 * T**2)
    assert coefficients(found) == pytest.approx({"1": 1, "T": 0, "T²": 1e-6}, abs=1e-10)
    assert [term.seen for term in found.terms] == ["resolved", "unresolved", "resolved"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.0, -1.0])
def test_a_bad_value_is_dropped_and_counted(bad):
    sizes = grid()
    values = law(sizes, LAW)
    values[7] = bad
    found = fit(*sizes, values)
    assert (found.n_points, found.n_dropped) == (17, 1)
    assert coefficients(found) == pytest.approx(LAW, rel=1e-6)


def test_a_term_that_is_nowhere_above_the_noise_is_not_resolved():
    sizes, noise = grid(), np.random.default_rng(0)
    faint = LAW | {"H T²": 0.0, "T² d": 1e-12}
    seen = []
    for _ in range(20):
        found = fit(*sizes, law(sizes, faint) * noise.normal(1, 0.05, len(sizes[0])))
        seen += [term.seen for term in found.terms if term.name == "T² d"]
    assert seen.count("unresolved") == 20


def test_shares_are_numbers_where_noise_is_as_large_as_the_cost():
    sizes, noise = grid(T=(128, 256, 512, 1024, 2048), d=(64, 256)), np.random.default_rng(0)
    for _ in range(20):
        found = fit(*sizes, law(sizes, LAW) * noise.lognormal(0, 2.5, len(sizes[0])))
        ends = [(term.share_low, term.share_high) for term in found.terms]
        assert all(0 <= low <= high <= 1 for low, high in ends)


def test_an_overhead_that_fades_is_seen_and_called_small():
    sizes = grid()
    found = fit(*sizes, law(sizes, LAW) * np.random.default_rng(0).normal(1, 0.01, len(sizes[0])))
    first = found.terms[0]
    assert (first.name, first.seen) == ("1", "small")
    assert first.most > 0.2 > 0.01 > first.share


# The largest T, held out


def test_the_largest_sizes_are_predicted_from_the_smaller_ones():
    sizes = grid()
    found = fit(*sizes, law(sizes, LAW))
    assert [(one.T, one.d_model) for one in found.held_out] == [(2048, d) for d in D_ALL]
    assert [one.error for one in found.held_out] == pytest.approx([0, 0, 0], abs=1e-6)


def test_a_cost_that_leaves_its_law_is_missed():
    sizes = grid()
    values = (
        law(sizes, LAW) * np.random.default_rng(0).normal(1, 0.02, len(sizes[0])) * np.where(sizes[0] == 2048, 2, 1)
    )
    for one in fit(*sizes, values).held_out:
        assert one.low < one.predicted < one.high < one.measured
        assert one.error == pytest.approx(-0.5, abs=0.1)


def test_nothing_is_held_out_of_three_sizes():
    sizes = grid(T=(64, 128, 256))
    assert fit(*sizes, law(sizes, LAW)).held_out == ()


# Noise of 5 %


@pytest.fixture(scope="module")
def trials():
    """Fits to one law under independent noise of 5 %."""
    sizes, noise = grid(), np.random.default_rng(1)
    return [fit(*sizes, law(sizes, LAW) * noise.normal(1, 0.05, len(sizes[0]))) for _ in range(N_TRIALS)]


@pytest.mark.parametrize("name", ["T d²", "T² d"])
def test_the_terms_of_the_claims_are_found_within_a_tenth(trials, name):
    ratios = np.array([coefficients(one)[name] for one in trials]) / LAW[name]
    assert abs(np.median(ratios) - 1) < 0.02
    assert (abs(ratios - 1) < 0.1).mean() > {"T d²": 0.65, "T² d": 0.85}[name]


@pytest.mark.parametrize("name", ["T d²", "T² d"])
def test_intervals_cover_as_often_as_they_say(trials, name):
    terms = [next(term for term in one.terms if term.name == name) for one in trials]
    assert 0.84 <= np.mean([term.low <= LAW[name] <= term.high for term in terms]) <= 0.96


def test_intervals_of_predictions_cover_as_often_as_they_say(trials):
    held_out = [one for found in trials for one in found.held_out]
    assert 0.8 <= np.mean([one.low <= one.measured <= one.high for one in held_out]) <= 0.96


def test_noise_is_estimated(trials):
    assert np.median([one.noise for one in trials]) == pytest.approx(0.05, rel=0.15)


# Operations by formula

FORMULAS = {  # of a causal layer, forward, 4 heads; the triangle of T (T + 1) / 2 pairs gives T² d and T d
    "full": {"T d²": 8, "T² d": 2, "T d": 2},
    "fused": {"T d²": 8, "T² d": 2, "T d": 2},
    "xformers": {"T d²": 8, "T² d": 2, "T d": 2},
    "gqa": {"T d²": 4 * (1 + 1 / HEADS), "T² d": 2, "T d": 2},  # one of 4 heads has keys
    "flex": {"T d²": 8, "T² d": 2, "T d": 2},
    "linear": {"T d²": 8 + 4 / HEADS, "T d": 4 + 2 * 65, "T": 65 * HEADS},  # chunks of 64
    "lstm": {"T d²": 16},
    "gru": {"T d²": 12},
    "rnn": {"T d²": 4},
    "mean": {"T d²": 4},
    "none": {"T d²": 4},
    "retnet": {"T d²": 16 + 8 / HEADS, "T d": 3 * 65},
    "gla": {"T d²": 8 + 2 / HEADS, "T d": 1.5 * 65 + 2 * 16 * 1.5},
    "rwkv": {"T d²": 10 + 4 / HEADS, "T d": 2 * 65 + 2 * (2 * 5 * 32 + 2 * 64)},
    "mamba2": {"T d²": 12, "T d": 4 * 128 + 8 * 128 / 1 + 2 * HEADS + 2 * 65, "T": 128 * 65},
    "mingru": {"T d²": 4, "T d": 2},
    "minlstm": {"T d²": 6, "T d": 2},
    "lru": {"T d²": 8, "T d": 8},
    "mamba": {"T d²": 12.5, "T d": 128 + 192 + 16},  # B and C, 6 for each of 32 states, 4 taps of 2 channels
    "deltanet": {"T d²": 8 + 6 / HEADS, "T d": 5 * 32 - 1 + 2 * HEADS},  # chunks of 32
    "gated_deltanet": {"T d²": 10 + 6 / HEADS, "T d": 5 * 32 - 1 + 4 * HEADS},
    "linformer": {"T d²": 8, "T d": 8 * 256},  # of rank 256
    "performer": {"T d²": 8, "T d": 8 * 256 + 65, "T": HEADS * (4 * 256 + 65 * 257)},  # 256 features
    "cosformer": {"T d²": 8 + 8 / HEADS, "T d": 8 + 3 * 65, "T": 65 * HEADS},
    "hedgehog": {"T d²": 8 + 12 / HEADS, "T d": 8 + 3 * 65, "T": 65 * HEADS},  # with its maps
}
# The corner that a window, a stride or a filter cuts off is a negative cost, which no sum of these terms holds.
NEARLY = {
    "tcn": ({}, {"T d²": 4 * 3, "T² d": 0}),
    "nystrom": ({}, {"T d²": 8, "T² d": 0}),
    "window": ({"window": 16}, {"T d²": 8, "T d": 4 * 16, "T² d": 0}),
    "strided": ({"stride": 16}, {"T d²": 8, "T² d": 1 / 16}),
    "fixed_sparse": ({"stride": 16, "n_summary": 8}, {"T d²": 8, "T² d": 1, "T d": 4 * 4.5}),
    "bigbird": ({"block": 2}, {"T d²": 8, "T d": 4 * (7 + 2) * 2}),  # 7 blocks a row; two rows see all
    "topk": ({}, {"T d²": 8, "T² d": 1}),
}
LONG = {  # below 322 positions all pairs are cheaper, and taken
    "based": {"T d²": 4, "T d": 4 * 16 * HEADS + 4 * 161 + 65, "T": HEADS * (4 * 161 + 65 * 17)},
}
LOGARITHMIC = {"s4d": 4, "hyena": 8, "fnet": 0}  # T d²; a logarithm of T is no term: others stand for it, nearly


def operations(name, phase="forward", T=(256, 512, 1024, 2048, 4096), **options):
    """The fit of a layer's operations over the whole grid, of which nothing is computed."""
    T, d, H = grid(T=T)
    role = "bidirectional" if name in BIDIRECTIONAL_ONLY else "causal"
    values = []
    for T_one, d_one in zip(T.astype(int).tolist(), d.astype(int).tolist(), strict=True):
        with torch.device("meta"):
            mixer = BUILT_IN[name](Spec(d_one, HEADS, T_one, role), **options)
        values.append(cost([mixer], level="layer", phase=phase, T=T_one, S=T_one, B=1).flops)
    return fit(T, d, H, values, deterministic=True)


def test_every_built_in_variant_has_its_operations_checked():
    assert {*FORMULAS, *NEARLY, *LOGARITHMIC, *LONG} == set(BUILT_IN)


@pytest.mark.parametrize(("phase", "passes"), [("forward", 1), ("forward_backward", 3)])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_terms_of_a_formula_come_back_exactly(name, phase, passes):
    found = operations(name, phase)
    expected = dict.fromkeys(TERMS, 0.0) | {term: passes * c for term, c in FORMULAS[name].items()}
    assert coefficients(found) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert {term.name for term in found.terms if term.seen != "unresolved"} == set(FORMULAS[name])
    for term in found.terms:
        assert [term.low, term.high] == pytest.approx([term.coefficient] * 2, rel=1e-8, abs=1e-6)
        assert [term.share_low, term.share_high] == pytest.approx([term.share] * 2, abs=1e-12)
    assert [one.error for one in found.held_out] == pytest.approx([0, 0, 0], abs=1e-9)


@pytest.mark.parametrize("name", NEARLY)
def test_a_cut_corner_moves_the_other_terms_by_little(name):
    options, expected = NEARLY[name]
    found = operations(name, **options)
    assert {term: coefficients(found)[term] for term in expected} == pytest.approx(expected, rel=0.05, abs=1e-3)
    assert found.noise < 0.01


@pytest.mark.parametrize("name", LONG)
def test_where_only_one_of_two_forms_is_taken_the_terms_come_back_exactly(name):
    found = coefficients(operations(name, T=(512, 1024, 2048, 4096, 8192)))
    assert found == pytest.approx(dict.fromkeys(TERMS, 0.0) | LONG[name], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", LOGARITHMIC)
def test_a_logarithm_moves_the_projections_by_little_and_is_no_square(name):
    found = coefficients(operations(name))
    assert found["T d²"] == pytest.approx(LOGARITHMIC[name], rel=0.05, abs=0.05)
    assert found["T² d"] < 0.02  # full attention has 2


# From points


def test_each_label_has_a_fit_of_its_own():
    rows = [
        timed(name, T, d, law((T, d, HEADS), LAW) * k)
        for name, k in (("a", 1), ("b", 3))
        for T, d in product(T_ALL, D_ALL)
    ]
    found = fits(points(frame(rows), TIME, FIT))
    assert list(found) == ["a", "b"]
    assert coefficients(found["b"]) == pytest.approx({name: 3 * c for name, c in coefficients(found["a"]).items()})


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_term_that_others_say_as_well_is_not_resolved(deterministic, monkeypatch):
    T, d_model, n_heads = grid()
    costs = 20 * T * d_model * (1 + 0.1 * np.sin(3 + np.log2(T)))  # waves of 10 %, no noise and no T²

    def resolved():
        found = fit(T, d_model, n_heads, costs, deterministic=deterministic)
        return {term.name for term in found.terms if term.seen == "resolved"}

    assert resolved() == {"T d"}
    monkeypatch.setattr("attnbench.analyse.fit.MISSED", 0.0)
    assert "T² d" in resolved()

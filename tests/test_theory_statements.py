"""What the statements of theory measure, at sizes so small that the answer is known otherwise."""

import math
from functools import partial

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbench.settings import TimingSettings, TrainSettings
from attnbench.theory import clocked, crossovers, equivariance, identities, memory, mixers, paths, probing, saturation
from attnbench.theory.rules import NOT_RUN, verdict

BRIEF = TrainSettings(steps=2, batch_size=4, lr=[1e-3], n_validation=8, n_test=8, eval_every=1)


def missed(findings):
    return [finding for finding in findings if not finding.ok]


# C1


@given(st.integers(1, 300), st.integers(1, 5))
def test_a_crossing_is_the_last_length_at_which_the_first_costs_no_more(at, factor):
    found = crossovers.crossing(lambda T: factor * T * T, lambda T: factor * T * at, limit=400)
    assert found == at


def test_a_cost_that_is_higher_from_the_start_never_crosses():
    assert crossovers.crossing(lambda T: 8 * T, lambda T: 4 * T, limit=100) is None


@pytest.mark.parametrize("d", [64, 256])
def test_crossovers_by_the_variants_own_formulas_are_where_theory_has_them(d):
    findings = [crossovers._met(met, d) for met in crossovers.meetings(d)]
    assert len(findings) == 18
    assert missed(findings) == []
    assert missed(crossovers._constants(d)) == []


def test_a_wrong_constant_is_a_miss():
    met = crossovers.Met("x", lambda T: T * T, lambda T: 10.0 * T, expected=20)
    assert verdict(crossovers._met(met, 5)) == "differs"
    assert verdict(crossovers._met(met._replace(expected=10), 5)) == "pass"
    assert verdict(crossovers._met(met._replace(expected=None), 5)) == "differs"


@given(st.floats(100, 1000), st.floats(0.5, 2))
def test_a_crossing_of_times_is_interpolated_where_ratios_are_powers_of_length(at, power):
    lengths = [64, 256, 1024, 2048]
    assert clocked.crossing(lengths, [(T / at) ** power for T in lengths]) == pytest.approx(at)


def test_times_that_do_not_cross_say_on_which_side_they_stay():
    assert clocked.crossing([1, 2], [1.5, 2.0]) is None
    assert clocked.crossing([1, 2], [0.1, 0.5]) == math.inf


def test_a_crossover_by_the_clock_passes_near_that_by_operations_and_else_has_a_reason():
    found = partial(clocked.crossover, "x", d=64, B=1, lengths=[128, 2048])
    assert found(2.0, 150.0).ok
    assert not found(2.0, 400.0).ok
    assert found(2.0, 400.0).reason
    assert found(None, None).ok
    assert not found(None, 400.0).ok
    assert found(None, math.inf).measured == "beyond T = 2048"
    assert found(1.0, None).ok  # it may cross before the first length
    assert not found(4.0, None).ok


def test_every_layer_is_timed_at_every_size(monkeypatch):
    monkeypatch.setattr(clocked, "TIMING", TimingSettings(warmup_s=0, max_s=0))
    found = clocked.times(clocked.Grid((8, 16), (16,), B=2))
    assert set(found["label"]) == set(clocked.NAMES)
    assert len(found) == 2 * len(clocked.NAMES)
    assert (found[["ms", "GFLOP/s"]] > 0).all(axis=None)


def test_crossovers_of_each_width_and_batch_are_told_and_drawn():
    rows = [
        {"B": B, "d": 64, "T": T, "label": name, "ms": float(ms)}
        for B in (1, 4)
        for T in (128, 512)
        for name, ms in {"fused": T / 256, "lstm": 1, "gru": 9, "rnn": 0.1}.items()
    ]
    crossings = clocked.met(pd.DataFrame(rows))
    assert list(crossings["T"].fillna(0)) == pytest.approx([256, math.inf, 0] * 2)
    told = clocked._crossovers(crossings)
    assert [finding.measured for finding in told[:3]] == [
        "T = 256 (4 d)",
        "beyond T = 512",
        "none: slower from T = 128 on",
    ]
    picture = clocked._by_batch(crossings)
    assert list(picture.frame["T / d"]) == pytest.approx([4, 4])


# C2


def test_bytes_kept_and_numbers_of_state_are_as_theory_has_them():
    shown = memory.show(True)
    assert [finding.what for finding in shown.findings if not finding.ok and not finding.reason] == []
    assert len(shown.pictures[0].frame["T"].unique()) == len(memory.LENGTHS)


def test_a_slope_is_that_of_the_last_doubling():
    assert memory._slope({1: 5.0, 2: 7.0, 4: 28.0}) == pytest.approx(2)


# C3


def test_statistics_of_rows_whose_softmax_is_known():
    flat = saturation.row_statistics(torch.zeros(3, 8, dtype=torch.float64))
    assert flat["entropy"] == pytest.approx(math.log(8))
    assert flat["largest weight"] == pytest.approx(1 / 8)
    assert flat["saturated"] == 0
    sharp = saturation.row_statistics(torch.tensor([[1000.0, 0.0, 0.0]], dtype=torch.float64))
    assert (sharp["entropy"], sharp["saturated"], sharp["Jacobian"]) == (0, 1, 0)


def test_the_norm_of_the_jacobian_is_that_of_the_jacobian_itself():
    logits = torch.randn(5, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(-1), logits)
    assert saturation.row_statistics(logits[None])["Jacobian"] == pytest.approx(jacobian.norm().item())


def test_only_unscaled_logits_grow_with_the_width():
    rows = saturation.table((4, 64)).set_index(["label", "d_k"])
    assert rows.loc[("unscaled", 64), "std"] == pytest.approx(8, rel=0.05)
    assert rows.loc[("divided by √d_k", 64), "std"] == pytest.approx(1, rel=0.05)


def test_a_quick_look_says_that_nothing_was_trained():
    assert saturation.show(True).findings[-1].measured == NOT_RUN


def test_recall_is_trained_with_any_scale():
    result = saturation.trained(1.0, BRIEF, T=32, d_model=8)
    assert result.status == "ok"
    assert len(result.trials[0]["curve"]) == BRIEF.steps


# C4


def test_a_layer_that_works_position_by_position_has_no_error_of_order_and_one_that_counts_has():
    assert equivariance.order_error(torch.tanh, n_draws=2) == 0
    assert equivariance.order_error(lambda x: x.cumsum(1), n_draws=2) > 0.1
    assert equivariance.cue_error(lambda x: x.sum(1, keepdim=True)) < 1e-6
    assert equivariance.cue_error(lambda x: x[:, :1]) > 0.1


def test_equivariance_holds_and_fails_as_theory_has_it():
    findings = equivariance.show(True).findings
    assert missed(findings) == []
    known = set(mixers.installed(equivariance.T, "bidirectional", dtype="float32"))
    assert sum("no positions:" in finding.what for finding in findings) == len(known)


# C5


def shift(x):
    return torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)


def test_probing_sees_exactly_the_inputs_that_a_layer_reads():
    seen = probing.seen(lambda x: x + shift(x), T=5, d_model=2)
    assert torch.equal(seen, torch.eye(5, dtype=torch.bool) | torch.eye(5, dtype=torch.bool).roll(1, 0).tril())


@given(st.integers(2, 24), st.integers(2, 24))
def test_layers_to_join_are_those_of_a_window(T, window):
    at = torch.arange(T)
    back = at[:, None] - at
    one = (back >= 0) & (back < window)
    assert probing.n_layers_to_join([one] * T, back >= 0) == max(1, math.ceil((T - 1) / (window - 1)))


def test_what_is_never_joined_has_no_number_of_layers():
    alone, all_pairs = torch.eye(4, dtype=torch.bool), torch.ones(4, 4, dtype=torch.bool)
    assert probing.n_layers_to_join([alone] * 9, all_pairs) is None
    assert probing.n_layers_to_join([alone, all_pairs], all_pairs) == 2


def test_paths_are_as_theory_has_them():
    findings = paths.show(True).findings
    assert missed(findings) == []
    assert findings[-1].measured == NOT_RUN


def test_the_reach_of_a_stack_grows_with_its_layers_and_its_window():
    window = mixers.named("window")
    assert [paths.reach(window, n, 16, window=3) for n in (1, 2, 3)] == [2, 4, 6]


def test_recall_by_gap_is_trained_with_any_variant():
    found = paths._accuracies(mixers.named("window"), BRIEF, T=16, window=4)
    assert list(found) == [4, 8]


# C10


def test_every_identity_holds():
    findings = identities.show(True).findings
    assert missed(findings) == []
    decoding = mixers.installed(identities.T, "causal", phase="decode", **identities.SIZES)
    assert sum(finding.what.startswith("step by step") for finding in findings) == len(decoding)


def test_a_difference_is_told_by_the_largest_number():
    assert identities.off(torch.tensor([1.0, 4.0]), torch.tensor([2.0, 4.0])) == 0.25


# All


def test_pictures_have_the_columns_that_they_are_drawn_by():
    for module in (saturation, paths, memory):
        for picture in module.show(True).pictures:
            if hasattr(picture, "frame"):
                assert {"label", picture.x, picture.y} <= set(picture.frame.columns)
                assert isinstance(picture.frame, pd.DataFrame)

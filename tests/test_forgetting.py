"""Forgetting: gradient norms are those of the Jacobian, and rates those of curves that are known."""

import math

import pytest
import torch
from cores import build, noise

from attnbench.settings import TrainSettings
from attnbench.theory import forgetting
from attnbench.theory.mixers import named
from attnbench.theory.rules import NOT_RUN

TINY = TrainSettings(steps=4, batch_size=8, lr=[1e-3], n_validation=16, n_test=64, eval_every=4)


@pytest.mark.parametrize("name", ["fused", "rnn", "lstm", "tcn"])
def test_gradient_norms_are_those_of_the_jacobian(name):
    mixer, x = build(name), noise(7, 12).detach()
    norms = forgetting.gradient_norms(mixer, x)
    rows = [torch.autograd.functional.jacobian(lambda z, i=i: mixer(z[None])[0, -1, i], x) for i in range(12)]
    expected = torch.stack(rows).square().sum((0, 2)).sqrt()  # (T,), input 0 first
    assert norms.numpy() == pytest.approx(expected.flip(0).numpy(), rel=1e-9)


@pytest.mark.parametrize("factor", [0.5, 0.93, 1.0])
def test_the_rate_of_a_geometric_curve_is_its_factor(factor):
    assert forgetting.rate(3 * factor ** torch.arange(64.0).double()) == pytest.approx(factor)


@pytest.mark.parametrize("exponent", [-1.0, 0.0, 0.5])
def test_the_power_of_a_power_law_is_its_exponent(exponent):
    gaps = torch.arange(64.0).double()
    assert forgetting.power(2 * gaps**exponent) == pytest.approx(exponent, abs=1e-9)


def test_at_the_start_all_but_one_prediction_holds_and_that_one_has_a_reason():
    shown = forgetting.show(True)
    (miss,) = [finding for finding in shown.findings if not finding.ok]
    assert miss.what.endswith("forget bias 0, factor per step, by sigmoid(bias)")
    assert miss.reason
    assert [finding.measured for finding in shown.findings].count(NOT_RUN) == 1
    assert {"attention", "rnn", "gru", "lstm, bias 5"} <= set(shown.pictures[0].frame["label"])


def test_the_bias_and_the_map_that_are_set_are_those_of_the_forget_gate():
    _, mixer = forgetting.at_start(named("lstm"), 5.0, recurrent=False)
    _, w_hh, b_ih, b_hh = mixer.rightward.all_weights[0]
    d = forgetting.D_MODEL
    assert not w_hh.any()
    assert (b_ih + b_hh).view(4, d).mean(1).tolist() == [0, 5, 0, 0]
    x = 1e-3 * forgetting.inputs(0)[None]
    copies = x.clone().requires_grad_()
    cell = mixer.rightward(copies)[1][1]  # the last c
    (slope,) = torch.autograd.grad(cell.sum(), copies)
    one, two = slope[0, -2].norm(), slope[0, -1].norm()
    assert one / two == pytest.approx(1 / (1 + math.exp(-5)), rel=1e-2)


def test_a_trained_model_has_its_accuracy_by_gap_and_its_gradients():
    result, norms = forgetting.trained("rnn", TINY, T=24)
    assert set(result.slices) == {"4", "8", "16", "17"}
    assert norms.shape == (24,)
    assert norms.isfinite().all()

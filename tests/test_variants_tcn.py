"""`tcn` equals its taps written out, sees as far as the paper says and no farther, and costs what it says."""

from __future__ import annotations

import math

import pytest
import slow_forms
import torch
from cores import BUILT_IN, assert_equal, build, noise, ragged_mask, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec, Use

BOTH_ROLES = ("causal", "bidirectional")
ROLE = st.sampled_from(BOTH_ROLES)


def at_layer(layer, role="causal", *, d_model=6, max_T=300, kernel=3):
    torch.manual_seed(0)
    return BUILT_IN["tcn"](Spec(d_model, 1, max_T, role, layer), kernel=kernel).double()


def reach(mixers, T):
    """Which inputs (T, T) the outputs of mixers on top of each other depend on; weights that no ReLU can hide."""
    x = torch.eye(T)[:, :, None].expand(-1, -1, 6).double()  # row b is an impulse at position b
    for mixer in mixers:
        with torch.no_grad():
            for parameter in mixer.parameters():
                parameter.fill_(1 / parameter[0].numel())
        x = mixer(x)
    return (x.abs().sum(-1) > 0).T


# The fast form is the slow form


@settings(deadline=None, max_examples=60)
@given(role=ROLE, layer=st.integers(0, 4), kernel=st.integers(1, 6), T=st.integers(1, 40), masked=st.booleans())
def test_it_equals_its_taps_one_by_one(role, layer, kernel, T, masked):
    mixer, x = at_layer(layer, role, kernel=kernel), noise(4, T, 6)
    key_mask = ragged_mask(4, T) if masked else None
    taps = {"dilation": 2**layer, "n_ahead": 0 if role == "causal" else (kernel - 1) // 2}
    weights = [mixer.first.weight, mixer.second.weight]
    assert_equal(
        values_and_gradients(lambda: mixer(x, key_mask=key_mask), [x, *weights]),
        values_and_gradients(
            lambda: slow_forms.temporal_convolution(x, *weights, **taps, key_mask=key_mask), [x, *weights]
        ),
        1e-12,
    )


def test_one_tap_is_a_feed_forward_of_each_position_alone():
    mixer, x = at_layer(2, kernel=1), noise(2, 9, 6)
    first, second = mixer.first.weight[..., 0], mixer.second.weight[..., 0]
    assert_equal([mixer(x)], [((x @ first.T).relu() @ second.T).relu()], 1e-12)


# How far it sees


@torch.no_grad()
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_an_impulse_reaches_exactly_the_receptive_field_of_the_paper(n_layers, kernel):
    T, field = 80, 1 + 2 * (kernel - 1) * (2**n_layers - 1)
    seen = reach([at_layer(i, kernel=kernel) for i in range(n_layers)], T)
    t = torch.arange(T)
    distance = t[:, None] - t
    assert torch.equal(seen, (distance >= 0) & (distance < field))


@torch.no_grad()
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
def test_both_directions_see_as_far_ahead_as_back_and_an_even_kernel_one_tap_more_behind(kernel):
    T, layer = 60, 1
    seen = reach([at_layer(layer, "bidirectional", kernel=kernel)], T)
    t = torch.arange(T)
    step = t[:, None] - t
    ahead, back = 2 * 2**layer * ((kernel - 1) // 2), 2 * 2**layer * (kernel // 2)
    assert torch.equal(seen, (step >= -ahead) & (step <= back) & (step % 2**layer == 0))


def test_dilations_double_by_layer_and_begin_again_where_they_would_pass_max_T():
    assert [at_layer(i, max_T=20).dilation for i in range(7)] == [1, 2, 4, 8, 16, 1, 2]
    assert [at_layer(i, max_T=1).dilation for i in range(3)] == [1, 1, 1]
    assert [at_layer(i, max_T=16).dilation for i in range(6)] == [1, 2, 4, 8, 16, 1]


# Decoding


@torch.no_grad()
@settings(deadline=None, max_examples=30)
@given(layer=st.integers(0, 4), kernel=st.integers(1, 5), T=st.integers(1, 40), data=st.data())
def test_steps_equal_the_whole_pass_from_any_prompt_at_any_layer(layer, kernel, T, data):
    mixer, x, T_prompt = at_layer(layer, kernel=kernel), noise(2, T, 6), data.draw(st.integers(0, T))
    y, state = mixer.prefill(x[:, :T_prompt])
    outputs = [y]
    for token in x[:, T_prompt:].unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y[:, None])
        assert {name: part.shape for name, part in state.items()} == dict.fromkeys("xh", (2, mixer.back, 6))
    assert_equal([torch.cat(outputs, dim=1)], [mixer(x)], 1e-12)


# Cost


@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("role", BOTH_ROLES)
def test_executed_flops_are_those_that_torch_counts_and_the_textbooks(role, layer):
    for kernel in (1, 3, 4):
        mixer = at_layer(layer, role, kernel=kernel)
        for T in (1, 7, 64):
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                mixer(torch.zeros(1, T, 6).double())
            flops = mixer.flops(T, T)
            assert flops.executed == counter.get_total_flops() == 4 * kernel * T * 6**2
            assert flops.projection == 0


@given(role=ROLE, layer=st.integers(0, 4), kernel=st.integers(1, 6), T=st.integers(1, 40))
def test_flops_count_the_taps_that_stand_inside(role, layer, kernel, T):
    mixer = at_layer(layer, role, kernel=kernel)
    shifts = [tap * 2**layer - mixer.back for tap in range(kernel)]
    assert max(shifts) == mixer.ahead
    inside = sum(0 <= t + shift < T for t in range(T) for shift in shifts)
    assert mixer.flops(T, T).core == 4 * 6**2 * inside
    if role == "causal":
        last = sum(T - 1 + shift >= 0 for shift in shifts)
        assert mixer.step_flops(T - 1, T - 1).core == 4 * 6**2 * last


def test_training_memory_is_linear_in_T():
    mixer = build("tcn", d_model=16, n_heads=1)
    few, many = (
        peak_bytes(lambda T=T: torch.autograd.grad(mixer(noise(1, T, 16)).sum(), mixer.parameters()), "cpu")
        for T in (512, 2048)
    )
    assert math.log(many / few) / math.log(4) == pytest.approx(1, abs=0.2)


# What is refused


def test_what_cannot_be_has_a_reason():
    assert "no cross role" in BUILT_IN["tcn"].unsupported(Spec(8, 2, 8, "cross"), Use(8, 8))
    assert "decoding needs" in BUILT_IN["tcn"].unsupported(Spec(8, 2, 8, "bidirectional"), Use(8, 8, phase="decode"))
    with pytest.raises(ValueError, match="no cross role"):
        build("tcn", "cross")
    with pytest.raises(ValueError, match="takes no context"):
        build("tcn")(noise(1, 3, 12), context=noise(1, 3, 12))

"""`mean` weighs every key alike, and `none` mixes nothing."""

from __future__ import annotations

import pytest
import slow_forms
import torch
from cores import BUILT_IN, assert_equal, build, noise, ragged_mask, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.mixer import Spec, Use

ROLES = ("causal", "bidirectional", "cross")


@settings(deadline=None, max_examples=40)
@given(role=st.sampled_from(ROLES), T=st.integers(1, 90), masked=st.booleans())
def test_mean_equals_uniform_weights(role, T, masked):
    S = 11 if role == "cross" else T
    mixer, x = build("mean", role), noise(4, T, 12)
    context = noise(4, S, 12, seed=1) if role == "cross" else None
    key_mask = ragged_mask(4, S) if masked else None
    seen = slow_forms.visible(T, S, role, key_mask=key_mask)
    keys = x if context is None else context
    inputs = [keys, *mixer.parameters()]
    assert_equal(
        values_and_gradients(lambda: mixer(x, context=context, key_mask=key_mask), inputs),
        values_and_gradients(lambda: mixer.W_o(slow_forms.uniform_attention(mixer.W_v(keys), seen)), inputs),
        1e-12,
    )


def test_mean_is_attention_whose_queries_are_0():
    for role in ROLES[:2]:
        mean, attention, x = build("mean", role, n_heads=3), build("full", role, n_heads=3), noise(2, 20, 12)
        torch.nn.init.zeros_(attention.W_q.weight)
        attention.W_v, attention.W_o = mean.W_v, mean.W_o
        assert_equal([mean(x)], [attention(x)], 1e-12)


def test_a_query_without_a_key_gives_0_and_hidden_values_may_be_anything():
    x, key_mask = noise(1, 4, 12), torch.tensor([[False, True, True, True]])
    y = build("mean")(x, key_mask=key_mask)
    assert y[:, 0].eq(0).all()
    wild = torch.cat((torch.full_like(x[:, :1], torch.inf), x[:, 1:]), dim=1)
    assert_equal([build("mean")(wild, key_mask=key_mask)[:, 1:]], [y[:, 1:]], 0.0)


@pytest.mark.parametrize("role", ROLES[:2])
def test_sums_do_not_overflow_float16_nor_stall_in_bfloat16(role):
    mixer = build("mean", role, d_model=4, n_heads=1, max_T=2048)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(torch.eye(4))
    for dtype, value in ((torch.float16, 1000.0), (torch.bfloat16, 1.0)):
        y = mixer.to(dtype)(torch.full((1, 2048, 4), value, dtype=dtype))
        assert_equal([y], [torch.full_like(y, value)], 1e-3)


@pytest.mark.parametrize("role", ROLES[:2])
def test_none_is_two_maps_of_each_position_alone(role):
    mixer, x = build("none", role), noise(2, 9, 12)
    y = mixer(x)
    assert_equal([y], [x @ mixer.W_v.weight.T @ mixer.W_o.weight.T], 1e-12)
    (slope,) = torch.autograd.grad(y[:, 4].sum(), x)
    assert slope[:, 4].abs().min() > 0
    assert slope[:, [t for t in range(9) if t != 4]].eq(0).all()
    assert torch.equal(mixer(x, key_mask=torch.zeros(2, 9, dtype=torch.bool)), y)


@pytest.mark.parametrize(
    ("name", "role"), [*(("mean", role) for role in ROLES), *(("none", role) for role in ROLES[:2])]
)
def test_flops_are_those_that_torch_counts(name, role):
    mixer = build(name, role)
    for T in (1, 7, 64):
        S = 11 if role == "cross" else T
        context = torch.zeros(1, S, 12).double() if role == "cross" else None
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            mixer(torch.zeros(1, T, 12).double(), context=context)
        flops = mixer.flops(T, S)
        assert flops.core == flops.executed == 0
        assert flops.projection == counter.get_total_flops()


def test_none_refuses_a_context_rather_than_ignore_it():
    assert "no cross role" in BUILT_IN["none"].unsupported(Spec(12, 3, 8, "cross"), Use(8, 8))
    with pytest.raises(ValueError, match="no cross role"):
        build("none", "cross")
    with pytest.raises(ValueError, match="takes no context"):
        build("none")(noise(1, 3, 12), context=noise(1, 3, 12))
    with pytest.raises(ValueError, match="needs a context"):
        build("mean", "cross")(noise(1, 3, 12))

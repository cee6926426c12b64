"""Attentions over features equal the attention whose weights are written out, in every role, and by steps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cores import BUILT_IN, assert_equal, build, core, noise, qkv, ragged_mask, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.mixer import Spec, Use

ROLES = ("causal", "bidirectional", "cross")
OPTIONS = [
    ("linear", {}),
    ("linear", {"features": "relu"}),
    ("linear", {"norm": "rms"}),
    ("linear", {"features": "identity", "norm": "rms"}),
]


def label(value):
    return "-".join(map(str, value.values())) if isinstance(value, dict) else str(value)


def learned(mixer):
    return [p for name, p in mixer.named_parameters() if not name.startswith("W_")]


def equals_its_slow_form(mixer, T, S, key_mask=None, tolerance=1e-9):
    inputs = qkv(T, S, B=4, d_v=3)
    leaves = [*inputs, *learned(mixer)]
    fast = values_and_gradients(lambda: mixer.attend(*inputs, key_mask=key_mask), leaves)
    slow = values_and_gradients(lambda: mixer.slow_attend(*inputs, key_mask=key_mask), leaves)
    assert_equal(fast, slow, tolerance)


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=label)
@settings(deadline=None, max_examples=12)
@given(
    T=st.integers(1, 70),
    S=st.integers(1, 70),
    chunk=st.integers(1, 80),
    role=st.sampled_from(ROLES),
    masked=st.booleans(),
)
def test_the_fast_form_is_the_slow_one(name, options, T, S, chunk, role, masked):
    mixer = core(name, role, chunk=chunk, d_v=3, **options)
    equals_its_slow_form(mixer, T, S, ragged_mask(4, S) if masked else None)


@torch.no_grad()
@pytest.mark.parametrize("role", ["causal", "cross"])
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=label)
def test_steps_behind_a_prompt_are_the_whole_pass(name, options, role):
    mixer, x = build(name, role, chunk=4, n_kv_heads=1, d_v=3, **options), noise(2, 21, 12)
    given = {"context": noise(2, 9, 12, seed=1)} if role == "cross" else {}
    whole, (y, state) = mixer(x, **given), mixer.prefill(x[:, :9], **given)
    found = [y]
    for t in range(9, 21):
        y, state = mixer.step(x[:, t], state)
        found.append(y[:, None])
    assert_equal([torch.cat(found, dim=1)], [whole], 1e-11)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=label)
def test_executed_flops_are_those_that_torch_counts(name, options, role):
    mixer = core(name, role, d_v=3, **options)
    for T, S in ((1, 1), (70, 70), (130, 130), (7, 70), (70, 7)):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            mixer.attend(*qkv(T, S, B=1, d_v=3))
        assert mixer.flops(T, S).executed == counter.get_total_flops()
        assert mixer.flops(T, S).core <= mixer.flops(T, S).executed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=label)
def test_half_precision_stays_near_float64(name, options, dtype):
    inputs, mixer = [x.detach().to(dtype) for x in qkv(70, 70)], core(name, **options)
    exact = [x.double() for x in inputs]
    assert_equal([mixer.attend(*inputs)], [mixer.attend(*exact)], 3e-2 if dtype is torch.bfloat16 else 4e-3)


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=label)
def test_gradients_are_derivatives(name, options):
    mixer = core(name, chunk=3, n_heads=2, d_v=3, **options)
    inputs = qkv(7, 7, B=1, H=2, d_v=3)
    assert torch.autograd.gradcheck(mixer.attend, inputs)


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize(("name", "options"), [one for one in OPTIONS if one[1].get("norm") != "rms"], ids=label)
def test_equal_values_come_out_unchanged(name, options, role):
    for T in (1, 5, 64):
        q, k, v = qkv(T, T)
        found = core(name, role, **options).attend(q.exp(), k.exp(), torch.full_like(v, 3.7))
        assert_equal([found], [torch.full_like(v, 3.7)], 1e-5)


# Linear


def test_features_without_a_normaliser_are_the_sum_of_outer_products_by_its_root_mean_square():
    q, k, v = qkv(33, 33)
    found = core("linear", features="identity", norm="rms", chunk=8).attend(q, k, v)
    sums = (q @ k.mT).tril() @ v
    assert_equal([found], [sums / (sums.square().mean(-1, keepdim=True) + 1e-5).sqrt()], 1e-12)
    assert not core("linear", norm="rms").normalised
    assert core("linear").normalised


def test_a_convolution_of_one_tap_of_1_is_silu():
    mixer, plain, x = build("linear", conv=1), build("linear"), noise(2, 9, 12)
    plain.load_state_dict(mixer.state_dict(), strict=False)
    for convolution in mixer.convolutions.values():
        torch.nn.init.ones_(convolution.weight)
    for found, expected in zip(mixer.project(x, x), plain.project(x, x), strict=True):
        assert_equal([found], [F.silu(expected)], 1e-12)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 1, "d_v": 3}, {"features": "identity", "norm": "rms"}])
@pytest.mark.parametrize("conv", [1, 2, 4])
def test_a_convolution_decodes_from_nothing_and_from_a_prompt(conv, options):
    mixer, x = build("linear", conv=conv, **options), noise(2, 11, 12)
    for prompt in (0, 1, 7):
        y, state = mixer.prefill(x[:, :prompt])
        found = [y]
        for t in range(prompt, 11):
            again, _ = mixer.step(x[:, t], state)
            y, state = mixer.step(x[:, t], state)
            assert torch.equal(again, y)
            found.append(y[:, None])
        assert_equal([torch.cat(found, dim=1)], [mixer(x)], 1e-11)


def test_a_convolution_takes_padding_on_the_right_and_no_holes():
    mixer, x, holes = build("linear", conv=3), noise(1, 5, 12), torch.tensor([[True, False, True, True, True]])
    padded = mixer(x, key_mask=torch.arange(5)[None] < 3)
    assert_equal([padded[:, :3]], [mixer(x[:, :3])], 1e-12)
    with pytest.raises(ValueError, match="hides more than padding on the right"):
        mixer(x, key_mask=holes)
    with pytest.raises(ValueError, match="prefill takes no key_mask"):
        mixer.prefill(x, key_mask=~holes)
    spec, cls = Spec(12, 3, 9), BUILT_IN["linear"]
    assert cls.unsupported(spec, Use(9, 9, mask="right"), conv=3) is None
    assert "hidden positions" in cls.unsupported(spec, Use(9, 9, mask="any"), conv=3)
    assert "state" in cls.unsupported(spec, Use(9, 9, mask="right", phase="decode"), conv=3)


@pytest.mark.parametrize(
    ("role", "options", "told"),
    [
        ("causal", {"features": "identity"}, 'norm must be "rms", got "sum"'),
        ("cross", {"conv": 2}, "with conv = 2 the role must be causal"),
    ],
)
def test_options_of_linear_that_do_not_go_together_are_refused_before_anything_runs(role, options, told):
    assert told in BUILT_IN["linear"].unsupported(Spec(12, 3, 9, role), Use(9, 9), **options)
    with pytest.raises(ValueError, match=told):
        build("linear", role, **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"features": "exp"}, "features must be 'elu' or 'relu' or 'identity', got 'exp'"),
        ({"norm": "layer"}, "norm must be 'sum' or 'rms', got 'layer'"),
        ({"conv": -1}, "conv must be at least 0, got -1"),
    ],
)
def test_unknown_options_of_linear_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        build("linear", **options)

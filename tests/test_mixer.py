from __future__ import annotations

import re

import pytest
import slow_forms
import torch
from cores import assert_equal, noise
from hypothesis import given
from hypothesis import strategies as st

from attnbench.mixer import Attention, Flops, Mixer, Spec, Use, visible_pairs


class Plain(Attention):
    """Softmax attention by its slow form."""

    def attend(self, q, k, v, *extra, key_mask=None):
        seen = slow_forms.visible(q.shape[2], k.shape[2], self.spec.role, key_mask=key_mask)
        return slow_forms.softmax_attention(q, k, v, seen)


def plain(role="causal", max_T=20, **options):
    torch.manual_seed(0)
    return Plain(Spec(12, 4, max_T, role), **options).double()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 1, 8), "d_model must be at least 1, got 0"),
        ((8, 0, 8), "n_heads must be at least 1, got 0"),
        ((8, 2, 0), "max_T must be at least 1, got 0"),
        ((8, 3, 8), "d_model must be divisible by n_heads, got 8 and 3"),
        ((8, 2, 8.5), "max_T must be a whole number, got 8.5"),
        ((8, 2, 8, "casual"), "role must be 'causal' or 'bidirectional' or 'cross', got 'casual'"),
    ],
)
def test_a_place_that_cannot_be_is_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        Spec(*sizes)


def test_head_width():
    assert Spec(12, 4, 8).d_head == 3


@given(T=st.integers(0, 30), S=st.integers(0, 30), role=st.sampled_from(["causal", "bidirectional", "cross"]))
def test_visible_pairs_are_a_dense_count(T, S, role):
    assert visible_pairs(T, S, role) == int(slow_forms.visible(T, S, role).sum())


def test_executed_work_is_the_core_unless_given():
    assert Flops(3.0).executed == 3.0
    assert Flops(3.0, core_executed=7.0).executed == 7.0


# Grouped heads and widths


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_grouped_heads_are_full_heads_with_repeated_weights(n_kv_heads):
    grouped, full = plain(n_kv_heads=n_kv_heads), plain()
    full.load_state_dict(
        grouped.state_dict() | {name: repeated(grouped, name) for name in ("W_k.weight", "W_v.weight")}
    )
    x = noise(2, 7, 12)
    assert_equal([grouped(x)], [full(x)], 1e-12)


def repeated(mixer, name):
    """Rows of a weight (n_kv_heads · 3, 12), each group's as often as query heads read it: (12, 12)."""
    groups = mixer.state_dict()[name].view(mixer.n_kv_heads, 3, 12)
    return torch.cat([groups[h * mixer.n_kv_heads // 4] for h in range(4)])


def test_as_many_groups_as_heads_is_plain_attention():
    x = noise(2, 7, 12)
    assert torch.equal(plain(n_kv_heads=4)(x), plain()(x))


def test_groups_must_divide_heads():
    with pytest.raises(ValueError, match="n_heads must be divisible by n_kv_heads, got 4 and 3"):
        plain(n_kv_heads=3)


@pytest.mark.parametrize("role", ["causal", "cross"])
@pytest.mark.parametrize("options", [{"d_k": 5}, {"d_v": 2}, {"d_k": 1, "d_v": 6, "n_kv_heads": 2}])
def test_widths_shape_projections_and_cache(role, options):
    mixer, x = plain(role, **options), noise(2, 7, 12)
    context = noise(2, 9, 12) if role == "cross" else None
    q, k, v = mixer.project(x, x if context is None else context)
    d_k, d_v = options.get("d_k", 3), options.get("d_v", 3)
    S = 7 if context is None else 9
    assert (q.shape, k.shape, v.shape) == ((2, 4, 7, d_k), (2, 4, S, d_k), (2, 4, S, d_v))
    y, state = mixer.prefill(x, context=context)
    assert y.shape == x.shape
    assert_equal([y], [mixer(x, context=context)], 1e-12)
    if role == "causal":
        assert state["k"].shape == (2, mixer.n_kv_heads, 20, d_k)
        assert state["v"].shape == (2, mixer.n_kv_heads, 20, d_v)


def test_projection_flops_are_twice_the_weights_per_position():
    for options in ({}, {"n_kv_heads": 2}, {"d_k": 5, "d_v": 2}):
        mixer = plain("cross", **options)
        n_query = mixer.W_q.weight.numel() + mixer.W_o.weight.numel()
        n_key = mixer.W_k.weight.numel() + mixer.W_v.weight.numel()
        # a query pays for W_q and W_o, a key for W_k and W_v
        assert mixer.projection_flops(7, 9) == 2 * (7 * n_query + 9 * n_key)


# Decoding by a cache


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 2}, {"n_kv_heads": 1, "d_k": 5, "d_v": 2}])
@pytest.mark.parametrize("T_prompt", [0, 1, 5])
def test_the_cache_gives_the_whole_pass(T_prompt, options):
    mixer, x = plain(max_T=9, **options), noise(2, 9, 12)
    y, state = mixer.prefill(x[:, :T_prompt])
    outputs = [y]
    for token in x[:, T_prompt:].unbind(1):
        assert torch.equal(mixer.step(token, state)[0], mixer.step(token, state)[0])
        y, state = mixer.step(token, state)
        outputs.append(y[:, None])
    assert_equal([torch.cat(outputs, dim=1)], [mixer(x)], 1e-12)


@torch.no_grad()
def test_a_full_cache_says_so():
    mixer, x = plain(max_T=3), noise(1, 4, 12)
    _, state = mixer.prefill(x[:, :3])
    with pytest.raises(ValueError, match="holds max_T = 3 positions and is full"):
        mixer.step(x[:, 3], state)
    with pytest.raises(ValueError, match="a prompt of T = 4 does not fit max_T = 3"):
        mixer.prefill(x)


@torch.no_grad()
def test_a_cache_is_no_larger_than_its_groups():
    _, state = plain(max_T=20, n_kv_heads=1).prefill(noise(2, 5, 12))
    assert state["k"].numel() == state["v"].numel() == 2 * 20 * 3


# What is missing says so


@pytest.mark.parametrize(
    ("role", "context", "message"),
    [("cross", False, "Plain in the cross role needs a context"), ("causal", True, "the causal role takes no context")],
)
def test_a_context_is_given_where_it_is_read_and_nowhere_else(role, context, message):
    mixer, x = plain(role), noise(2, 5, 12)
    for call in (mixer, mixer.prefill):
        with pytest.raises(ValueError, match=message):
            call(x, context=x if context else None)


@pytest.mark.parametrize("option", ["n_kv_heads", "d_k", "d_v"])
@pytest.mark.parametrize(("value", "message"), [(0, "at least 1, got 0"), (-1, "at least 1"), (2.5, "a whole number")])
def test_no_width_is_taken_for_the_default(option, value, message):
    with pytest.raises(ValueError, match=f"{option} must be {message}"):
        plain(**{option: value})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (((5, 12), None), "x must be \\(B, T, d_model = 12\\), got \\(5, 12\\)"),
        (((2, 5, 11), None), "x must be .*, got \\(2, 5, 11\\)"),
        (((2, 12), (2, 5, 12)), "x must be .*, got \\(2, 12\\)"),
        (((2, 5, 12), (2, 12)), "context must be \\(B, S, d_model = 12\\), got \\(2, 12\\)"),
        (((2, 5, 12), (1, 7, 12)), "x and context must have one B, got 2 and 1"),
    ],
)
def test_inputs_of_another_shape_are_refused_and_never_broadcast(sizes, message):
    x, context = (None if size is None else noise(*size) for size in sizes)
    mixer = plain("causal" if context is None else "cross")
    for call in (mixer, mixer.prefill):
        with pytest.raises(ValueError, match=message):
            call(x, context=context)


def test_a_mixer_names_what_it_lacks():
    mixer, x = Mixer(Spec(12, 4, 8)), noise(2, 5, 12)
    for call, message in (
        (lambda: mixer(x), "Mixer must define forward"),
        (lambda: mixer.prefill(x), "Mixer has no decoding form"),
        (lambda: mixer.step(x[:, 0], {}), "Mixer has no decoding form"),
        (lambda: Attention(Spec(12, 4, 8)).double()(x), "Attention must define attend"),
    ):
        with pytest.raises(NotImplementedError, match=re.escape(message)):
            call()
    assert mixer.flops(5, 5) is None
    assert mixer.extra_record() == {}


def test_more_than_q_k_v_needs_decoding_of_its_own():
    class Gated(Plain):
        def project(self, x, context):
            return (*super().project(x, context), x)

    with pytest.raises(NotImplementedError, match="Gated projects more than q, k, v: it must define prefill, step"):
        Gated(Spec(12, 4, 8)).double().prefill(noise(1, 3, 12))


def test_reasons_of_the_base_classes():
    decode = Use(8, 8, phase="decode")
    assert Mixer.unsupported(Spec(8, 2, 8), decode) == "no decoding form"
    assert Mixer.unsupported(Spec(8, 2, 8), Use(8, 8)) is None
    assert Plain.unsupported(Spec(8, 2, 8), decode) is None
    assert "causal or cross" in Plain.unsupported(Spec(8, 2, 8, "bidirectional"), decode)

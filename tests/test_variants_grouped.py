"""Grouped-query attention is full attention with keys shared by heads, and copies none of them."""

from __future__ import annotations

import pytest
import torch
from cores import BUILT_IN, assert_equal, build, noise, qkv, ragged_mask, values_and_gradients
from torch.utils.flop_counter import FlopCounterMode

from attnbench.mixer import Spec, Use
from attnbench.options import resolve

ROLES = ("causal", "bidirectional", "cross")


def made(role="causal", n_heads=4, **options):
    return build("gqa", role, d_model=4 * n_heads, n_heads=n_heads, **options)


def check_core(mixer, q, k, v, key_mask):
    fast, slow = (
        values_and_gradients(lambda a=attend: a(q, k, v, key_mask=key_mask), [q, k, v])
        for attend in (mixer.attend, mixer.slow_attend)
    )
    assert_equal(fast, slow, 1e-12)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("role", ROLES)
def test_it_equals_full_attention_with_keys_written_out(role, n_kv_heads):
    mixer = made(role, n_kv_heads=n_kv_heads)
    for T, S in ((1, 1), (7, 7), (5, 9), (9, 5), (1, 33)):
        for key_mask in (None, ragged_mask(4, S)):
            q, k, v = qkv(T, S, B=4, H=4)
            k, v = (x[:, :n_kv_heads].detach().clone().requires_grad_() for x in (k, v))
            check_core(mixer, q, k, v, key_mask)


@pytest.mark.parametrize("role", ROLES)
def test_with_a_group_for_each_head_it_is_fused_attention(role):
    x, context = noise(2, 9, 16), {"context": noise(2, 5, 16, seed=1)} if role == "cross" else {}
    one, other = made(role, n_kv_heads=4), build("fused", role, d_model=16, n_heads=4)
    other.load_state_dict(one.state_dict())
    assert_equal([one(x, **context)], [other(x, **context)], 1e-12)


def test_groups_are_a_quarter_of_the_heads_unless_given_and_divide_them():
    groups = {H: BUILT_IN["gqa"](Spec(2 * H, H, 8)).n_kv_heads for H in (1, 2, 3, 4, 6, 8, 10, 14, 32)}
    assert groups == {1: 1, 2: 1, 3: 1, 4: 1, 6: 1, 8: 2, 10: 2, 14: 2, 32: 8}
    assert made(n_kv_heads=2).n_kv_heads == 2


@torch.no_grad()
def test_the_cache_has_one_head_per_group_and_a_step_copies_none():
    mixer, x = made(n_kv_heads=2), noise(2, 20, 16)
    y, state = mixer.prefill(x[:, :19])
    assert state["k"].shape == state["v"].shape == (2, 2, 300, 4)
    assert_equal([y, mixer.step(x[:, 19], state)[0]], [mixer(x)[:, :19], mixer(x)[:, 19]], 1e-12)
    whole, few = made(n_kv_heads=4).step_flops(99, 0).core_moved, made(n_kv_heads=1).step_flops(99, 0).core_moved
    assert whole - few == 3 * 100 * 8


@pytest.mark.parametrize("role", ROLES)
def test_executed_flops_are_those_that_torch_counts(role):
    mixer = made(role, d_v=3)
    context = torch.zeros(1, 11, 16).double()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        mixer(torch.zeros(1, 9, 16).double(), **({"context": context} if role == "cross" else {}))
    flops = mixer.flops(9, 11 if role == "cross" else 9)
    assert flops.executed + flops.projection == counter.get_total_flops()
    assert made(role).flops(9, 9).core == build("fused", role, d_model=16, n_heads=4).flops(9, 9).core


def test_groups_that_do_not_divide_the_heads_are_refused():
    told = "n_heads must be divisible by n_kv_heads, got 4 and 3"
    assert BUILT_IN["gqa"].unsupported(Spec(16, 4, 8), Use(8, 8), n_kv_heads=3) == told
    with pytest.raises(ValueError, match=told):
        made(n_kv_heads=3)
    for value in (0, -1, 2.5):
        assert [name for name, _ in resolve(BUILT_IN["gqa"], {"n_kv_heads": value})[1]] == ["n_kv_heads"]

"""A sliding window with global tokens equals its dense mask; without them, and wide, it is what it was."""

from __future__ import annotations

import math

import pytest
import torch
from cores import BUILT_IN, assert_equal, build, core, noise, qkv, ragged_mask, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import window_attention
from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec
from attnbench.options import resolve

BOTH_ROLES = ("causal", "bidirectional")


def check_core(role, T, S, key_mask=None, *, d_v=4, **options):
    inputs = qkv(T, S, B=4 if key_mask is not None else 2, d_v=d_v)
    mixer = core("window", role, d_v=d_v, **options)
    fast, slow = (
        values_and_gradients(lambda a=attend: a(*inputs, key_mask=key_mask), inputs)
        for attend in (mixer.attend, mixer.slow_attend)
    )
    assert_equal(fast, slow, 1e-11)


@pytest.mark.parametrize("window", [1, 2, 8, 64, 200])
@pytest.mark.parametrize("n_global", [0, 1, 5, 70, 300])
@pytest.mark.parametrize("role", BOTH_ROLES)
def test_global_tokens_equal_the_dense_mask(role, n_global, window):
    for T in (1, 2, 7, 33, 65, 130):
        check_core(role, T, T, window=window, n_global=n_global)
    check_core(role, 130, 130, ragged_mask(4, 130), window=window, n_global=n_global, d_v=2)


@settings(deadline=None, max_examples=40)
@given(T=st.integers(1, 150), S=st.integers(1, 150), window=st.integers(1, 60), data=st.data())
def test_causal_order_is_aligned_bottom_right(T, S, window, data):
    n_global, masked = data.draw(st.integers(0, 80)), data.draw(st.booleans())
    check_core("causal", T, S, ragged_mask(4, S) if masked else None, window=window, n_global=n_global)


@pytest.mark.parametrize("role", BOTH_ROLES)
def test_with_all_tokens_global_it_is_full_attention(role):
    inputs = qkv(40, 40)
    full = values_and_gradients(lambda: core("full", role).attend(*inputs), inputs)
    for n_global in (40, 1000):
        mixer = core("window", role, window=2, n_global=n_global)
        assert_equal(values_and_gradients(lambda m=mixer: m.attend(*inputs), inputs), full, 1e-12)


def test_a_global_token_joins_any_two_positions_in_two_layers():
    x = noise(1, 64, 12).requires_grad_()
    for n_global, far in ((0, False), (1, True)):
        mixer = build("window", "bidirectional", window=2, n_global=n_global)
        (slope,) = torch.autograd.grad(mixer(mixer(x))[0, 63].sum(), x)
        assert bool(slope[0, 5].any()) is far


@torch.no_grad()
@pytest.mark.parametrize("n_global", [1, 3, 20])
def test_decoding_keeps_the_global_tokens_and_the_window_alone(n_global):
    mixer, x = build("window", window=4, n_global=n_global, n_kv_heads=1), noise(2, 30, 12)
    for T0 in (0, 1, 5, 29):
        y, state = mixer.prefill(x[:, :T0])
        ys = [y]
        for t in range(T0, 30):
            y, state = mixer.step(x[:, t], state)
            ys.append(y[:, None])
        assert_equal([torch.cat(ys, dim=1)], [mixer(x)], 1e-12)
        assert state["k"].shape == (2, 1, min(30, n_global + 4), 4)
    assert mixer.step_flops(100, 0).core == mixer.pair_flops(n_global + 4)


@pytest.mark.parametrize("role", BOTH_ROLES)
def test_flops_count_the_pairs_of_the_definition_and_those_that_torch_counts(role):
    for window, n_global in ((1, 1), (7, 3), (40, 100), (5, 0)):
        mixer = build("window", role, window=window, n_global=n_global, d_v=3)
        for T in (1, 2, 40, 130):
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                mixer(torch.zeros(1, T, 12).double())
            flops = mixer.flops(T, T)
            assert flops.executed + flops.projection == counter.get_total_flops()
            zeros = torch.zeros(1, 3, T, 4).double()
            seen = mixer.slow_attend(zeros, zeros, torch.eye(T).double().expand(1, 3, T, T)) > 0
            assert flops.core == mixer.pair_flops(int(seen[0, 0].sum()))


def test_training_memory_is_linear_with_global_tokens_too():
    def training(T):
        mixer, inputs = core("window", "bidirectional", n_heads=2, window=16, n_global=2), qkv(T, T, H=2)
        return peak_bytes(lambda: torch.autograd.grad(mixer.attend(*inputs).sum(), inputs), "cpu")

    assert math.log(training(4096) / training(1024)) / math.log(4) <= 1.2


def test_the_number_of_global_tokens_has_limits():
    for value in (-1, 2.5):
        assert [name for name, _ in resolve(BUILT_IN["window"], {"n_global": value})[1]] == ["n_global"]
    with pytest.raises(ValueError, match="n_global must be at least 0, got -1"):
        BUILT_IN["window"](Spec(8, 2, 8), n_global=-1)
    with pytest.raises(ValueError, match="looks ahead needs a key for each query"):
        window_attention(*qkv(5, 3), None, back=1, ahead=1, n_global=1)

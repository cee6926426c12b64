"""Fixed sparse attention equals softmax under its dense mask, and never builds a map of T x T."""

from __future__ import annotations

import math

import pytest
import torch
from cores import BUILT_IN, assert_equal, build, core, noise, qkv, ragged_mask, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec, Use
from attnbench.options import resolve

BOTH_ROLES = ("causal", "bidirectional")
LENGTHS = (1, 2, 7, 8, 15, 16, 17, 33, 63, 64, 65, 97, 130)


def check_core(role, T, S, key_mask=None, *, d_k=4, d_v=4, **options):
    inputs = qkv(T, S, B=4 if key_mask is not None else 2, d_k=d_k, d_v=d_v)
    mixer = core("fixed_sparse", role, d_k=d_k, d_v=d_v, **options)
    fast, slow = (
        values_and_gradients(lambda a=attend: a(*inputs, key_mask=key_mask), inputs)
        for attend in (mixer.attend, mixer.slow_attend)
    )
    assert_equal(fast, slow, 1e-11)


@pytest.mark.parametrize("sizes", [(1, 1), (8, 1), (8, 3), (11, 11), (64, 8), (200, 16)])
@pytest.mark.parametrize("role", BOTH_ROLES)
def test_it_equals_its_dense_mask_at_every_length(role, sizes):
    stride, n_summary = sizes
    for T in LENGTHS:
        check_core(role, T, T, stride=stride, n_summary=n_summary)
    for T in (1, 17, 65, 130):
        check_core(role, T, T, ragged_mask(4, T), stride=stride, n_summary=n_summary)
    check_core(role, 40, 40, stride=stride, n_summary=n_summary, d_k=5, d_v=2)


@settings(deadline=None, max_examples=40)
@given(T=st.integers(1, 90), S=st.integers(1, 90), stride=st.integers(1, 100), data=st.data())
def test_causal_order_is_aligned_bottom_right(T, S, stride, data):
    n_summary, masked = data.draw(st.integers(1, stride)), data.draw(st.booleans())
    check_core("causal", T, S, ragged_mask(4, S) if masked else None, stride=stride, n_summary=n_summary)


def test_the_mask_of_the_definition_by_hand():
    mixer = core("fixed_sparse", stride=4, n_summary=1, n_heads=1)
    values = torch.eye(9).double()[None, None]
    seen = mixer.attend(torch.zeros(1, 1, 9, 4).double(), torch.zeros(1, 1, 9, 4).double(), values)[0, 0] > 0
    assert [row.nonzero().flatten().tolist() for row in seen] == [
        [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [3, 4], [3, 4, 5], [3, 4, 5, 6], [3, 4, 5, 6, 7], [3, 7, 8],
    ]  # fmt: skip


@pytest.mark.parametrize("role", BOTH_ROLES)
def test_a_block_as_long_as_the_sequence_and_summaries_of_all_are_full_attention(role):
    inputs = qkv(40, 40)
    full = values_and_gradients(lambda: core("full", role).attend(*inputs), inputs)
    for sizes in ({"stride": 40}, {"stride": 300, "n_summary": 2}, {"stride": 6, "n_summary": 6}):
        mixer = core("fixed_sparse", role, **sizes)
        assert_equal(values_and_gradients(lambda m=mixer: m.attend(*inputs), inputs), full, 1e-12)


@pytest.mark.parametrize("role", BOTH_ROLES)
def test_flops_count_the_pairs_of_the_definition_and_those_that_torch_counts(role):
    for stride, n_summary in ((1, 1), (5, 2), (8, 8), (300, 3)):
        mixer = build("fixed_sparse", role, stride=stride, n_summary=n_summary, d_v=3)
        for T in (1, 2, 7, 40, 130):
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                mixer(torch.zeros(1, T, 12).double())
            flops = mixer.flops(T, T)
            assert flops.executed + flops.projection == counter.get_total_flops()
            zeros = torch.zeros(1, 3, T, 4).double()
            seen = mixer.slow_attend(zeros, zeros, torch.eye(T).double().expand(1, 3, T, T)) > 0
            assert flops.core == mixer.pair_flops(int(seen[0, 0].sum()))


def test_a_step_costs_what_it_reads():
    mixer = build("fixed_sparse", max_T=100, stride=10, n_summary=2)
    assert mixer.step_flops(57, 0).core == mixer.pair_flops(5 * 2 + 8)
    with torch.no_grad():
        _, state = mixer.prefill(noise(1, 57, 12))
        x, unread = noise(1, 12), torch.tensor([j for j in range(50) if j % 10 < 8])
        y, _ = mixer.step(x, state)
        state["k"][:, :, unread] = torch.nan
        state["v"][:, :, unread] = torch.nan
        assert torch.equal(mixer.step(x, state)[0], y)


@pytest.mark.parametrize("role", BOTH_ROLES)
def test_training_memory_is_far_from_a_map_of_T_by_T(role):
    def training(T):
        mixer = core("fixed_sparse", role, n_heads=2, d_k=16, d_v=16, stride=math.isqrt(T), n_summary=4)
        inputs = qkv(T, T, H=2, d_k=16, d_v=16)
        return peak_bytes(lambda: torch.autograd.grad(mixer.attend(*inputs).sum(), inputs), "cpu")

    assert math.log(training(4096) / training(1024)) / math.log(4) <= 1.6


def test_sizes_have_defaults_and_limits():
    def sizes(max_T, **options):
        mixer = BUILT_IN["fixed_sparse"](Spec(8, 2, max_T), **options)
        return mixer.stride, mixer.n_summary

    assert [sizes(max_T) for max_T in (1, 5, 100, 1024)] == [(1, 1), (2, 1), (10, 2), (32, 8)]
    assert sizes(100, n_summary=3) == (10, 3)
    told = "n_summary must be at most the stride, 4, got 5"
    with pytest.raises(ValueError, match=told):
        build("fixed_sparse", stride=4, n_summary=5)
    assert BUILT_IN["fixed_sparse"].unsupported(Spec(8, 2, 8), Use(8, 8), stride=4, n_summary=5) == told
    assert resolve(BUILT_IN["fixed_sparse"], {"stride": 0})[1] == [("stride", "expected at least 1, got 0")]
    assert "no cross role" in BUILT_IN["fixed_sparse"].unsupported(Spec(8, 2, 8, "cross"), Use(8, 8))
    with pytest.raises(ValueError, match="T = 3 and S = 5"):
        core("fixed_sparse", "bidirectional").attend(*qkv(3, 5))

"""Strided attention equals softmax under its dense mask, head by head, and never builds a map of T x T."""

from __future__ import annotations

import math

import pytest
import slow_forms
import torch
from cores import BUILT_IN, assert_equal, build, core, noise, qkv, ragged_mask, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec, Use

LENGTHS = (1, 2, 7, 8, 15, 16, 17, 33, 63, 64, 65, 83, 97, 130)
BOTH_ROLES = ("causal", "bidirectional")


def check_core(role, T, S, key_mask=None, *, stride, d_k=4, d_v=4, tolerance=1e-12):
    inputs = qkv(T, S, B=4 if key_mask is not None else 2, d_k=d_k, d_v=d_v)
    mixer = core("strided", role, d_k=d_k, d_v=d_v, stride=stride)
    slow = {"stride": stride, "n_local": 2, "key_mask": key_mask}  # of three heads, in layer 0
    assert_equal(
        values_and_gradients(lambda: mixer.attend(*inputs, key_mask=key_mask), inputs),
        values_and_gradients(lambda: slow_forms.strided_attention(*inputs, role, **slow), inputs),
        tolerance,
    )


@pytest.mark.parametrize("stride", [1, 2, 8, 11, 64, 200])
@pytest.mark.parametrize("role", BOTH_ROLES)
def test_it_equals_its_dense_mask_at_every_length(role, stride):
    for T in LENGTHS:
        check_core(role, T, T, stride=stride)
    for T in (1, 2, 17, 65, 130):
        check_core(role, T, T, ragged_mask(4, T), stride=stride, tolerance=1e-11)
    check_core(role, 40, 40, stride=stride, d_k=5, d_v=2)


@settings(deadline=None, max_examples=60)
@given(T=st.integers(1, 150), S=st.integers(1, 150), stride=st.integers(1, 160), masked=st.booleans())
def test_causal_order_is_aligned_bottom_right(T, S, stride, masked):
    check_core("causal", T, S, ragged_mask(4, S) if masked else None, stride=stride, tolerance=1e-11)


@settings(deadline=None, max_examples=30)
@given(T=st.integers(1, 200), stride=st.integers(1, 220), masked=st.booleans())
def test_any_stride_at_any_length_in_both_directions(T, stride, masked):
    check_core("bidirectional", T, T, ragged_mask(4, T) if masked else None, stride=stride, tolerance=1e-11)


def test_a_stride_of_1_lets_strided_heads_see_everything_and_one_of_T_lets_local_heads():
    inputs = qkv(40, 40)
    full = core("full").attend(*inputs)
    assert_equal([core("strided", stride=1).attend(*inputs)[:, 2:]], [full[:, 2:]], 1e-12)
    assert_equal([core("strided", stride=40).attend(*inputs)[:, :2]], [full[:, :2]], 1e-12)


def test_half_of_the_heads_are_local_and_a_single_head_alternates_by_layer():
    def n_local(n_heads, layer):
        return BUILT_IN["strided"](Spec(4 * n_heads, n_heads, 16, layer=layer)).n_local

    assert [n_local(4, layer) for layer in range(3)] == [2, 2, 2]
    assert [n_local(3, layer) for layer in range(3)] == [2, 1, 2]
    assert [n_local(1, layer) for layer in range(3)] == [1, 0, 1]


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("role", BOTH_ROLES)
def test_a_single_head_is_wholly_local_or_wholly_strided(role, layer):
    torch.manual_seed(0)
    mixer = BUILT_IN["strided"](Spec(4, 1, 50, role, layer), stride=6).double()
    inputs = qkv(50, 50, H=1)
    expected = slow_forms.strided_attention(*inputs, role, stride=6, n_local=1 - layer)
    assert_equal([mixer.attend(*inputs)], [expected], 1e-12)


def test_the_stride_is_the_root_of_the_longest_length_unless_given():
    strides = [BUILT_IN["strided"](Spec(8, 2, max_T)).stride for max_T in (1, 2, 4, 99, 100, 1024)]
    assert strides == [1, 1, 2, 9, 10, 32]
    assert build("strided", stride=5).stride == 5


def test_two_steps_join_any_two_positions():
    mixer = core("strided", stride=8)
    x = torch.eye(64).double().requires_grad_()
    sees = [torch.zeros(64, 64, dtype=torch.bool) for _ in range(3)]
    ones = torch.ones(1, 3, 64, 4).double()
    y = mixer.attend(ones, ones, x.sum(1, keepdim=True).expand(1, 3, 64, 4))
    for head in range(3):
        for i in range(64):
            (slope,) = torch.autograd.grad(y[0, head, i, 0], x, retain_graph=True)
            sees[head][i] = slope.abs().sum(1) > 0
    near, far = sees[0].int(), sees[2].int()
    assert torch.equal(near @ far > 0, torch.ones(64, 64, dtype=torch.bool).tril())
    assert near.sum() + far.sum() < 64 * 65 / 2


@pytest.mark.parametrize("options", [{"d_v": 3}, {"d_v": 3, "n_kv_heads": 1}])
@pytest.mark.parametrize("stride", [1, 5, 8, 300])
@pytest.mark.parametrize("role", BOTH_ROLES)
def test_executed_flops_are_those_that_torch_counts(role, stride, options):
    mixer = build("strided", role, stride=stride, **options)  # of another width than keys: no kernel hides the products
    for T in (1, 2, 7, 40, 130):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            mixer(torch.zeros(1, T, 12).double())
        flops = mixer.flops(T, T)
        assert flops.executed + flops.projection == counter.get_total_flops()
    assert (flops.backward, build("strided").flops(9, 9).backward) == (2.0, 2.5)


@settings(deadline=None)
@given(T=st.integers(1, 60), S=st.integers(1, 60), stride=st.integers(1, 70), role=st.sampled_from(BOTH_ROLES))
def test_flops_count_the_pairs_of_the_definition(T, S, stride, role):
    T = S if role == "bidirectional" else T
    mixer = core("strided", role, stride=stride)
    shown = slow_forms.strided_attention(
        torch.zeros(1, 3, T, 1), torch.zeros(1, 3, S, 1), torch.eye(S)[None, None].expand(1, 3, S, S), role,
        stride=stride, n_local=2,
    )  # fmt: skip
    assert mixer.flops(T, S).core == pytest.approx(mixer.pair_flops(int((shown > 0).sum()) / 3))
    assert mixer.flops(T, S).executed >= mixer.flops(T, S).core * (1 - 1e-12)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("role", BOTH_ROLES)
def test_training_memory_is_far_from_a_map_of_T_by_T(role, masked):
    def training(T):
        mixer, inputs = core("strided", role, n_heads=2, stride=math.isqrt(T)), qkv(T, T, H=2)
        key_mask = torch.ones(2, T, dtype=torch.bool) if masked else None
        return peak_bytes(lambda: torch.autograd.grad(mixer.attend(*inputs, key_mask=key_mask).sum(), inputs), "cpu")

    slope = math.log(training(4096) / training(1024)) / math.log(4)
    assert slope <= (1.6 if masked else 1.25)


@torch.no_grad()
def test_a_decoding_step_reads_only_its_own_column():
    mixer = build("strided", max_T=100, stride=10)
    _, state = mixer.prefill(noise(1, 57, 12))
    x, unread = noise(1, 12), torch.tensor([j for j in range(57) if j % 10 != 7 and j < 57 - 9])
    y, _ = mixer.step(x, state)
    state["k"][:, :, unread] = torch.nan
    state["v"][:, :, unread] = torch.nan
    assert torch.equal(mixer.step(x, state)[0], y)


def test_what_cannot_be_has_a_reason():
    assert "no cross role" in BUILT_IN["strided"].unsupported(Spec(8, 2, 8, "cross"), Use(8, 8))
    assert "decoding needs" in BUILT_IN["strided"].unsupported(
        Spec(8, 2, 8, "bidirectional"), Use(8, 8, phase="decode")
    )
    with pytest.raises(ValueError, match="no cross role"):
        build("strided", "cross")
    with pytest.raises(ValueError, match="stride must be at least 1, got 0"):
        build("strided", stride=0)
    with pytest.raises(ValueError, match="T = 3 and S = 5"):
        core("strided", "bidirectional").attend(*qkv(3, 5))

"""`linformer` and `nystrom` equal their slow forms, and softmax attention in the limit; `fnet` is a sum of cosines."""

from __future__ import annotations

import math

import pytest
import slow_forms
import torch
from cores import BUILT_IN, assert_equal, build, core, noise, qkv, ragged_mask, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.mixer import Spec, Use

WIDTHS = {"d_k": 4, "d_v": 3}


def softmax(q, k, v):
    return slow_forms.softmax_attention(q, k, v, slow_forms.visible(q.shape[2], k.shape[2], "bidirectional"))


def equals_its_slow_form(mixer, T, masked, tolerance=1e-9):
    inputs, key_mask = qkv(T, T, B=4, d_v=3), ragged_mask(4, T) if masked else None
    learned = [p for name, p in mixer.named_parameters() if not name.startswith("W_")]
    fast = values_and_gradients(lambda: mixer.attend(*inputs, key_mask=key_mask), [*inputs, *learned])
    slow = values_and_gradients(lambda: mixer.slow_attend(*inputs, key_mask=key_mask), [*inputs, *learned])
    assert_equal(fast, slow, tolerance)


# Linformer


@settings(deadline=None, max_examples=25)
@given(T=st.integers(1, 40), rank=st.integers(1, 50), sharing=st.sampled_from(("heads", "kv")), masked=st.booleans())
def test_linformer_equals_its_slow_form(T, rank, sharing, masked):
    equals_its_slow_form(core("linformer", "bidirectional", rank=rank, sharing=sharing, **WIDTHS), T, masked)


@torch.no_grad()
def test_linformer_with_identity_maps_is_softmax_attention():
    mixer, inputs = core("linformer", "bidirectional", rank=20, **WIDTHS), qkv(20, 20, d_v=3)
    for matrix in (mixer.E, mixer.F):
        matrix.zero_()
        matrix[:, :20].copy_(torch.eye(20))
    assert_equal([mixer.attend(*inputs)], [softmax(*inputs)], 1e-12)


def test_linformer_shares_keys_and_values_maps_where_told():
    assert sum(p.numel() for p in build("linformer", "bidirectional", rank=7).parameters()) == 4 * 144 + 2 * 7 * 300
    shared = build("linformer", "bidirectional", rank=7, sharing="kv")
    assert shared.F is shared.E
    assert sum(p.numel() for p in shared.parameters()) == 4 * 144 + 7 * 300


def test_linformer_takes_no_more_keys_than_it_has_maps_for():
    with pytest.raises(ValueError, match="S = 9 keys do not fit max_T = 8"):
        build("linformer", "bidirectional", max_T=8)(noise(1, 9, 12))


# Nyström


@settings(deadline=None, max_examples=30)
@given(
    T=st.integers(1, 70),
    landmarks=st.integers(1, 20),
    kernel=st.integers(1, 9),
    iterations=st.integers(1, 7),
    masked=st.booleans(),
)
def test_nystrom_equals_its_slow_form(T, landmarks, kernel, iterations, masked):
    options = {"landmarks": landmarks, "kernel": kernel, "iterations": iterations}
    mixer, inputs = core("nystrom", "bidirectional", **options, **WIDTHS), qkv(T, T, B=4, d_v=3)
    key_mask = ragged_mask(4, T) if masked else None
    with torch.no_grad():
        assert_equal([mixer.attend(*inputs, key_mask=key_mask)], [mixer.slow_attend(*inputs, key_mask=key_mask)], 1e-9)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("T", [1, 5, 16, 65])
def test_nystrom_has_the_gradients_of_its_slow_form(T, masked):
    equals_its_slow_form(core("nystrom", "bidirectional", landmarks=6, kernel=4, **WIDTHS), T, masked)


def without_filter(**options):
    mixer = core("nystrom", "bidirectional", **options)
    with torch.no_grad():
        mixer.taps.zero_()
    return mixer


@torch.no_grad()
@pytest.mark.parametrize("landmarks", [20, 64])
def test_as_many_landmarks_as_positions_and_an_exact_inverse_give_softmax_attention(landmarks):
    near = 8 * torch.eye(20).expand(2, 3, -1, -1)  # apart enough that the inverse is a tame one
    q, k, v = (near + part if part.shape[-1] == 20 else part for part in qkv(20, 20, d_k=20))
    mixer = without_filter(landmarks=landmarks, iterations=30, d_k=20)
    assert_equal([mixer.attend(q, k, v)], [softmax(q, k, v)], 1e-12)


@torch.no_grad()
def test_six_iterations_are_not_an_exact_inverse():
    q, k, v = qkv(20, 20)
    assert (without_filter(landmarks=20).attend(q, k, v) - softmax(q, k, v)).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("landmarks", [4, 10, 11])
def test_an_output_stands_where_its_input_does(landmarks):
    places = torch.arange(10, dtype=torch.float64)
    q = 4 * torch.stack((places, torch.ones(10), -places * places / 9, torch.ones(10)), 1)
    k = torch.stack((2 * places, -places * places, torch.full((10,), 9.0), torch.zeros(10)), 1) / 4
    v = torch.eye(10, dtype=torch.float64)
    mixer = core("nystrom", "bidirectional", landmarks=landmarks, n_heads=1, d_k=4, d_v=10, kernel=1)
    mixer.taps.fill_(2.0)
    y = mixer.attend(q[None, None], k[None, None], v[None, None])[0, 0]
    assert y.shape == (10, 10)
    assert y.argmax(1).tolist() == list(range(10))


@torch.no_grad()
def test_landmarks_are_means_of_segments_of_which_the_first_are_longer():
    from attnbench_variants.nystrom import _segment_means

    x = torch.arange(10.0).view(1, 1, 10, 1)
    assert _segment_means(x, 4).flatten().tolist() == [1, 4, 6.5, 8.5]
    assert _segment_means(x, 10).flatten().tolist() == list(range(10))


@torch.no_grad()
def test_the_filter_of_nystrom_is_centred():
    mixer = core("nystrom", "bidirectional", kernel=3)
    v = qkv(100, 100)[2]
    mixer.taps.copy_(torch.tensor([0.0, 1.0, 0.0]))
    assert_equal([mixer._convolved(v)], [v], 1e-12)
    mixer.taps.copy_(torch.tensor([1.0, 0.0, 0.0]))
    assert_equal([mixer._convolved(v)[:, :, 1:]], [v[:, :, :-1]], 1e-12)


@pytest.mark.parametrize("T", [1, 7, 64, 65, 130])
@pytest.mark.parametrize("options", [{"d_v": 3}, {"d_v": 3, "n_kv_heads": 1}])
@pytest.mark.parametrize("name", ["linformer", "nystrom"])
def test_executed_flops_are_those_that_torch_counts(name, options, T):
    mixer = build(name, "bidirectional", **options)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        mixer(noise(1, T, 12))
    flops = mixer.flops(T, T)
    assert flops.executed + flops.projection == counter.get_total_flops()
    assert flops.core <= flops.executed


# FNet


@settings(deadline=None, max_examples=25)
@given(T=st.integers(1, 20), d=st.integers(1, 9), B=st.integers(1, 3))
def test_fnet_is_the_sum_over_positions_and_channels(T, d, B):
    mixer, x = BUILT_IN["fnet"](Spec(d, 1, 20, "bidirectional")), noise(B, T, d)
    fast = values_and_gradients(lambda: mixer(x), [x])
    assert_equal(fast, values_and_gradients(lambda: mixer.slow_forward(x), [x]), 1e-10)
    assert_equal(fast[:1], [torch.fft.fft2(x).real], 1e-10)


def test_fnet_has_two_derivatives_and_no_parameters():
    mixer = BUILT_IN["fnet"](Spec(5, 1, 20, "bidirectional"))
    assert torch.autograd.gradcheck(mixer, noise(2, 4, 5))
    assert torch.autograd.gradgradcheck(mixer, noise(2, 4, 5))
    assert not list(mixer.parameters())
    assert mixer.flops(8, 8).core == 2.5 * 40 * math.log2(40)


# What is refused


@pytest.mark.parametrize(
    ("name", "role", "use", "reason"),
    [
        ("linformer", "causal", Use(8, 8), "the future too, so there is no causal role"),
        ("linformer", "cross", Use(8, 8), "no cross role"),
        ("nystrom", "causal", Use(8, 8), "the future too, so there is no causal role"),
        ("nystrom", "cross", Use(8, 8), "no cross role"),
        ("nystrom", "bidirectional", Use(8, 9), "T must be S, got T = 8 and S = 9"),
        ("fnet", "causal", Use(8, 8), "only a bidirectional role"),
        ("fnet", "bidirectional", Use(8, 8, mask="right"), "no key_mask"),
        ("fnet", "bidirectional", Use(8, 8, phase="decode"), "decoding needs"),
    ],
)
def test_what_cannot_be_has_a_reason(name, role, use, reason):
    assert reason in BUILT_IN[name].unsupported(Spec(8, 2, 8, role), use)
    if role != "bidirectional":
        with pytest.raises(ValueError, match=reason):
            build(name, role)


def test_what_cannot_be_is_an_error():
    with pytest.raises(ValueError, match="T must be S, got T = 3 and S = 5"):
        core("nystrom", "bidirectional").attend(*qkv(3, 5))
    with pytest.raises(ValueError, match="sharing must be 'heads' or 'kv', got 'all'"):
        build("linformer", "bidirectional", sharing="all")

"""`hyena` equals its sum over lags, a shorter sequence sees the same filter, and its cost is what it says."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from cores import BUILT_IN, assert_equal, build, noise, ragged_mask, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import fft_convolution_flops
from attnbench.mixer import Spec, Use


@settings(deadline=None, max_examples=25)
@given(
    role=st.sampled_from(("causal", "bidirectional")),
    T=st.integers(1, 40),
    bands=st.integers(0, 2),
    masked=st.booleans(),
)
def test_it_equals_its_sum_over_lags(role, T, bands, masked):
    mixer, x = build("hyena", role, d_filter=5, n_features=2 * bands + 1), noise(4, T, 12)
    key_mask, inputs = ragged_mask(4, T) if masked else None, [x, *mixer.parameters()]
    fast = values_and_gradients(lambda: mixer(x, key_mask=key_mask), inputs)
    assert_equal(fast, values_and_gradients(lambda: mixer.slow_forward(x, key_mask=key_mask), inputs), 1e-9)


@torch.no_grad()
def test_it_is_torchs_own_convolution_between_the_gates():
    mixer, x = build("hyena"), noise(2, 30, 12)
    g, k, v = mixer.short(mixer.W_in(x)).chunk(3, dim=-1)
    u = k * v
    h = mixer.filters(30)[0]
    long = F.conv1d(F.pad(u.mT, (29, 0)), h.T.flip(1)[:, None], groups=12).mT
    assert_equal([mixer(x)], [mixer.W_o(g * (long + mixer.b * u))], 1e-12)


@torch.no_grad()
def test_a_shorter_sequence_sees_the_first_lags_of_the_same_filter():
    mixer = build("hyena", "bidirectional", n_features=5)
    whole = mixer.filters(300)
    assert whole.shape == (2, 300, 12)
    for T in (1, 7, 64):
        assert_equal([mixer.filters(T)], [whole[:, :T]], 1e-12)


@torch.no_grad()
def test_filters_fall_to_a_hundredth_at_the_lags_of_the_paper():
    mixer = build("hyena", max_T=1001)
    mixer.frequency.zero_()
    for layer in (mixer.first, *mixer.inner):
        layer.weight.zero_()
        layer.bias.fill_(math.pi / 2)
    mixer.frequency.fill_(1.0)
    mixer.last.weight.fill_(1 / 64)
    h = mixer.filters(1001)[0]
    assert h[0].tolist() == pytest.approx([1.0] * 12)
    assert h[300, 0].item() == pytest.approx(0.01)
    assert h[1000, -1].item() == pytest.approx(0.01 ** (1 / 1.5))


@pytest.mark.parametrize("T", [1, 7, 64, 130])
@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_products_are_those_that_torch_counts_and_the_rest_comes_by_formula(role, T):
    mixer, d = build("hyena", role), 12
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        mixer(noise(1, T, d))
    flops = mixer.flops(T, T)
    elementwise = d * fft_convolution_flops(T) + 18 * T * d
    assert flops.executed + flops.projection - elementwise == counter.get_total_flops()
    assert flops.projection == 8 * T * d * d


def test_what_cannot_be_has_a_reason():
    cls = BUILT_IN["hyena"]
    assert "no cross role" in cls.unsupported(Spec(8, 2, 8, "cross"), Use(8, 8))
    assert "no state of a fixed size" in cls.unsupported(Spec(8, 2, 8), Use(8, 8, phase="decode"))
    assert "n_features must be odd, got 4" in cls.unsupported(Spec(8, 2, 8), Use(8, 8), n_features=4)
    with pytest.raises(ValueError, match="n_features must be odd, got 4"):
        build("hyena", n_features=4)
    with pytest.raises(NotImplementedError, match="no state of a fixed size"):
        build("hyena").prefill(noise(1, 3, 12))

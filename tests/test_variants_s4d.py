"""`s4d`: its convolution is its recurrence, its kernel the formula of the paper, and its cost what it says."""

from __future__ import annotations

import math

import pytest
import torch
from cores import BUILT_IN, assert_equal, build, noise, ragged_mask, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import fft_convolution_flops
from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec, Use

ROLE = st.sampled_from(("causal", "bidirectional"))


@settings(deadline=None, max_examples=40)
@given(
    role=ROLE,
    T=st.integers(1, 70),
    pairs=st.integers(1, 5),
    init=st.sampled_from(("lin", "inv")),
    masked=st.booleans(),
)
def test_the_convolution_is_the_recurrence(role, T, pairs, init, masked):
    mixer, x = build("s4d", role, d_model=6, n_heads=1, d_state=2 * pairs, init=init), noise(4, T, 6)
    key_mask = ragged_mask(4, T) if masked else None
    inputs = [x, *mixer.parameters()]
    fast = values_and_gradients(lambda: mixer(x, key_mask=key_mask), inputs)
    assert_equal(fast, values_and_gradients(lambda: mixer.slow_forward(x, key_mask=key_mask), inputs), 1e-10)


@torch.no_grad()
@pytest.mark.parametrize("T", [1, 3, 16, 100])
def test_the_kernel_is_that_of_the_paper(T):
    mixer = build("s4d", d_model=3, n_heads=1)
    dt, n, lags = mixer.log_dt.exp()[:, None], torch.arange(32), torch.arange(T)
    A = -0.5 + 1j * math.pi * n.double()
    C = torch.view_as_complex(mixer.C[0])
    expected = 2 * torch.einsum("dn,dnl->dl", C * ((dt * A).exp() - 1) / A, ((dt * A)[..., None] * lags).exp()).real
    assert_equal([mixer.kernels(T)[0].T], [expected], 1e-5)  # log(1/2) and pi were stored in float32


@torch.no_grad()
def test_a_real_pole_is_a_moving_average():
    mixer, x = build("s4d", d_model=2, n_heads=1, d_state=2), noise(1, 30, 2)
    mixer.A_im.zero_()
    mixer.C.copy_(torch.tensor([0.5, 0.0]))
    keep, average = (-0.5 * mixer.log_dt.exp()).exp(), torch.zeros(2).double()
    kernel = mixer.kernels(30)[0]
    for t in range(30):
        average = keep * average + (1 - keep) / 0.5 * x[0, t]
        found = (kernel[: t + 1].flip(0) * x[0, : t + 1]).sum(0)
        assert_equal([found], [average], 1e-6)


@torch.no_grad()
@settings(deadline=None, max_examples=20)
@given(T=st.integers(0, 40), T_prompt=st.integers(0, 40), masked=st.booleans())
def test_steps_equal_the_whole_pass_from_any_prompt(T, T_prompt, masked):
    T = max(T, T_prompt)
    mixer, x = build("s4d"), noise(2, T, 12)
    key_mask = ragged_mask(2, T_prompt) if masked else None
    y, state = mixer.prefill(x[:, :T_prompt], key_mask=key_mask)
    outputs = [y]
    for token in x[:, T_prompt:].unbind(1):
        y, state = mixer.step(token, state)
        outputs.append(y[:, None])
    whole = None if key_mask is None else torch.nn.functional.pad(key_mask, (0, T - T_prompt), value=True)
    if T:
        assert_equal([torch.cat(outputs, dim=1)], [mixer(x, key_mask=whole)], 1e-10)


@torch.no_grad()
def test_states_stay_float32_in_half_precision():
    mixer, x = build("s4d").to(torch.bfloat16), noise(1, 9, 12, dtype=torch.bfloat16)
    y, state = mixer.prefill(x[:, :8])
    assert (y.dtype, state["h"].dtype) == (torch.bfloat16, torch.complex64)
    y, state = mixer.step(x[:, 8], state)
    assert (y.dtype, state["h"].dtype) == (torch.bfloat16, torch.complex64)


@torch.no_grad()
def test_float32_stays_close_at_16384_positions():
    mixer, x = build("s4d", d_model=4, n_heads=1), noise(1, 16384, 4).detach()
    exact = mixer._convolved(x)
    found = mixer.float()._convolved(x.float())
    assert ((found - exact).abs().max() / exact.abs().max()).item() < 3e-5


@pytest.mark.parametrize("T", [1, 7, 64, 130])
@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_products_are_those_that_torch_counts_and_transforms_come_by_formula(role, T):
    mixer, d = build("s4d", role), 12
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        mixer(noise(1, T, d))
    flops = mixer.flops(T, T)
    assert flops.executed + flops.projection - d * fft_convolution_flops(T) == counter.get_total_flops()
    n_directions = 2 if role == "bidirectional" else 1
    assert flops.core == d * (15 * T * math.log2(2 * T) + 6 * T) + 2 * n_directions * T * d * 64
    assert flops.core <= flops.executed
    assert flops.projection == 4 * T * d * d


def test_training_memory_is_linear_in_T():
    mixer = build("s4d", d_model=16, n_heads=1)
    few, many = (
        peak_bytes(lambda T=T: torch.autograd.grad(mixer(noise(1, T, 16)).sum(), mixer.parameters()), "cpu")
        for T in (2048, 8192)
    )
    assert math.log(many / few) / math.log(4) == pytest.approx(1, abs=0.2)


def test_what_learns_slowly_is_what_the_authors_let_learn_slowly():
    cls = BUILT_IN["s4d"]
    assert {*cls.no_decay} == {*cls.lr_scale} == {"log_dt", "log_A_re", "A_im"}
    assert {*cls.no_decay} <= {name for name, _ in build("s4d").named_parameters()}


def test_what_cannot_be_has_a_reason():
    cls = BUILT_IN["s4d"]
    assert "no cross role" in cls.unsupported(Spec(8, 2, 8, "cross"), Use(8, 8))
    assert "decoding needs" in cls.unsupported(Spec(8, 2, 8, "bidirectional"), Use(8, 8, phase="decode"))
    assert "d_state must be even, got 7" in cls.unsupported(Spec(8, 2, 8), Use(8, 8), d_state=7)
    with pytest.raises(ValueError, match="d_state must be even, got 7"):
        build("s4d", d_state=7)
    with pytest.raises(ValueError, match="init must be 'lin' or 'inv', got 'legs'"):
        build("s4d", init="legs")

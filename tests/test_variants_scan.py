"""`mingru`, `minlstm`, `lru` and `mamba` equal their recurrences, and the simpler ones that they contain."""

from __future__ import annotations

import re

import pytest
import torch
from cores import BUILT_IN, assert_equal, build, noise, values_and_gradients
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import selective_scan
from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec, Use

NAMES = ("mingru", "minlstm", "lru", "mamba")
SERVED = [(name, "causal") for name in NAMES] + [(name, "bidirectional") for name in NAMES if name != "mamba"]
OPTIONS = {
    "mingru": ({}, {"expand": 3}),
    "minlstm": ({}, {"expand": 2}),
    "lru": ({}, {"n_state": 5, "r_min": 0.9, "r_max": 0.999, "max_phase": 0.3}),
    "mamba": ({}, {"n_state": 1, "expand": 1, "conv": 1, "dt_rank": 3}),
}


def shaken(name, role="causal", **options):
    """A mixer whose parameters are those of no start."""
    mixer = build(name, role, **({"d_model": 6, "n_heads": 1} | options))
    with torch.no_grad():
        for i, parameter in enumerate(mixer.parameters()):
            parameter.add_(noise(*parameter.shape, seed=i), alpha=0.3)
    return mixer


@pytest.mark.parametrize("T", [1, 2, 33, 97])
@pytest.mark.parametrize("chosen", [0, 1])
@pytest.mark.parametrize(("name", "role"), SERVED)
def test_each_equals_its_slow_form(name, role, chosen, T):
    mixer, x = shaken(name, role, **OPTIONS[name][chosen]), noise(3, T, 6)
    inputs = [x, *mixer.parameters()]
    fast, slow = (values_and_gradients(lambda f=f: f(x), inputs) for f in (mixer, mixer.slow_forward))
    assert_equal(fast, slow, 1e-10)


@pytest.mark.parametrize(("name", "role"), SERVED)
def test_padding_on_the_right_is_nothing_to_a_recurrence(name, role):
    mixer, x, key_mask = shaken(name, role), noise(3, 40, 6), torch.arange(40) < torch.tensor([[40], [9], [1]])
    inputs = [x, *mixer.parameters()]
    fast, slow = (
        values_and_gradients(lambda f=f: f(x, key_mask=key_mask) * key_mask[..., None], inputs)
        for f in (mixer, mixer.slow_forward)
    )
    assert_equal(fast, slow, 1e-10)


# What they contain


def test_a_constant_gate_is_an_exponential_moving_average():
    mixer, x = build("mingru", d_model=2, n_heads=1), noise(1, 50, 2)
    with torch.no_grad():
        mixer.rightward.W_in.weight[:2] = 0
        mixer.rightward.W_in.bias[:2] = torch.tensor(0.25).logit()  # z
        mixer.rightward.W_in.weight[2:] = torch.eye(2)
    c = torch.where(x >= 0, x + 0.5, x.sigmoid())
    weights = (0.25 * 0.75 ** (torch.arange(50)[:, None] - torch.arange(50)).clamp(min=0).double()).tril()
    assert_equal([mixer(x)], [weights @ c], 1e-7)


def test_a_minimal_lstm_with_equal_gates_keeps_a_half():
    mixer, x = build("minlstm", d_model=2, n_heads=1), noise(1, 5, 2)
    with torch.no_grad():
        mixer.rightward.W_in.weight[:4] = 0
        mixer.rightward.W_in.weight[4:] = torch.eye(2)
    c, h = torch.where(x >= 0, x + 0.5, x.sigmoid()), torch.zeros(1, 2).double()
    for t in range(5):
        h = (h + c[:, t]) / 2
        assert_equal([mixer(x)[:, t]], [h], 1e-12)


@pytest.mark.parametrize("gate", [-2e3, 2e3])
def test_gates_that_underflow_leave_the_minimal_lstm_finite(gate):
    mixer, x = build("minlstm").float(), noise(1, 70, 12, dtype=torch.float32)
    with torch.no_grad():
        mixer.rightward.W_in.bias[:24] = gate
    assert all(part.isfinite().all() for part in values_and_gradients(lambda: mixer(x), [x, *mixer.parameters()]))


def test_the_linear_recurrence_is_a_convolution():
    mixer, x = shaken("lru"), noise(2, 130, 6)
    lambdas = torch.polar((-mixer.nu.exp()).exp(), mixer.theta.exp())
    n = torch.arange(130)
    powers = torch.polar(lambdas.abs() ** n[:, None], n[:, None] * lambdas.angle())  # (T, N)
    B, C = (torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous()) for part in (mixer.B.mT, mixer.C))
    taps = torch.einsum("dn,ln,n,en->led", C.conj(), powers, mixer.gamma.exp() + 0j, B).real  # from e to d
    rows = [torch.einsum("bse,sed->bd", x[:, : t + 1].flip(1), taps[: t + 1]) for t in range(0, 130, 43)]
    assert_equal([mixer(x)[:, ::43]], [torch.stack(rows, 1) + mixer.D * x[:, ::43]], 1e-10)


def test_eigenvalues_start_on_the_ring_and_states_keep_the_size_of_their_inputs():
    mixer = build("lru", n_state=400, r_min=0.4, r_max=0.8, max_phase=0.5)
    size, phase = (-mixer.nu.exp()).exp(), mixer.theta.exp()
    assert ((size >= 0.4) & (size <= 0.8) & (phase >= 0) & (phase <= 0.5)).all()
    assert size.square().mean().item() == pytest.approx((0.16 + 0.64) / 2, abs=0.03)
    assert_equal([mixer.gamma.exp()], [(1 - size**2).sqrt()], 1e-6)


def test_mamba_with_one_state_of_decay_1_is_a_gated_recurrence():
    """Theorem 1 of the paper, which discretises B exactly: 1 - exp(-dt) in the place of dt."""
    mixer, x = build("mamba", d_model=3, n_heads=1, n_state=1, expand=1, conv=1, dt_rank=1), noise(2, 60, 3)
    dt, _, _ = mixer._selected(x)
    g = 1 - (-dt).exp()  # sigmoid of dt's argument, as softplus is -log(1 - sigmoid)
    A, ones, h = -torch.ones(3, 1).double(), torch.ones(2, 60, 1).double(), torch.zeros(2, 3).double()
    y, _ = selective_scan(g / dt * x, dt, A, ones, ones)
    for t in range(60):
        h = (1 - g[:, t]) * h + g[:, t] * x[:, t]
        assert_equal([y[:, t]], [h], 1e-12)


def test_mamba_starts_as_its_authors_say():
    mixer = build("mamba", d_model=64, n_heads=1)
    steps = torch.nn.functional.softplus(mixer.W_dt.bias)
    assert (mixer.d_inner, mixer.n_state, mixer.n_taps, mixer.dt_rank) == (128, 16, 4, 4)
    assert_equal([mixer.A_log.exp()], [torch.arange(1, 17).double().expand(128, -1)], 1e-6)
    assert ((steps > 0.00099) & (steps < 0.101)).all()
    assert steps.log().mean().item() == pytest.approx((torch.tensor([0.001, 0.1]).log().mean()).item(), abs=0.4)


# Decoding, cost, precision


@torch.no_grad()
@pytest.mark.parametrize("chosen", [0, 1])
@pytest.mark.parametrize("n_prompt", [0, 1, 2, 40])
@pytest.mark.parametrize("name", NAMES)
def test_steps_equal_the_whole(name, n_prompt, chosen):
    mixer, x = shaken(name, **OPTIONS[name][chosen]), noise(2, 45, 6)
    y, state = mixer.prefill(x[:, :n_prompt])
    rows = [y]
    for t in range(n_prompt, 45):
        kept = {key: value.clone() for key, value in state.items()}
        y, after = mixer.step(x[:, t], state)
        assert all(torch.equal(state[key], kept[key]) for key in kept)
        rows.append(y[:, None])
        state = after
    assert_equal([torch.cat(rows, 1)], [mixer(x)], 1e-11)


@pytest.mark.parametrize("chosen", [0, 1])
@pytest.mark.parametrize(("name", "role"), SERVED)
def test_executed_operations_are_those_that_torch_counts(name, role, chosen):
    mixer, x = build(name, role, **OPTIONS[name][chosen]), noise(1, 37, 12)
    with FlopCounterMode(display=False) as counter:
        mixer(x)
    flops = mixer.flops(37, 37)
    assert counter.get_total_flops() == flops.executed + flops.projection


@pytest.mark.parametrize("name", NAMES)
def test_training_memory_is_linear_in_T(name):
    mixer = build(name, d_model=16, n_heads=1)
    few, many = (
        peak_bytes(lambda T=T: torch.autograd.grad(mixer(noise(1, T, 16)).sum(), mixer.parameters()), "cpu")
        for T in (1024, 4096)
    )
    assert 3 <= many / few <= 4.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "role"), SERVED)
def test_lower_precision_stays_near_float64(name, role, dtype):
    mixer, x = build(name, role), noise(2, 70, 12, dtype=dtype)
    expected = mixer(x.double())
    y = mixer.to(dtype)(x)
    assert y.dtype == dtype
    assert_equal([y], [expected], 1e-5 if dtype == torch.float32 else 4e-2)


# What is refused


def test_what_cannot_be_is_an_error_that_says_why():
    x = noise(1, 3, 12)
    for make, message in (
        (lambda: build("mamba", "bidirectional"), "runs one way"),
        (lambda: build("lru", "cross"), "no cross role"),
        (lambda: build("mingru", "bidirectional", d_model=3), "even d_model, got 3"),
        (lambda: build("lru", r_min=0.9, r_max=0.5), "0 <= r_min <= r_max <= 1, got 0.9 and 0.5"),
        (lambda: build("lru", max_phase=0.0), "max_phase must be positive, got 0"),
        *(
            (lambda n=n: build(n)(x, key_mask=torch.tensor([[True, False, True]])), "padding on the right")
            for n in NAMES
        ),
        *((lambda n=n: build(n).prefill(x, key_mask=torch.ones(1, 3).bool()), "no key_mask") for n in NAMES),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            make()


@pytest.mark.parametrize("name", NAMES)
def test_unsupported_uses_have_a_reason(name):
    for role, use, reason in (
        ("cross", Use(8, 8), "no cross role"),
        ("causal", Use(8, 8, mask="any"), "only padding on the right"),
        ("causal", Use(8, 8, mask="right", phase="decode"), "padded prompt"),
        ("bidirectional", Use(8, 8, phase="decode"), "decoding needs"),
    ):
        assert reason in BUILT_IN[name].unsupported(Spec(15, 3, 8, role), use)
    assert "r_min <= r_max" in BUILT_IN["lru"].unsupported(Spec(15, 3, 8), Use(8, 8), r_min=0.9, r_max=0.5)

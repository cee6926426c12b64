"""`rnn`, `gru` and `lstm` equal a loop over cells, and torch's layers, whichever way they run."""

from __future__ import annotations

import re

import pytest
import slow_forms
import torch
from cores import BUILT_IN, assert_equal, build, noise, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec, Use

NAMES = ("rnn", "gru", "lstm")
N_GATES = {"rnn": 1, "gru": 3, "lstm": 4}
BOTH_ROLES = ("causal", "bidirectional")


def directions(mixer):
    return [layer for layer in (mixer.rightward, mixer.leftward) if layer is not None]


def slow_direction(name, weights, x):
    w_ih, w_hh, b_ih, b_hh = weights
    if name == "gru":
        return slow_forms.gru(x, w_ih, w_hh, b_ih, b_hh)
    return {"rnn": slow_forms.rnn, "lstm": slow_forms.lstm}[name](x, w_ih, w_hh, b_ih + b_hh)


def slow_row(name, mixer, x, n):
    """One row x (T, d_model) of which n positions are real; the outputs of the others are 0."""
    if n == 0:
        return torch.zeros_like(x)
    outputs = []
    for layer in directions(mixer):
        forwards = layer is mixer.rightward
        y = slow_direction(name, layer.all_weights[0], (x[:n] if forwards else x[:n].flip(0))[None])[0]
        outputs.append(y if forwards else y.flip(0))
    return torch.nn.functional.pad(torch.cat(outputs, dim=-1), (0, 0, 0, len(x) - n))


def shaken(name, role="causal", **sizes):
    """A mixer whose biases are not zero, as after training."""
    mixer = build(name, role, **({"d_model": 6, "n_heads": 1} | sizes))
    with torch.no_grad():
        for i, parameter in enumerate(mixer.parameters()):
            parameter.add_(noise(*parameter.shape, seed=i), alpha=0.3)
    return mixer


# Outputs and gradients, those of the weights too


@pytest.mark.parametrize("T", [1, 2, 7, 33])
@pytest.mark.parametrize("role", BOTH_ROLES)
@pytest.mark.parametrize("name", NAMES)
def test_each_equals_its_cell_loop(name, role, T):
    mixer, x = shaken(name, role), noise(3, T, 6)
    inputs = [x, *mixer.parameters()]
    fast = values_and_gradients(lambda: mixer(x), inputs)
    slow = values_and_gradients(lambda: torch.stack([slow_row(name, mixer, row, T) for row in x]), inputs)
    assert_equal(fast, slow, 1e-12)


@pytest.mark.parametrize("T", [1, 2, 7, 33])
@pytest.mark.parametrize("role", BOTH_ROLES)
@pytest.mark.parametrize("name", NAMES)
def test_padding_on_the_right_is_nothing_to_a_recurrence(name, role, T):
    mixer, x, lengths = shaken(name, role), noise(3, T, 6), (T, 1, 0)
    key_mask = torch.arange(T) < torch.tensor(lengths)[:, None]
    inputs = [x, *mixer.parameters()]
    fast = values_and_gradients(lambda: mixer(x, key_mask=key_mask) * key_mask[..., None], inputs)
    rows = list(zip(x, lengths, strict=True))
    slow = values_and_gradients(lambda: torch.stack([slow_row(name, mixer, row, n) for row, n in rows]), inputs)
    assert_equal(fast, slow, 1e-12)


@settings(deadline=None, max_examples=25)
@given(name=st.sampled_from(NAMES), B=st.integers(1, 4), T=st.integers(1, 40), d_model=st.integers(1, 9))
def test_each_equals_the_layer_of_torch_that_it_holds(name, B, T, d_model):
    mixer, x = shaken(name, d_model=d_model), noise(B, T, d_model)
    inputs = [x, *mixer.parameters()]
    ours = values_and_gradients(lambda: mixer(x), inputs)
    assert_equal(ours, values_and_gradients(lambda: mixer.rightward(x)[0], inputs), 1e-12)


@pytest.mark.parametrize("name", ["rnn", "gru"])
def test_gradients_are_those_of_finite_differences(name):
    mixer = shaken(name, d_model=3)
    weights = mixer.rightward.all_weights[0]
    assert torch.autograd.gradcheck(mixer.own_loop.apply, (noise(4, 2, 3), *weights))


@pytest.mark.parametrize("name", ["rnn", "gru"])
def test_a_second_derivative_is_refused_not_wrong(name):
    mixer, x = build(name), noise(1, 4, 12)
    (slope,) = torch.autograd.grad(mixer(x).sum(), x, create_graph=True)
    assert not slope.requires_grad
    (slope,) = torch.autograd.grad(mixer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.parametrize("name", ["rnn", "gru"])
def test_an_output_that_the_backward_pass_needs_cannot_be_written_to(name):
    mixer, x = build(name), noise(2, 4, 12)
    with pytest.raises(RuntimeError, match="modified inplace"):
        mixer(x).mul_(2)


@pytest.mark.parametrize("name", ["rnn", "gru"])
def test_gradients_can_be_taken_twice_and_leave_what_they_came_from(name):
    mixer, x = build(name), noise(2, 5, 12)
    y, seed = mixer(x), noise(2, 5, 12, seed=1).detach()
    kept = seed.clone()
    first, second = (torch.autograd.grad(y, [x, *mixer.parameters()], seed, retain_graph=True) for _ in range(2))
    assert_equal(list(first), list(second), 0.0)
    assert torch.equal(seed, kept)


# The start


@pytest.mark.parametrize("role", BOTH_ROLES)
@pytest.mark.parametrize("name", NAMES)
def test_recurrence_starts_orthogonal_and_only_forget_gates_have_a_bias(name, role):
    mixer = build(name, role, d_model=6, n_heads=1)
    for layer in directions(mixer):
        _, w_hh, b_ih, b_hh = layer.all_weights[0]
        expected = [0.0, 1.0, 0.0, 0.0] if name == "lstm" else [0.0] * N_GATES[name]
        assert (b_ih + b_hh).view(N_GATES[name], -1).mean(1).tolist() == expected
        assert w_hh.shape[0] == N_GATES[name] * w_hh.shape[1]
        for gate in w_hh.chunk(N_GATES[name]):
            assert_equal([gate @ gate.T], [torch.eye(len(gate)).double()], 1e-6)


# Precision, cost


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("role", BOTH_ROLES)
@pytest.mark.parametrize("name", NAMES)
def test_lower_precision_stays_near_float64(name, role, dtype):
    mixer, x = build(name, role), noise(2, 9, 12, dtype=dtype)
    exact = x.detach().double().requires_grad_()
    expected = values_and_gradients(lambda: mixer(exact), [exact])
    mixer.to(dtype)
    found = values_and_gradients(lambda: mixer(x), [x])
    assert {y.dtype for y in found} == {dtype}
    assert_equal(found, expected, 1e-5 if dtype == torch.float32 else 3e-2)


def test_flops_count_4_12_and_16_times_T_d_squared():
    for name, n_gates in N_GATES.items():
        one, two = (build(name, role, d_model=12).flops(10, 10) for role in BOTH_ROLES)
        assert one.core == one.projection == two.projection == 2 * n_gates * 10 * 12**2
        assert two.core == n_gates * 10 * 12**2  # two maps of a quarter of the size
        assert one.executed == one.core


@pytest.mark.parametrize("name", NAMES)
def test_training_memory_is_linear_in_T(name):
    mixer = build(name, d_model=16, n_heads=1)
    few, many = (
        peak_bytes(lambda T=T: torch.autograd.grad(mixer(noise(1, T, 16)).sum(), mixer.parameters()), "cpu")
        for T in (256, 1024)
    )
    assert 3 <= many / few <= 4.5


# What is refused


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("role", "use", "reason"),
    [
        ("cross", Use(8, 8), "no cross role"),
        ("causal", Use(8, 8, mask="any"), "only padding on the right"),
        ("causal", Use(8, 8, mask="right", phase="decode"), "padded prompt"),
        ("bidirectional", Use(8, 8), "even d_model"),
        ("bidirectional", Use(8, 8, phase="decode"), "decoding needs"),
    ],
)
def test_unsupported_uses_have_a_reason(name, role, use, reason):
    assert reason in BUILT_IN[name].unsupported(Spec(15, 3, 8, role), use)


@pytest.mark.parametrize("name", NAMES)
def test_what_cannot_be_is_an_error_that_says_why(name):
    for make, message in (
        (lambda: build(name, "cross"), "no cross role"),
        (lambda: build(name, "bidirectional", d_model=3), "even d_model, got 3"),
        (lambda: build(name)(noise(1, 3, 12), key_mask=torch.tensor([[True, False, True]])), "padding on the right"),
        (lambda: build(name).prefill(noise(1, 3, 12), key_mask=torch.ones(1, 3).bool()), "no key_mask"),
        (lambda: build(name)(noise(1, 3, 12), context=noise(1, 3, 12)), "takes no context"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            make()


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_off_the_cpu_gradients_can_be_had_in_eval_and_nothing_is_kept_for_them_without(name, role):
    mixer = build(name, role=role).to("meta").eval()  # cuDNN's backward pass needs training mode
    layers = [layer for layer in (mixer.rightward, mixer.leftward) if layer is not None]
    x = torch.empty(2, 5, mixer.spec.d_model, device="meta", dtype=torch.float64, requires_grad=True)
    y = mixer(x)
    assert [layer.training for layer in layers] == [True] * len(layers)
    assert torch.autograd.grad(y.sum(), x)[0].shape == x.shape
    with torch.no_grad():
        mixer.train()(x)
    assert [layer.training for layer in layers] == [False] * len(layers)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
def test_on_a_cpu_modes_stay_as_they_are(name):
    mixer = build(name).eval()
    mixer(torch.zeros(1, 3, mixer.spec.d_model, dtype=torch.float64, requires_grad=True))
    assert not mixer.rightward.training

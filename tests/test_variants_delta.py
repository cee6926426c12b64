"""`deltanet` and `gated_deltanet` overwrite, equal their slow forms and each other, and cost what they say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cores import BUILT_IN, assert_equal, build, core, noise, qkv, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import matrix_recurrence
from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec, Use

NAMES = ("deltanet", "gated_deltanet")
GATED = "gated_deltanet"


def right(B, T):
    return torch.arange(T) < torch.tensor([[T], [T // 2 + 1], [1], [0]])[:B]


def extras(name, T, S, *, d_v=4, seed=4):
    """beta, and with a gate log_decay and gate."""
    beta = noise(2, 3, S, seed=seed).detach().sigmoid().requires_grad_()
    decays = noise(2, 3, S, seed=seed + 1).detach().abs().neg().requires_grad_()
    return [beta] if name == "deltanet" else [beta, decays, noise(2, 3, T, d_v, seed=seed + 2)]


def unit(q, k, v):
    return [q, F.normalize(k.detach(), dim=-1).requires_grad_(), v]


# The fast form is the slow form


@settings(deadline=None, max_examples=40)
@given(
    name=st.sampled_from(NAMES),
    T=st.integers(1, 40),
    chunk=st.integers(1, 45),
    conv=st.integers(0, 4),
    negative=st.booleans(),
    masked=st.booleans(),
)
def test_a_layer_equals_its_slow_form(name, T, chunk, conv, negative, masked):
    mixer, x = build(name, chunk=chunk, conv=conv, negative_eigenvalues=negative), noise(4, T, 12)
    key_mask, given = right(4, T) if masked else None, [x, *mixer.parameters()]
    fast = values_and_gradients(lambda: mixer(x, key_mask=key_mask), given)
    assert_equal(fast, values_and_gradients(lambda: mixer.slow_forward(x, key_mask=key_mask), given), 1e-9)


@pytest.mark.parametrize(("T", "S"), [(3, 8), (8, 3), (33, 70), (1, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_a_core_equals_its_slow_form_when_T_and_S_differ(name, T, S):
    mixer, key_mask = core(name, chunk=16, d_v=5), right(2, S)
    given = [*unit(*qkv(T, S, d_v=5)), *extras(name, T, S, d_v=5)]
    fast = values_and_gradients(lambda: mixer.attend(*given, key_mask=key_mask), given)
    assert_equal(fast, values_and_gradients(lambda: mixer.slow_attend(*given, key_mask=key_mask), given), 1e-9)


@pytest.mark.parametrize(
    "options", [{"n_kv_heads": 1, "conv": 3}, {"conv": 0}, {"conv": 1}, {"d_k": 3, "d_v": 7}, {"d_k": 1, "d_v": 1}]
)
@pytest.mark.parametrize("name", NAMES)
def test_widths_and_shared_keys(name, options):
    mixer, x = build(name, **options), noise(2, 9, 12)
    given = [x, *mixer.parameters()]
    fast, slow = (values_and_gradients(lambda f=f: f(x), given) for f in (mixer, mixer.slow_forward))
    assert_equal(fast, slow, 1e-9)
    y, state = mixer.prefill(x[:, :7])
    token, state = mixer.step(x[:, 7], state)
    assert state["state"].shape == (2, mixer.n_kv_heads, mixer.d_k, mixer.d_v)
    assert_equal([y, token, mixer.step(x[:, 8], state)[0]], [mixer(x)[:, :7], mixer(x)[:, 7], mixer(x)[:, 8]], 1e-11)


@pytest.mark.parametrize("T", [5, 17])
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name, T):
    torch.autograd.gradcheck(build(name, chunk=4), [noise(1, T, 12)], fast_mode=True)


# The mechanism


def read_twice_written(form):
    """Key [1, 0] written with v = 1, then with 5: what q = k reads."""
    k = torch.tensor([[1.0, 0.0]] * 2).double()[None, None]
    v = torch.tensor([[1.0], [5.0]]).double()[None, None]
    return form(k, k, v)[0, 0, -1, 0].item()


def test_a_key_written_twice_holds_its_last_value_where_linear_attention_holds_a_sum():
    one, gate = torch.ones(1, 1, 2).double(), torch.ones(1, 1, 2, 1).double()
    zeros = torch.zeros(1, 1, 2, 1).double()
    for name, extra in (("deltanet", [one]), (GATED, [one, 0 * one, gate])):
        mixer = core(name, n_heads=1, d_k=2, d_v=1)
        assert read_twice_written(lambda q, k, v: mixer._recurrence(q, k, v, *extra[:2])[0]) == pytest.approx(5)  # noqa: B023
    assert read_twice_written(lambda q, k, v: matrix_recurrence(q, k, v, zeros, chunk=2)[0]) == pytest.approx(6)
    assert read_twice_written(core("linear", n_heads=1, d_k=2, d_v=1).attend) == pytest.approx(3, abs=1e-5)


def test_a_gate_that_keeps_everything_is_the_plain_delta_rule():
    (q, k, v), (beta, _, _) = unit(*qkv(33, 33)), extras(GATED, 33, 33)
    kept = torch.zeros(2, 3, 33).double()
    plain, gated = core("deltanet", chunk=8), core(GATED, chunk=8)
    given = [q, k, v, beta]
    expected = values_and_gradients(lambda: plain._recurrence(q, k, v, beta)[0], given)
    assert_equal(values_and_gradients(lambda: gated._recurrence(q, k, v, beta, kept)[0], given), expected, 1e-12)


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_projected_has_its_ranges(name, negative):
    mixer, x = build(name, negative_eigenvalues=negative), 5 * noise(2, 40, 12)
    q, k, _, beta, *rest = mixer.project(x, x)
    assert_equal([q.norm(dim=-1), k.norm(dim=-1)], [torch.ones(2, 3, 40).double()] * 2, 1e-3)
    assert beta.min() > 0
    assert (1 < beta.max() < 2) if negative else (beta.max() < 1)
    assert all((part <= 0).all() for part in rest[:1])


def test_negative_eigenvalues_count_modulo_2():
    ones = torch.ones(1, 1, 6, 1).double()
    start = -ones[:, :, :1]  # written first, at beta = 1; then each write of 0 at beta = 2 turns the sign
    v, beta = torch.cat((start, 0 * ones), dim=2), torch.tensor([[[1.0] + [2.0] * 6]]).double()
    k = torch.ones(1, 1, 7, 1).double()
    y, _ = core("deltanet", n_heads=1, d_k=1, d_v=1)._recurrence(k, k, v, beta)
    assert y.flatten().tolist() == pytest.approx([-1, 1, -1, 1, -1, 1, -1])


def test_it_starts_as_mamba_2_does():
    mixer = build(GATED, d_model=256, n_heads=64)
    step, rate = F.softplus(mixer.dt_bias), mixer.A_log.exp()
    assert 1e-3 <= step.min() < 2e-3 < 5e-2 < step.max() <= 0.101
    assert 1 <= rate.min() < 3 < 13 < rate.max() <= 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gates_that_shut_at_once_leave_numbers_and_gradients(dtype):
    mixer = core(GATED).to(dtype)
    q, k, v, beta, _, gate = (
        x.detach().to(dtype).requires_grad_() for x in [*unit(*qkv(70, 70)), *extras(GATED, 70, 70)]
    )
    for strength in (10.0, 1e4):
        g = (-strength * noise(2, 3, 70, seed=6, dtype=dtype).detach().abs()).requires_grad_()
        given = [q, k, v, beta, g, gate]
        assert all(part.isfinite().all() for part in values_and_gradients(lambda x=given: mixer.attend(*x), given))


@pytest.mark.parametrize("name", NAMES)
def test_the_state_of_a_bfloat16_layer_is_float32(name):
    mixer, x = build(name).bfloat16(), noise(1, 5, 12, dtype=torch.bfloat16)
    y, state = mixer.prefill(x)
    assert (y.dtype, state["state"].dtype) == (torch.bfloat16, torch.float32)
    assert mixer.step(x[:, 0], state)[1]["state"].dtype == torch.float32


# What it costs, and what it takes


@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 1, "d_k": 5, "d_v": 2, "chunk": 64}])
@pytest.mark.parametrize("name", NAMES)
def test_executed_flops_are_those_that_torch_counts(name, options):
    mixer = build(name, **options)
    for T in (1, 7, 32, 65, 130):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            mixer(torch.zeros(1, T, 12).double())
        flops = mixer.flops(T, T)
        assert flops.executed + flops.projection == counter.get_total_flops()
        assert flops.core <= flops.executed
    _, state = mixer.prefill(torch.zeros(1, 3, 12).double())
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        mixer.step(torch.zeros(1, 12).double(), state)
    step = mixer.step_flops(3, 3)
    assert step.core + step.projection == counter.get_total_flops()


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_training_is_far_from_a_matrix_per_step(name):
    mixer = BUILT_IN[name](Spec(512, 8, 4096))
    q, k, v = (x.detach().float().requires_grad_() for x in unit(*qkv(4096, 4096, B=1, H=8, d_k=64, d_v=64)))
    beta = torch.full((1, 8, 4096), 0.5, requires_grad=True)
    extra = [beta] if name == "deltanet" else [beta, (-0.1 * beta).detach().requires_grad_(), v.detach()]

    def train():
        mixer.attend(q, k, v, *extra).sum().backward()

    train()
    assert peak_bytes(train, "cpu") < 256 * 2**20


@pytest.mark.parametrize("name", NAMES)
def test_what_it_cannot_do_has_a_reason(name):
    cls = BUILT_IN[name]
    for role in ("bidirectional", "cross"):
        assert cls.unsupported(Spec(8, 2, 8, role), Use(8, 8)).endswith("the role must be causal")
        with pytest.raises(ValueError, match="the role must be causal"):
            build(name, role)
    assert "only padding on the right" in cls.unsupported(Spec(8, 2, 8), Use(8, 8, mask="any"))
    assert "padded prompt" in cls.unsupported(Spec(8, 2, 8), Use(8, 8, mask="right", phase="prefill"))
    with pytest.raises(ValueError, match="prefill takes no key_mask"):
        build(name).prefill(noise(1, 3, 12), key_mask=torch.ones(1, 3).bool())
    with pytest.raises(ValueError, match="may only hide padding on the right"):
        build(name)(noise(1, 3, 12), key_mask=torch.tensor([[True, False, True]]))


@pytest.mark.parametrize("name", NAMES)
def test_options_have_their_limits(name):
    with pytest.raises(ValueError, match=r"^conv must be at least 0, got -1"):
        build(name, conv=-1)
    with pytest.raises(ValueError, match=r"^backend must be 'auto' or 'torch' or 'fla', got 'cuda'"):
        build(name, backend="cuda")

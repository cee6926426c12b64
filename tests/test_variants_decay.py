"""`retnet`, `gla` and `rwkv` are their recurrences, are one another where the papers say so, and cost what they say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cores import BUILT_IN, assert_equal, build, core, noise, qkv, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import matrix_recurrence, rotated
from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec, Use

NAMES = ("retnet", "gla", "rwkv")
NAME = st.sampled_from(NAMES)


def right(B, T):
    return torch.arange(T) < torch.tensor([[T], [T // 2 + 1], [1], [0]])[:B]


# The fast form is the slow form


@settings(deadline=None, max_examples=40)
@given(name=NAME, T=st.integers(1, 40), chunk=st.integers(1, 45), conv=st.integers(0, 3), masked=st.booleans())
def test_a_layer_equals_its_slow_form(name, T, chunk, conv, masked):
    mixer, x = build(name, chunk=chunk, conv=conv), noise(4, T, 12)
    key_mask = right(4, T) if masked else None
    given = [x, *mixer.parameters()]
    fast = values_and_gradients(lambda: mixer(x, key_mask=key_mask), given)
    assert_equal(fast, values_and_gradients(lambda: mixer.slow_forward(x, key_mask=key_mask), given), 1e-9)


@pytest.mark.parametrize(("T", "S"), [(3, 8), (8, 3), (33, 70), (1, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_a_core_equals_its_slow_form_when_T_and_S_differ(name, T, S):
    mixer, (q, k, v) = core(name, chunk=16, d_v=5), qkv(T, S, d_v=5)
    decays = noise(2, 3, S, *([] if name == "retnet" else [4]), seed=4).detach().abs().neg().requires_grad_()
    gate, key_mask = noise(2, 3, T, 5, seed=5), right(2, S)
    given = [q, k, v, decays, gate]
    fast = values_and_gradients(lambda: mixer.attend(*given, key_mask=key_mask), given)
    assert_equal(fast, values_and_gradients(lambda: mixer.slow_attend(*given, key_mask=key_mask), given), 1e-9)


@pytest.mark.parametrize(
    "options", [{"n_kv_heads": 1, "conv": 3}, {"conv": 1}, {"d_k": 3, "d_v": 7}, {"d_k": 1, "d_v": 1}]
)
@pytest.mark.parametrize("name", NAMES)
def test_widths_and_shared_keys(name, options):
    mixer, x = build(name, **options), noise(2, 9, 12)
    given = [x, *mixer.parameters()]
    fast, slow = (values_and_gradients(lambda f=f: f(x), given) for f in (mixer, mixer.slow_forward))
    assert_equal(fast, slow, 1e-9)
    y, state = mixer.prefill(x[:, :8])
    assert_equal([y, mixer.step(x[:, 8], state)[0]], [mixer(x)[:, :8], mixer(x)[:, 8]], 1e-11)


@pytest.mark.parametrize("T", [5, 17])
@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name, T):
    mixer = build(name, chunk=4)
    torch.autograd.gradcheck(mixer, [noise(1, T, 12)], fast_mode=True)


# The mechanism


def test_retnet_forgets_at_the_rates_of_the_paper():
    *_, log_decay, _ = build("retnet").project(noise(1, 2, 12), noise(1, 2, 12))
    assert log_decay.exp()[0, :, 0].tolist() == pytest.approx([1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128], rel=1e-12)


def test_retnet_turns_scores_by_distance_alone():
    x, y = noise(1, 3, 7, 5), noise(1, 3, 7, 5, seed=1)
    scores = [rotated(x, at) @ rotated(y, at).mT for at in (0, 1000)]
    assert_equal([scores[0]], [scores[1]], 1e-10)
    assert (scores[0] - x @ y.mT).abs().max() > 0.1
    assert_equal([rotated(x, 0)[:, :, 0]], [x[:, :, 0]], 1e-12)


def test_gla_with_its_gate_open_is_linear_attention_without_normaliser():
    mixer, (q, k, v) = core("gla", chunk=8), qkv(33, 33)
    gate, state = torch.ones(2, 3, 33, 4).double(), torch.zeros(2, 3, 4, 4).double()
    open_gate = torch.zeros(2, 3, 33, 4).double()
    sums = (q @ k.mT).tril() @ v
    expected = F.rms_norm(sums, (4,), mixer.norm, eps=1e-5) * F.silu(gate)
    assert_equal([mixer.attend(q, k, v, open_gate, gate)], [expected], 1e-11)
    assert_equal([matrix_recurrence(q, k, v, state, chunk=8)[0]], [sums], 1e-11)


def test_gla_with_one_gate_per_head_is_retnets_recurrence():
    (q, k, v), gate = qkv(33, 33), noise(2, 3, 33, 4, seed=5)
    rates = torch.tensor([0.9, 0.5, 1.0]).double().log()[None, :, None].expand(2, 3, 33)
    wide = rates[..., None].expand(-1, -1, -1, 4)
    one = values_and_gradients(lambda: core("gla", chunk=8).attend(q, k, v, wide, gate), [q, k, v])
    other = values_and_gradients(lambda: core("retnet", chunk=8).attend(q, k, v, rates, gate), [q, k, v])
    assert_equal(one, other, 1e-11)


def test_rwkv_is_gla_where_the_bonus_makes_up_for_the_read_before_the_write():
    mixer, (q, k, v), gate = core("rwkv", chunk=8), qkv(33, 33), noise(2, 3, 33, 4, seed=5)
    decays = torch.full((2, 3, 33, 4), 0.5).double().log()
    with torch.no_grad():
        mixer.bonus.fill_(2.0)  # q (S + u k v) = 2 q (S / 2 + k v): GLA's read, twice, which the norm takes out
    y = mixer.attend(q, k, v, decays, gate)
    assert_equal(
        [y], [core("gla").attend(1e3 * q, k, v, decays, gate)], 1e-4
    )  # the norm's epsilon is all they differ by


def test_rwkv_reads_the_token_before():
    mixer, x = build("rwkv"), noise(1, 4, 12)
    shifted = x.detach().clone()
    shifted[:, 1] += 1
    parts, changed = (mixer.project(one, one) for one in (x, shifted))
    for one, other in zip(parts, changed, strict=True):
        moved = (one - other).abs().amax((0, 1, 3)) > 1e-9
        assert moved.tolist() == [False, True, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["gla", "rwkv"])
def test_gates_that_shut_at_once_leave_numbers_and_gradients(name, dtype):
    mixer, (q, k, v) = core(name).to(dtype), [x.detach().to(dtype).requires_grad_() for x in qkv(70, 70)]
    gate = noise(2, 3, 70, 4, seed=5, dtype=dtype)
    for strength in (10.0, 1e4):
        g = (-strength * noise(2, 3, 70, 4, seed=6, dtype=dtype).detach().abs()).requires_grad_()
        found = values_and_gradients(lambda g=g: mixer.attend(q, k, v, g, gate), [q, k, v, g, gate])
        assert all(part.isfinite().all() for part in found)


# What it costs, and what it takes


@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 1, "d_k": 5, "d_v": 2}])
@pytest.mark.parametrize("name", NAMES)
def test_executed_flops_are_those_that_torch_counts(name, options):
    mixer = build(name, **options)
    for T in (1, 7, 64, 65, 130):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            mixer(torch.zeros(1, T, 12).double())
        flops = mixer.flops(T, T)
        assert flops.executed + flops.projection == counter.get_total_flops()
        assert flops.core <= flops.executed


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_training_is_far_from_a_matrix_per_step(name):
    mixer = BUILT_IN[name](Spec(512, 8, 4096), d_k=64, d_v=64)
    q, k, v = (x.detach().float().requires_grad_() for x in qkv(4096, 4096, B=1, H=8, d_k=64, d_v=64))
    g = torch.full((1, 8, 4096, *([] if name == "retnet" else [64])), -0.05, requires_grad=True)

    def train():
        mixer.attend(q, k, v, g, v.detach()).sum().backward()

    train()
    assert peak_bytes(train, "cpu") < 256 * 2**20


@pytest.mark.parametrize("name", NAMES)
def test_what_it_cannot_do_has_a_reason(name):
    cls, use = BUILT_IN[name], Use(8, 8)
    for role in ("bidirectional", "cross"):
        assert cls.unsupported(Spec(8, 2, 8, role), use).endswith("the role must be causal")
        with pytest.raises(ValueError, match="the role must be causal"):
            build(name, role)
    assert "only padding on the right" in cls.unsupported(Spec(8, 2, 8), Use(8, 8, mask="any"))
    assert "padded prompt" in cls.unsupported(Spec(8, 2, 8), Use(8, 8, mask="right", phase="prefill"))
    with pytest.raises(ValueError, match="prefill takes no key_mask"):
        build(name).prefill(noise(1, 3, 12), key_mask=torch.ones(1, 3).bool())


@pytest.mark.parametrize("name", NAMES)
def test_a_convolution_has_a_width_of_at_least_0(name):
    with pytest.raises(ValueError, match=r"^conv must be at least 0, got -1"):
        build(name, conv=-1)

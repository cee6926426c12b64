"""`mamba2` is its recurrence, forgets by its steps, shares keys in groups, and costs what it says."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cores import BUILT_IN, assert_equal, build, noise, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import matrix_recurrence
from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec, Use
from attnbench.optimise import parameter_groups


@settings(deadline=None, max_examples=30)
@given(
    T=st.integers(1, 40),
    chunk=st.integers(1, 45),
    conv=st.integers(1, 4),
    n_groups=st.sampled_from([1, 3]),
    d_state=st.integers(1, 5),
    expand=st.integers(1, 3),
)
def test_it_equals_its_slow_form(T, **options):
    mixer, x = build("mamba2", **options), noise(2, T, 12)
    given = [x, *mixer.parameters()]
    fast, slow = (values_and_gradients(lambda f=f: f(x), given) for f in (mixer, mixer.slow_forward))
    assert_equal(fast, slow, 1e-9)


@pytest.mark.parametrize("T", [5, 17])
def test_gradcheck(T):
    mixer = build("mamba2", chunk=4, d_state=3)
    torch.autograd.gradcheck(mixer, [noise(1, T, 12)], fast_mode=True)


def test_one_scalar_per_head_is_the_masked_attention_of_the_paper():
    q, k, v = noise(2, 1, 33, 4, seed=1), noise(2, 1, 33, 4, seed=2), noise(2, 3, 33, 5, seed=3)
    g = noise(2, 3, 33, seed=4).detach().abs().neg()
    sums = g.cumsum(-1)
    mask = (sums[..., :, None] - sums[..., None, :]).tril().exp().tril()
    expected = (q @ k.mT * mask) @ v
    y, _ = matrix_recurrence(q, k, v, torch.zeros(2, 3, 4, 5).double(), chunk=8, log_decay=g)
    assert_equal([y], [expected], 1e-11)


def test_a_head_whose_step_is_long_forgets_all_before():
    mixer, x = build("mamba2", conv=1), noise(1, 9, 12)
    changed = x.detach().clone()
    changed[:, :8] += 1
    with torch.no_grad():
        mixer.dt_bias.fill_(50.0)
        assert_equal([mixer(changed)[:, 8]], [mixer(x)[:, 8]], 1e-12)
        mixer.dt_bias.fill_(-3.0)
        assert (mixer(changed)[:, 8] - mixer(x)[:, 8]).abs().max() > 1e-6


def test_steps_and_rates_start_where_the_paper_has_them():
    torch.manual_seed(0)
    mixer = BUILT_IN["mamba2"](Spec(64, 64, 8))
    dt, rate = F.softplus(mixer.dt_bias), mixer.A_log.exp()
    assert 1e-3 <= dt.min() < 5e-3
    assert 5e-2 < dt.max() <= 1e-1
    assert 1 <= rate.min() < 3
    assert 14 < rate.max() <= 16
    groups = [group["params"] for group in parameter_groups(mixer, 1e-3, 0.1) if group["weight_decay"]]
    decaying = {id(p) for params in groups for p in params}
    names = {name for name, p in mixer.named_parameters() if id(p) in decaying}
    assert names == {"W_in.weight", "convolution.weight", "W_out.weight"}  # not A_log, dt_bias, D and norm


@pytest.mark.parametrize("options", [{}, {"n_groups": 3, "d_state": 5, "chunk": 16}])
def test_executed_flops_are_those_that_torch_counts(options):
    mixer = build("mamba2", **options)
    for T in (1, 7, 64, 65, 130):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            mixer(torch.zeros(1, T, 12).double())
        flops = mixer.flops(T, T)
        assert flops.executed + flops.projection == counter.get_total_flops()
        assert flops.core <= flops.executed


def test_memory_of_training_is_far_from_a_matrix_per_step():
    mixer, x = BUILT_IN["mamba2"](Spec(256, 8, 4096)), noise(1, 4096, 256, dtype=torch.float32)

    def train():
        mixer(x).sum().backward()

    train()
    assert peak_bytes(train, "cpu") < 300 * 2**20  # a state per step would be a gibibyte


def test_what_it_cannot_do_has_a_reason():
    cls, use = BUILT_IN["mamba2"], Use(8, 8)
    for role in ("bidirectional", "cross"):
        assert cls.unsupported(Spec(8, 2, 8, role), use).endswith("the role must be causal")
    told = "n_heads must be divisible by n_groups, got 2 and 4"
    assert cls.unsupported(Spec(8, 2, 8), use, n_groups=4) == told
    with pytest.raises(ValueError, match=told):
        cls(Spec(8, 2, 8), n_groups=4)
    assert "only padding on the right" in cls.unsupported(Spec(8, 2, 8), Use(8, 8, mask="any"))
    with pytest.raises(ValueError, match="prefill takes no key_mask"):
        build("mamba2").prefill(noise(1, 3, 12), key_mask=torch.ones(1, 3).bool())

"""Attention to the k best keys equals a sort; with k >= S it is full attention; ties all count."""

from __future__ import annotations

import pytest
import torch
from cores import assert_equal, build, core, qkv, ragged_mask, values_and_gradients
from torch.utils.flop_counter import FlopCounterMode

ROLES = ("causal", "bidirectional", "cross")


def check_core(mixer, q, k, v, key_mask):
    fast, slow = (
        values_and_gradients(lambda a=attend: a(q, k, v, key_mask=key_mask), [q, k, v])
        for attend in (mixer.attend, mixer.slow_attend)
    )
    assert_equal(fast, slow, 1e-12)


@pytest.mark.parametrize("k", [1, 2, 5, 32])
@pytest.mark.parametrize("role", ROLES)
def test_it_equals_counting_the_keys_that_are_better(role, k):
    mixer = core("topk", role, k=k)
    for T, S in ((1, 1), (7, 7), (5, 40), (40, 5), (33, 33)):
        for key_mask in (None, ragged_mask(4, S)):
            check_core(mixer, *qkv(T, S, B=4), key_mask)


@pytest.mark.parametrize("role", ROLES)
def test_with_as_many_keys_as_there_are_it_is_full_attention(role):
    inputs = qkv(40, 40)
    full = values_and_gradients(lambda: core("full", role).attend(*inputs), inputs)
    for k in (40, 1000):
        assert_equal(values_and_gradients(lambda k=k: core("topk", role, k=k).attend(*inputs), inputs), full, 1e-12)


def test_one_key_gives_the_value_of_the_best_alone_and_no_gradient_to_others():
    q, k, v = torch.ones(1, 1, 1, 1), torch.tensor([0.5, 2.0, -1.0]), torch.tensor([10.0, 20.0, 30.0])
    k, v = (x.view(1, 1, 3, 1).requires_grad_() for x in (k, v))
    y = core("topk", "bidirectional", k=1, n_heads=1, d_k=1, d_v=1).float().attend(q, k, v)
    assert y.item() == 20.0
    slopes = torch.autograd.grad(y.sum(), [k, v])
    assert [slope.flatten().tolist() for slope in slopes] == [[0, 0, 0], [0, 1, 0]]


def test_keys_that_tie_with_the_last_one_all_count():
    q, v = torch.zeros(1, 3, 6, 4).double(), torch.arange(6.0).double().view(1, 1, 6, 1).expand(1, 3, 6, 4)
    y = core("topk", "bidirectional", k=2).attend(q, q, v)
    assert_equal([y], [torch.full_like(y, 2.5)], 1e-12)


def test_flops_say_that_nothing_is_saved():
    mixer = build("topk", k=5, d_v=3)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        mixer(torch.zeros(1, 20, 12).double())
    flops = mixer.flops(20, 20)
    assert flops.executed + flops.projection == counter.get_total_flops()
    n_kept = sum(min(5, t + 1) for t in range(20))
    assert flops.core == 2 * 3 * (210 * 4 + n_kept * 3)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        build("topk", k=0)

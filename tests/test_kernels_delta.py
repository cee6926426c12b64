"""`delta_recurrence` is its token-by-token rule, for any chunk and any decay, and writes what the papers say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cores import assert_equal, noise, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.kernels import delta_recurrence, matrix_recurrence

DECAYS = (None, 0.0, 0.1, 1.0, 30.0, 1e4)


def inputs(T, *, B=2, H=3, d_k=4, d_v=5, decay=None, most=2.0, dtype=torch.float64):
    """q, unit k, v, beta below `most`, a state, and a log decay of this size, strong at few steps and weak at most."""
    k = F.normalize(noise(B, H, T, d_k, seed=2).detach(), dim=-1)
    beta = most * noise(B, H, T, seed=4).detach().sigmoid()
    found = [noise(B, H, T, d_k, seed=1), k, noise(B, H, T, d_v, seed=3), beta, noise(B, H, d_k, d_v, seed=5)]
    if decay is not None:
        found.append(-decay * noise(B, H, T, seed=6).detach().sigmoid() ** 4)
    return [x.detach().to(dtype).requires_grad_() for x in found]


def fast(chunk):
    def run(q, k, v, beta, state, log_decay=None):
        return delta_recurrence(q, k, v, beta, state, chunk=chunk, log_decay=log_decay)

    return run


def slow(q, k, v, beta, state, log_decay=None):
    """Decay, read what the key holds, replace a share of it, token by token."""
    ys = [v.new_zeros(*v.shape[:2], 0, v.shape[-1])]
    for t in range(q.shape[2]):
        if log_decay is not None:
            state = state * log_decay[:, :, t, None, None].exp()
        held = (k[:, :, t, :, None] * state).sum(2)
        error = beta[:, :, t, None] * (v[:, :, t] - held)
        state = state + k[:, :, t, :, None] * error[:, :, None]
        ys.append((q[:, :, t, :, None] * state).sum(2)[:, :, None])
    return torch.cat(ys, dim=2), state


def both(run, given):
    """Outputs and last state in one vector, and gradients of it."""
    return values_and_gradients(lambda: torch.cat([part.flatten() for part in run(*given)]), given)


# Any length, chunk and decay


@settings(deadline=None, max_examples=60)
@given(T=st.integers(0, 70), chunk=st.integers(1, 80), decay=st.sampled_from(DECAYS), d_k=st.integers(1, 6))
def test_it_is_the_rule_token_by_token(T, chunk, decay, d_k):
    given = inputs(T, decay=decay, d_k=d_k)
    assert_equal(both(fast(chunk), given), both(slow, given), 1e-9)


@pytest.mark.parametrize("decay", [None, 1.0])
def test_runs_of_chunks_that_no_cache_holds_at_once_are_handed_on(decay, monkeypatch):
    given = inputs(97, decay=decay)
    whole = both(fast(8), given)
    monkeypatch.setattr("attnbench.kernels.chunks.CACHED_NUMBERS", 500)  # of 2 chunks each
    assert_equal(both(fast(8), given), whole, 1e-10)


@pytest.mark.parametrize("T", [5, 17])
@pytest.mark.parametrize("decay", [None, 1.0])
def test_gradients_are_those_of_finite_differences(T, decay):
    assert torch.autograd.gradcheck(fast(4), inputs(T, B=1, H=2, d_k=2, d_v=3, decay=decay))


@pytest.mark.parametrize("decay", DECAYS[1:])
def test_float32_stays_near_float64_for_any_decay(decay):
    exact = inputs(130, decay=decay)
    rounded = [x.detach().float().requires_grad_() for x in exact]
    assert_equal(both(fast(32), rounded), both(fast(32), exact), 2e-5)


def test_a_small_decay_behind_a_strong_one_is_not_lost_in_their_sum():
    q, k, v, beta, state = inputs(64, B=1, H=1, dtype=torch.float32)
    log_decay = torch.full((1, 1, 64), -0.01)
    log_decay[..., ::7] = -1e4
    given = [q, k, v, beta, state, log_decay]
    exact = slow(*(x.detach().double() for x in given))[0]
    assert_equal([fast(64)(*given)[0].detach()], [exact], 2e-6)


def test_a_second_derivative_is_refused_not_wrong():
    given = inputs(9)
    (slope,) = torch.autograd.grad(fast(4)(*given)[0].square().sum(), given[2], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


# What is written


def test_without_overlap_of_keys_it_is_an_exact_memory_that_overwrites():
    keys, T = torch.eye(4).double(), 12
    k = keys[torch.arange(T) % 4][None, None]
    v = noise(1, 1, T, 5).detach()
    given = k, v, torch.ones(1, 1, T).double(), torch.zeros(1, 1, 4, 5).double()
    _, state = delta_recurrence(k, *given, chunk=5)
    assert_equal([keys @ state[0, 0]], [v[0, 0, 8:]], 1e-12)  # the last value of each key, the earlier two are gone


def test_at_beta_0_nothing_is_written_and_nothing_decays():
    q, k, v, beta, state = inputs(33)
    y, last = fast(8)(q, k, v, torch.zeros_like(beta), state)
    assert_equal([y.detach(), last.detach()], [(q @ state).detach(), state.detach()], 1e-12)


def test_one_faint_write_is_that_of_a_linear_state():
    q, k, v, beta, state = inputs(1)
    faint = torch.full_like(beta, 1e-9)
    y, last = fast(8)(q, k, v, faint, torch.zeros_like(state))
    expected = matrix_recurrence(q, k * 1e-9, v, torch.zeros_like(state), chunk=8)
    assert_equal([1e9 * y.detach(), 1e9 * last.detach()], [1e9 * part.detach() for part in expected], 1e-12)


def test_orthogonal_keys_written_once_make_it_a_linear_state_with_decay():
    k = torch.eye(6).double()[None, None].expand(2, 3, 6, 6)
    q, _, v, _, _, log_decay = inputs(6, d_k=6, decay=1.0)
    state, ones = torch.zeros(2, 3, 6, 5).double(), torch.ones(2, 3, 6).double()
    found = delta_recurrence(q, k, v, ones, state, chunk=4, log_decay=log_decay)
    expected = matrix_recurrence(q, k, v, state, chunk=4, log_decay=log_decay)
    assert_equal([x.detach() for x in found], [x.detach() for x in expected], 1e-12)


def test_the_old_state_decays_before_the_error_is_taken():
    one, half = torch.ones(1, 1, 1, 1).double(), torch.full((1, 1, 1), 0.5).double()
    _, state = delta_recurrence(one, one, 0 * one, half, 8 * one, chunk=1, log_decay=half.log())
    assert state.item() == pytest.approx(2.0)  # 8 decays to 4, half of which is replaced by 0
    _, state = delta_recurrence(one, one, one, half, 8 * one, chunk=1, log_decay=half.log())
    assert state.item() == pytest.approx(
        2.5
    )  # with the decay behind the error it would be 0.5 (8 + 0.5 (1 - 8)) = 2.25

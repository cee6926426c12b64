"""Matrix states that decay: the chunked form is the recurrence, for any decay, length and chunk."""

from __future__ import annotations

import pytest
import torch
from cores import assert_equal, noise, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.kernels import matrix_recurrence
from attnbench.measure.memory import peak_bytes

STRENGTHS = (0.0, 0.01, 1.0, 10.0, 1e4)


def step_by_step(q, k, v, state, log_decay):
    """S_t = D_t S_{t-1} + k_t^T v_t, y_t = q_t S_t."""
    H = v.shape[1]
    q, k = (x.repeat_interleave(H // x.shape[1], dim=1) for x in (q, k))
    decay = (log_decay[..., None] if log_decay.ndim == 3 else log_decay).exp()
    ys = []
    for t in range(q.shape[2]):
        state = decay[:, :, t, :, None] * state + k[:, :, t, :, None] * v[:, :, t, None, :]
        ys.append((q[:, :, t, :, None] * state).sum(2))
    return torch.stack(ys, dim=2) if ys else v, state


def drawn(T, *, B=2, G=3, R=1, d_k=4, d_v=5, vector=False, strength=1.0, dtype=torch.float64):
    """q, k, v, state and log decays, a third of which are 100 times weaker."""
    H = G * R
    given = [noise(B, G, T, d_k, seed=1), noise(B, G, T, d_k, seed=2), noise(B, H, T, d_v, seed=3)]
    given += [noise(B, H, d_k, d_v, seed=4)]
    g = -strength * noise(*((B, H, T, d_k) if vector else (B, H, T)), seed=5).detach().abs()
    g = torch.where(noise(*g.shape, seed=6) < -0.4, g / 100, g)
    return [x.detach().to(dtype).requires_grad_() for x in (*given, g)]


def total(form, q, k, v, state, log_decay):
    """y and the last state in one tensor, so that both carry gradients."""
    y, last = form(q, k, v, state, log_decay)
    return torch.cat((y.flatten(), last.flatten()))


def chunked(chunk):
    return lambda q, k, v, state, g: matrix_recurrence(q, k, v, state, chunk=chunk, log_decay=g)


@settings(deadline=None, max_examples=60)
@given(
    T=st.integers(0, 40),
    chunk=st.integers(1, 50),
    sizes=st.tuples(*[st.integers(1, 4)] * 4),
    vector=st.booleans(),
    R=st.integers(1, 3),
    strength=st.sampled_from(STRENGTHS),
)
def test_it_equals_step_by_step(T, chunk, sizes, vector, R, strength):
    B, G, d_k, d_v = sizes
    given = drawn(T, B=B, G=G, R=1 if vector else R, d_k=d_k, d_v=d_v, vector=vector, strength=strength)
    fast, slow = (values_and_gradients(lambda f=f: total(f, *given), given) for f in (chunked(chunk), step_by_step))
    assert_equal(fast, slow, 1e-11)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("vector", [False, True])
def test_over_several_runs_of_chunks_it_equals_step_by_step(vector, strength, monkeypatch):
    monkeypatch.setattr("attnbench.kernels.chunks.CACHED_NUMBERS", 500)
    given = drawn(97, vector=vector, strength=strength)
    fast, slow = (values_and_gradients(lambda f=f: total(f, *given), given) for f in (chunked(8), step_by_step))
    assert_equal(fast, slow, 1e-11)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("vector", [False, True])
def test_float32_keeps_its_digits_whatever_the_decay(vector, strength):
    given = drawn(130, vector=vector, strength=strength, dtype=torch.float32)
    exact = [x.detach().double().requires_grad_() for x in given]
    fast = values_and_gradients(lambda: total(chunked(64), *given), given)
    slow = values_and_gradients(lambda: total(step_by_step, *exact), exact)
    assert_equal(fast, slow, 1e-5)


@pytest.mark.parametrize("T", [5, 17])
@pytest.mark.parametrize(("vector", "R"), [(False, 1), (False, 2), (True, 1)])
@pytest.mark.parametrize("strength", [0.1, 30.0])
def test_gradcheck(T, vector, R, strength):
    given = drawn(T, B=1, G=2, R=R, d_k=2, d_v=3, vector=vector, strength=strength)
    torch.autograd.gradcheck(chunked(4), given, fast_mode=True)


def test_in_numbers():
    q = k = torch.ones(1, 1, 3, 1)
    v, state = torch.tensor([1.0, 2, 4]).view(1, 1, 3, 1), torch.zeros(1, 1, 1, 1)
    for chunk in (1, 2, 3, 8):
        for decay, expected in ((0.5, [1, 2.5, 5.25]), (1.0, [1, 3, 7])):
            for shape in ((1, 1, 3), (1, 1, 3, 1)):
                g = torch.full(shape, decay).log()
                y, last = matrix_recurrence(q, k, v, state, chunk=chunk, log_decay=g)
                assert y.flatten().tolist() == pytest.approx(expected)
                assert last.item() == pytest.approx(expected[-1])


@pytest.mark.parametrize("chunk", [1, 8, 33, 64])
def test_no_decay_and_a_decay_of_1_are_one(chunk):
    q, k, v, state, _ = given = drawn(33)
    plain = values_and_gradients(lambda: matrix_recurrence(q, k, v, state, chunk=chunk)[0], given[:4])
    for shape in ((2, 3, 33), (2, 3, 33, 4)):
        g = torch.zeros(shape).double()
        same = values_and_gradients(
            lambda g=g: matrix_recurrence(q, k, v, state, chunk=chunk, log_decay=g)[0], given[:4]
        )
        assert_equal(same, plain, 1e-11)


def test_one_decay_for_all_channels_is_the_decay_of_the_head():
    q, k, v, state, g = given = drawn(33)
    scalar = values_and_gradients(lambda: total(chunked(8), *given), given)
    wide = values_and_gradients(lambda: total(chunked(8), q, k, v, state, g[..., None].expand(-1, -1, -1, 4)), given)
    assert_equal(wide, scalar, 1e-11)


@pytest.mark.parametrize("vector", [False, True])
def test_no_gradient_comes_from_the_future(vector):
    given = drawn(20, vector=vector)
    y, _ = chunked(8)(*given)
    for slope in torch.autograd.grad(y[:, :, :13].sum(), [*given[:3], given[4]]):
        assert not slope[:, :, 13:].any()


@pytest.mark.parametrize("vector", [False, True])
def test_memory_of_training_is_far_from_a_matrix_per_step(vector):
    given = drawn(4096, B=1, G=8, d_k=64, d_v=64, vector=vector, dtype=torch.float32)

    def train():
        chunked(64)(*given)[0].sum().backward()

    train()
    assert peak_bytes(train, "cpu") < 160 * 2**20


@pytest.mark.parametrize("vector", [False, True])
def test_a_nan_spreads_forward_and_nothing_hangs(vector):
    q, k, v, state, g = (x.detach() for x in drawn(20, vector=vector))
    g[:, :, 13] = torch.nan
    y, last = matrix_recurrence(q, k, v, state, chunk=8, log_decay=g)
    assert y[:, :, :8].isfinite().all()
    assert y[:, :, 13:].isnan().all()
    assert last.isnan().all()

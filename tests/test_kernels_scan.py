"""`diagonal_scan` and `selective_scan` equal loops over time, values and gradients, whatever the sizes."""

from __future__ import annotations

import pytest
import torch
from cores import assert_equal, noise, values_and_gradients

from attnbench.kernels import diagonal_scan, selective, selective_scan
from attnbench.measure.memory import peak_bytes


def slow_diagonal(a, b, h=None):
    h, rows = torch.zeros_like(b[:, 0]) if h is None else h, []
    for t in range(b.shape[1]):
        h = a.expand(-1, b.shape[1], -1)[:, t] * h + b[:, t]
        rows.append(h)
    return torch.stack(rows, dim=1)


def slow_selective(x, dt, A, B, C, h):
    rows = []
    for t in range(x.shape[1]):
        h = (dt[:, t, None] * A.T).exp() * h + (dt * x)[:, t, None] * B[:, t, :, None]
        rows.append((C[:, t, :, None] * h).sum(1))
    return torch.stack(rows, dim=1), h


def numbers(*shape, seed, kind):
    parts = [noise(*shape, seed=seed + i).detach() for i in range(2)]
    return (torch.complex(*parts) if kind.is_complex else parts[0]).requires_grad_()


@pytest.mark.parametrize("kind", [torch.float64, torch.complex128])
@pytest.mark.parametrize("D", [1, 3, 600])
@pytest.mark.parametrize("T", [1, 2, 64, 65, 66, 130])
@pytest.mark.parametrize("repeated", [(), (0, 1), (2,)])
def test_the_diagonal_scan_equals_a_loop(kind, D, T, repeated):
    shape = [1 if i in repeated else n for i, n in enumerate((2, T, D))]
    a, b, h = numbers(*shape, seed=1, kind=kind), numbers(2, T, D, seed=3, kind=kind), numbers(2, D, seed=5, kind=kind)
    a = (a / a.abs().clamp(min=1)).detach().requires_grad_()  # some on the unit circle
    for inputs in ([a, b], [a, b, h]):

        def total(scan, inputs=inputs):
            y = scan(*inputs)
            return torch.view_as_real(y) if kind.is_complex else y

        fast, slow = (values_and_gradients(lambda s=s: total(s), inputs) for s in (diagonal_scan, slow_diagonal))
        real = [[torch.view_as_real(y) if y.is_complex() else y for y in found] for found in (fast, slow)]
        assert_equal(*real, 1e-10)


def test_a_factor_of_0_forgets_and_of_1_sums():
    b = noise(2, 200, 3)
    assert torch.equal(diagonal_scan(torch.zeros(1, 1, 1).double(), b), b)
    assert_equal([diagonal_scan(torch.ones(1, 1, 1).double(), b)], [b.cumsum(1)], 1e-12)


@pytest.mark.parametrize("T", [1, 4, 70])
def test_gradients_of_the_diagonal_scan_are_those_of_finite_differences(T):
    assert torch.autograd.gradcheck(diagonal_scan, (noise(1, T, 1), noise(1, T, 1) * 0.1, noise(1, 1)))


def test_no_time_at_all_gives_nothing():
    assert diagonal_scan(torch.ones(2, 0, 3), torch.ones(2, 0, 3)).shape == (2, 0, 3)
    y, h = selective_scan(
        torch.ones(2, 0, 3), torch.ones(2, 0, 3), *(torch.ones(s) for s in ((3, 4), (2, 0, 4), (2, 0, 4)))
    )
    assert (y.shape, h.shape) == ((2, 0, 3), (2, 4, 3))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"a must have b's shape \(2, 5, 3\) or sizes of 1, got \(2, 4, 3\)"):
        diagonal_scan(torch.ones(2, 4, 3), torch.ones(2, 5, 3))
    with pytest.raises(ValueError, match=r"h must be \(2, 3\), got \(1, 3\)"):
        diagonal_scan(torch.ones(1, 1, 1), torch.ones(2, 5, 3), torch.ones(1, 3))


def selective_inputs(rows, T, E, N):
    draws = [noise(rows, T, E), noise(rows, T, E, seed=1), noise(E, N, seed=2)]
    x, dt, A = draws[0], draws[1].exp().detach().requires_grad_(), -draws[2].exp().detach()
    rest = [noise(rows, T, N, seed=3), noise(rows, T, N, seed=4), noise(rows, N, E, seed=5)]
    return [x, dt, A.requires_grad_(), *rest]


@pytest.mark.parametrize("cached", [2**6, 2**17])
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 7, 3, 2), (3, 33, 5, 4), (2, 20, 130, 16), (5, 70, 16, 16)])
def test_the_selective_scan_equals_a_loop_in_pieces_of_any_size(sizes, cached, monkeypatch):
    monkeypatch.setattr(selective, "CACHED_NUMBERS", cached)
    inputs = selective_inputs(*sizes)
    fast, slow = (
        values_and_gradients(lambda s=s: torch.cat([y.flatten() for y in s(*inputs)]), inputs)
        for s in (selective_scan, slow_selective)
    )
    assert_equal(fast, slow, 1e-10)


def test_gradients_of_the_selective_scan_are_those_of_finite_differences(monkeypatch):
    monkeypatch.setattr(selective, "CACHED_NUMBERS", 2**4)
    assert torch.autograd.gradcheck(selective_scan, selective_inputs(2, 5, 2, 3))


def test_training_never_holds_the_states_of_all_times():
    T, E, N = 4096, 64, 16

    def train():
        inputs = [part.float().detach().requires_grad_() for part in selective_inputs(1, T, E, N)]
        torch.autograd.grad(selective_scan(*inputs)[0].sum(), inputs)

    assert peak_bytes(train, "cpu") < 4 * T * E * N * 1.5  # of which noise in float64 and gradients are a third

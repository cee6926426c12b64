"""The short convolution equals its taps one by one, continues where it stopped, and never looks ahead."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cores import assert_equal, noise, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.kernels import ShortConvolution, ShortConvolutions, short_convolution


def taps_one_by_one(x, weight, before):
    k = weight.shape[1]
    seen = torch.cat((before, x), dim=1)
    return torch.stack([(seen[:, t : t + k] * weight.T).sum(1) for t in range(x.shape[1])], dim=1)


@settings(deadline=None, max_examples=30)
@given(T=st.integers(1, 12), k=st.integers(1, 6), B=st.integers(1, 3), D=st.integers(1, 5))
def test_it_equals_its_taps_one_by_one(T, k, B, D):
    x, weight, before = noise(B, T, D), noise(D, k, seed=1), noise(B, k - 1, D, seed=2)
    given = [x, weight, before]
    fast, slow = (values_and_gradients(lambda f=f: f(*given), given) for f in (short_convolution, taps_one_by_one))
    assert_equal(fast, slow, 1e-12)
    nothing = torch.zeros_like(before)
    assert_equal([short_convolution(x, weight)], [taps_one_by_one(x, weight, nothing)], 1e-12)


def test_it_is_torchs_grouped_convolution():
    x, weight = noise(2, 9, 3), noise(3, 4, seed=1)
    expected = F.conv1d(F.pad(x.mT, (3, 0)), weight[:, None], groups=3).mT
    assert_equal([short_convolution(x, weight)], [expected], 1e-12)


def test_in_numbers():
    x, weight = torch.tensor([[[1.0], [2.0], [4.0]]]), torch.tensor([[10.0, 1.0]])
    assert short_convolution(x, weight).flatten().tolist() == [1, 12, 24]
    assert short_convolution(x, weight, torch.tensor([[[3.0]]])).flatten().tolist() == [31, 12, 24]


@torch.no_grad()
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("T0", [0, 1, 2, 6])
def test_a_prompt_and_steps_equal_the_whole(T0, width):
    torch.manual_seed(0)
    layer, x = ShortConvolution(3, width).double(), noise(2, 7, 3)
    y, state = layer.prefill(x[:, :T0])
    ys = [y]
    for t in range(T0, 7):
        assert state.shape == (2, width - 1, 3)
        given = state.clone()
        y, after = layer.step(x[:, t], state)
        assert_equal([layer.step(x[:, t], state)[0], state], [y, given], 0.0)
        ys, state = [*ys, y[:, None]], after
    assert_equal([torch.cat(ys, dim=1)], [layer(x)], 1e-12)


@torch.no_grad()
@pytest.mark.parametrize("width", [0, 1, 2, 4])
def test_several_go_on_each_behind_its_own_state(width):
    x = noise(2, 7, 3)
    maps = {name: torch.nn.Linear(3, d, bias=False).double() for name, d in (("q", 5), ("k", 2))}
    behind = ShortConvolutions(maps, width).double()
    expected = [behind[name](layer(x)) if width else layer(x) for name, layer in maps.items()]
    state, found = behind.nothing(x), []
    for part in x.split([0, 1, 2, 4], dim=1):
        given = {name: one.clone() for name, one in state.items()}
        ys, after = behind([layer(part) for layer in maps.values()], state)
        assert_equal(list(state.values()), list(given.values()), 0.0)
        found, state = [*found, ys], after
    assert_equal([torch.cat(parts, dim=1) for parts in zip(*found, strict=True)], expected, 1e-12)
    assert set(state) == (set(maps) if width else set())

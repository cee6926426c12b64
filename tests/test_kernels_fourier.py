"""The convolution by transforms is the direct sum, and never circular."""

from __future__ import annotations

import pytest
import torch
from cores import assert_equal, noise, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.kernels import fast_size, fft_convolution, fft_convolution_flops


def direct(x, kernel, reverse=None):
    """Position by position and lag by lag."""
    rows = []
    for t in range(x.shape[1]):
        row = 0 * x[:, 0]
        for s in range(x.shape[1]):
            if 0 <= t - s < len(kernel):
                row = row + kernel[t - s] * x[:, s]
            if reverse is not None and 0 <= s - t - 1 < len(reverse):
                row = row + reverse[s - t - 1] * x[:, s]
        rows.append(row)
    return torch.stack(rows, dim=1)


@settings(deadline=None, max_examples=40)
@given(T=st.integers(1, 24), L=st.integers(0, 30), R=st.none() | st.integers(0, 30), B=st.integers(1, 3))
def test_it_is_the_direct_sum_and_so_are_its_gradients(T, L, R, B):
    x, taps = noise(B, T, 5), [noise(L, 5, seed=1)] + ([] if R is None else [noise(R, 5, seed=2)])
    fast = values_and_gradients(lambda: fft_convolution(x, *taps), [x, *taps])
    assert_equal(fast, values_and_gradients(lambda: direct(x, *taps), [x, *taps]), 1e-12)


@pytest.mark.parametrize("T", [1, 7, 8])
def test_it_does_not_wrap_around(T):
    x, kernel = torch.zeros(1, T, 1), torch.zeros(T, 1)
    x[0, -1] = 1.0
    if T > 1:
        kernel[1] = 1.0
    assert fft_convolution(x, kernel).abs().max() < 1e-7
    if T > 1:  # of length T, the transform would bring the last input to the first output
        assert torch.fft.irfft(torch.fft.rfft(x[0, :, 0]) * torch.fft.rfft(kernel[:, 0]), n=T)[0] == pytest.approx(1)
        assert fft_convolution(x, kernel[:1], kernel)[0, -3:, 0].tolist() == pytest.approx([1, 0, 0], abs=1e-6)


def test_rows_that_are_worked_on_apart_are_one_convolution(monkeypatch):
    x, kernel, reverse = noise(5, 11, 3), noise(11, 3, seed=1), noise(10, 3, seed=2)
    together = values_and_gradients(lambda: fft_convolution(x, kernel, reverse), [x, kernel, reverse])
    monkeypatch.setattr("attnbench.kernels.fourier.CACHED_NUMBERS", 2 * 3 * fast_size(21))
    assert_equal(
        values_and_gradients(lambda: fft_convolution(x, kernel, reverse), [x, kernel, reverse]), together, 1e-12
    )


def test_gradcheck():
    assert torch.autograd.gradcheck(fft_convolution, (noise(2, 7, 3), noise(5, 3, seed=1), noise(4, 3, seed=2)))


def test_no_position_gives_none():
    assert fft_convolution(torch.zeros(2, 0, 3), torch.ones(4, 3)).shape == (2, 0, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_transformed_in_float32(dtype):
    x, kernel = noise(1, 4000, 2, dtype=dtype).detach().abs(), torch.full((4000, 2), 2.0**-12)
    expected = (x.double().cumsum(1) * 2.0**-12).to(dtype)
    torch.testing.assert_close(fft_convolution(x, kernel), expected)


def test_the_fast_sizes_are_the_least_products_of_2_3_and_5():
    def smooth(n):
        for prime in (2, 3, 5):
            while n % prime == 0:
                n //= prime
        return n == 1

    for n in range(1, 300):
        assert fast_size(n) == next(size for size in range(n, 2 * n + 1) if smooth(size))


def test_the_cost_is_that_of_three_transforms_and_a_product():
    assert fft_convolution_flops(8) == 3 * 2.5 * 16 * 4 + 6 * 8
    assert fft_convolution_flops(0) == 0

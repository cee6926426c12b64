"""Long convolution along time by the fast Fourier transform: T log T in the place of T L.

The transform is padded to at least twice the length: without the padding it would be circular, and the last position
would reach the first output.
"""

from __future__ import annotations

from functools import cache
from math import log2
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CACHED_NUMBERS = 2**20  # numbers of a batch that are transformed at a time


def fft_convolution(x: Tensor, kernel: Tensor, reverse: Tensor | None = None) -> Tensor:
    """y_t = sum over l of kernel_l x_{t-l}, and of reverse_l x_{t+1+l} where given; channel by channel.

    x: (B, T, D), any T, 0 included. kernel: (L, D), reverse: (R, D); taps that reach beyond the sequence have no
    effect. Returns (B, T, D) in x's dtype; inside, and for the kernels, float32 at the least. What the transforms of
    float32 leave of a 0 is some 1e-7 of the largest value. There is no second derivative.
    """
    T, dtype = x.shape[1], torch.promote_types(x.dtype, torch.float32)
    if T == 0:
        return x
    kernel = kernel[:T].to(dtype)
    reverse = kernel[:0] if reverse is None else reverse[: T - 1].to(dtype)
    y: Tensor = _Convolution.apply(x.to(dtype), kernel, reverse)  # type: ignore[no-untyped-call]  # torch's is
    return y.to(x.dtype)


def fft_convolution_flops(T: int) -> float:
    """Operations per channel of a sequence of T positions and a kernel as long, in transforms of 2 T.

    A real transform of n numbers counts 5/2 n log2 n: one of x, one of the kernel (of both directions, where there are
    two) and one back. 6 T for the product.
    """
    return 15.0 * T * log2(2 * T) + 6.0 * T if T else 0.0


def fft_convolution_moved(T: int) -> float:
    """Numbers per channel of a sequence that `fft_convolution` reads and writes, those of the kernel left out.

    x in; padded, its spectrum, and that times the kernel's, out and in; what comes back out, T of it in; y out.
    """
    return 7.0 * fast_size(2 * T - 1) + 3.0 * T if T else 0.0


@cache
def fast_size(n: int) -> int:
    """The least product of powers of 2, 3 and 5 that is at least n: a length that transforms quickly."""
    best, five = 1 << (n - 1).bit_length(), 1
    while five < best:
        odd = five
        while odd < best:
            best = min(best, odd << (-(-n // odd) - 1).bit_length())
            odd *= 3
        five *= 5
    return best


class _Convolution(torch.autograd.Function):
    """x (B, T, D), kernel (L <= T, D), reverse (R < T, D): (B, T, D). Time is turned last, where transforms are fast.

    Some rows of the batch at a time. The backward pass transforms x again: its spectrum is twice as large as itself.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, reverse: Tensor) -> Tensor:
        (B, T, D), L, R = x.shape, len(kernel), len(reverse)
        ctx.n = n = fast_size(max(T + L - 1, T + R, 1))
        between = kernel.new_zeros(n - L - R, D)
        taps = torch.cat((kernel, between, reverse.flip(0))) if R else kernel  # lag -1 stands last
        spectrum = torch.fft.rfft(taps.mT, n=n)  # (D, n / 2 + 1)
        y = x.new_empty(B, D, T)
        for rows in _groups(B, n * D):
            y[rows] = torch.fft.irfft(_spectrum(x[rows], n).mul_(spectrum), n=n)[..., :T]
        ctx.save_for_backward(x, spectrum)
        ctx.L, ctx.R = L, R
        return y.mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, spectrum = ctx.saved_tensors
        (B, T, D), n = x.shape, ctx.n
        spectrum = spectrum.conj().resolve_conj()
        dx, d_spectrum = x.new_empty(B, D, T), torch.zeros_like(spectrum)
        for rows in _groups(B, n * D):
            dy = _spectrum(grads[0][rows], n)
            d_spectrum += (dy * _spectrum(x[rows], n).conj()).sum(0)
            dx[rows] = torch.fft.irfft(dy.mul_(spectrum), n=n)[..., :T]
        d_taps = torch.fft.irfft(d_spectrum, n=n).mT  # (n, D)
        return dx.mT, d_taps[: ctx.L], d_taps[n - ctx.R :].flip(0)


def _spectrum(x: Tensor, n: int) -> Tensor:
    """(B, T, D) -> (B, D, n / 2 + 1), complex."""
    padded = x.new_zeros(x.shape[0], x.shape[2], n)
    padded[..., : x.shape[1]] = x.mT
    spectrum: Tensor = torch.fft.rfft(padded)
    return spectrum


def _groups(B: int, numbers_per_row: int) -> list[slice]:
    size = max(1, CACHED_NUMBERS // numbers_per_row)
    return [slice(start, start + size) for start in range(0, B, size)]

"""Mathematics that several mixers share: plain functions on tensors (B, H, T, width), free for plugins to use."""

from attnbench.kernels.blocks import overlapping_blocks
from attnbench.kernels.fourier import fast_size, fft_convolution, fft_convolution_flops
from attnbench.kernels.masked import masked_attention
from attnbench.kernels.masks import band, visible_keys
from attnbench.kernels.recurrence import matrix_recurrence
from attnbench.kernels.short import ShortConvolution, short_convolution
from attnbench.kernels.window import window_attention, window_pairs

__all__ = [
    "ShortConvolution",
    "band",
    "fast_size",
    "fft_convolution",
    "fft_convolution_flops",
    "masked_attention",
    "matrix_recurrence",
    "overlapping_blocks",
    "short_convolution",
    "visible_keys",
    "window_attention",
    "window_pairs",
]

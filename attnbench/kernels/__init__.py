"""Mathematics that several mixers share: functions on tensors (B, H, T, width) and small classes, for plugins too."""

from attnbench.kernels.backends import Backend, FlaKernel
from attnbench.kernels.blocks import overlapping_blocks
from attnbench.kernels.chunks import pieces
from attnbench.kernels.delta import delta_recurrence
from attnbench.kernels.directions import both_ways, halves_reason, recurrence_reason, reversal, reverse
from attnbench.kernels.features import FeatureAttention
from attnbench.kernels.fourier import fast_size, fft_convolution, fft_convolution_flops, fft_convolution_moved
from attnbench.kernels.gather import gather_blocks
from attnbench.kernels.masked import masked_attention, plain_attention
from attnbench.kernels.masks import band, visible_keys
from attnbench.kernels.points import attention_through
from attnbench.kernels.recurrence import matrix_recurrence
from attnbench.kernels.rotation import rotated
from attnbench.kernels.scan import diagonal_scan
from attnbench.kernels.selective import selective_scan
from attnbench.kernels.short import ShortConvolution, short_convolution, short_convolution_moved
from attnbench.kernels.window import window_attention, window_pairs

__all__ = [
    "Backend",
    "FeatureAttention",
    "FlaKernel",
    "ShortConvolution",
    "attention_through",
    "band",
    "both_ways",
    "delta_recurrence",
    "diagonal_scan",
    "fast_size",
    "fft_convolution",
    "fft_convolution_flops",
    "fft_convolution_moved",
    "gather_blocks",
    "halves_reason",
    "masked_attention",
    "matrix_recurrence",
    "overlapping_blocks",
    "pieces",
    "plain_attention",
    "recurrence_reason",
    "reversal",
    "reverse",
    "rotated",
    "selective_scan",
    "short_convolution",
    "short_convolution_moved",
    "visible_keys",
    "window_attention",
    "window_pairs",
]

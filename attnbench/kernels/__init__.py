"""Mathematics that several mixers share: functions on tensors (B, H, T, width) and small classes, for plugins too."""

from attnbench.kernels.backends import Backend, FlaKernel, WithBackend, imported
from attnbench.kernels.blocks import overlapping_blocks
from attnbench.kernels.chunks import pairs_in_chunks, pieces
from attnbench.kernels.delta import delta_recurrence
from attnbench.kernels.directions import both_ways, halves_reason, recurrence_reason, reversal, reverse
from attnbench.kernels.features import FeatureAttention
from attnbench.kernels.fourier import fast_size, fft_convolution, fft_convolution_flops, fft_convolution_moved
from attnbench.kernels.gather import gather_blocks
from attnbench.kernels.heads import split_heads
from attnbench.kernels.masked import masked_attention, plain_attention
from attnbench.kernels.masks import band, plainly_visible, visible_keys
from attnbench.kernels.padding import check_no_padding, check_right_padding, padding_reason
from attnbench.kernels.points import attention_through
from attnbench.kernels.precision import at_least_float32
from attnbench.kernels.recurrence import last_positions, matrix_recurrence
from attnbench.kernels.rotation import rotated
from attnbench.kernels.scan import diagonal_scan
from attnbench.kernels.selective import selective_scan
from attnbench.kernels.short import ShortConvolution, ShortConvolutions, short_convolution, short_convolution_moved
from attnbench.kernels.steps import step_bias
from attnbench.kernels.window import window_attention, window_pairs

__all__ = [
    "Backend",
    "FeatureAttention",
    "FlaKernel",
    "ShortConvolution",
    "ShortConvolutions",
    "WithBackend",
    "at_least_float32",
    "attention_through",
    "band",
    "both_ways",
    "check_no_padding",
    "check_right_padding",
    "delta_recurrence",
    "diagonal_scan",
    "fast_size",
    "fft_convolution",
    "fft_convolution_flops",
    "fft_convolution_moved",
    "gather_blocks",
    "halves_reason",
    "imported",
    "last_positions",
    "masked_attention",
    "matrix_recurrence",
    "overlapping_blocks",
    "padding_reason",
    "pairs_in_chunks",
    "pieces",
    "plain_attention",
    "plainly_visible",
    "recurrence_reason",
    "reversal",
    "reverse",
    "rotated",
    "selective_scan",
    "short_convolution",
    "short_convolution_moved",
    "split_heads",
    "step_bias",
    "visible_keys",
    "window_attention",
    "window_pairs",
]

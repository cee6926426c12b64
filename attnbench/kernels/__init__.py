"""Mathematics that several mixers share: plain functions on tensors (B, H, T, width), free for plugins to use."""

from attnbench.kernels.blocks import overlapping_blocks
from attnbench.kernels.gather import gather_blocks
from attnbench.kernels.masked import masked_attention, plain_attention
from attnbench.kernels.masks import band, visible_keys
from attnbench.kernels.recurrence import matrix_recurrence
from attnbench.kernels.window import window_attention, window_pairs

__all__ = [
    "band",
    "gather_blocks",
    "masked_attention",
    "matrix_recurrence",
    "overlapping_blocks",
    "plain_attention",
    "visible_keys",
    "window_attention",
    "window_pairs",
]

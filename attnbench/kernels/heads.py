"""Channels of a map, cut into heads."""

from __future__ import annotations

from torch import Tensor


def split_heads(x: Tensor, width: int) -> Tensor:
    """Heads of `width` channels, before time: (B, T, heads width) -> (B, heads, T, width), a view."""
    return x.view(*x.shape[:2], x.shape[2] // width, width).transpose(1, 2)

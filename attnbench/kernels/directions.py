"""A recurrence that runs both ways over sequences of several lengths, and what none of them can do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnbench.kernels.padding import check_right_padding, padding_reason


def both_ways(
    rightward: Callable[[Tensor], Tensor],
    leftward: Callable[[Tensor], Tensor] | None,
    x: Tensor,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Outputs of both directions over x (B, T, d), side by side: (B, T, d_right + d_left), or (B, T, d_right).

    Padding on the right by key_mask (B, T) stays in its place when a row is turned around, so that leftward starts at
    the last real position. Raises ValueError when key_mask hides more than that.
    """
    order = None if key_mask is None else reversal(key_mask)
    y = rightward(x)
    if leftward is None:
        return y  # padding on the right comes after every real position
    return torch.cat((y, reverse(leftward(reverse(x, order)), order)), dim=-1)


def reversal(key_mask: Tensor) -> Tensor:
    """Positions that turn each row's real part around and leave its padding in place: (B, T) -> (B, T)."""
    lengths = key_mask.sum(1, keepdim=True)  # (B, 1)
    position = torch.arange(key_mask.shape[1], device=key_mask.device)
    check_right_padding(key_mask)
    return torch.where(key_mask, lengths - 1 - position, position)


def reverse(x: Tensor, order: Tensor | None) -> Tensor:
    """Turn x (B, T, d) around in time, by `order` (B, T) where given."""
    return x.flip(1) if order is None else x.gather(1, order[:, :, None].expand_as(x))


def recurrence_reason(role: str, mask: str = "none", decodes: bool = False) -> str | None:
    """Why no recurrence can serve such a use: a cross role, hidden positions, or a padded prompt; else None."""
    if role == "cross":
        return "a recurrence reads one sequence, so there is no cross role"
    return padding_reason(mask, decodes)


def halves_reason(role: str, d_model: int) -> str | None:
    """Why two directions of half the width do not fit d_model; None where they do or there is one."""
    if role == "bidirectional" and d_model % 2:
        return f"two directions of d_model / 2 need an even d_model, got {d_model}"
    return None

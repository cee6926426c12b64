"""Boolean masks, True where a query may see a key. Causal order is aligned bottom-right: the last sees the last."""

from __future__ import annotations

import torch
from torch import Tensor


def visible_keys(T: int, S: int, *, causal: bool, key_mask: Tensor | None, device: torch.device) -> Tensor | None:
    """Which of S keys each of T queries sees, or None when every query sees every key.

    key_mask: (B, S), True where a key is real, or None. Returns (T, S), (B, 1, 1, S) or (B, 1, T, S), which broadcast
    against scores (B, H, T, S).
    """
    order = torch.ones(T, S, dtype=torch.bool, device=device).tril_(S - T) if causal and T > 1 else None
    if key_mask is None:
        return order
    keys = key_mask[:, None, None, :]  # (B, 1, 1, S)
    return keys if order is None else keys & order


def plainly_visible(T: int, S: int, *, causal: bool, key_mask: Tensor | None, device: torch.device) -> Tensor:
    """The same pair by pair, as slow forms have it: (T, S), or (B, 1, T, S) with a key_mask."""
    ahead = torch.arange(T, device=device)[:, None] + S - T - torch.arange(S, device=device)  # (T, S)
    seen = (ahead >= 0) | (not causal)
    return seen if key_mask is None else seen & key_mask[:, None, None]


def band(T: int, S: int, *, back: int, ahead: int, offset: int, device: torch.device) -> Tensor:
    """Keys from `back` before to `ahead` after each query, when query 0 stands at key `offset`: (T, S)."""
    distance = torch.arange(T, device=device)[:, None] + offset - torch.arange(S, device=device)  # (T, S)
    return (distance <= back) & (distance >= -ahead)

"""Softmax attention inside a window around each query, in time and memory linear in T.

Queries stand in blocks of about half a window, and each block meets the keys that its windows touch through fused
attention, all blocks in one call. These keys are overlapping views, copied, three times over, only where B > 1 or where
there are global keys. The queries whose windows stick out at either end are small calls: nothing is padded.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.kernels.blocks import overlapping_blocks
from attnbench.kernels.masked import masked_attention
from attnbench.kernels.masks import band

TILE = 32  # queries that the fused kernel takes at a time: blocks are whole tiles, and never smaller


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, *, back: int, ahead: int, n_global: int = 0
) -> Tensor:
    """Softmax over the keys from `back` before to `ahead` after each query; the last query stands at the last key.

    q: (B, H, T, d_k). k: (B, H, S, d_k). v: (B, H, S, d_v). key_mask: (B, S), True where real, or None.
    n_global: how many of the first keys every query sees that does not stand before them.
    Returns (B, H, T, d_v), 0 where a query sees no key.
    """
    T, S = q.shape[2], k.shape[2]
    if T > S:  # the first T - S queries stand before every key
        if ahead:
            raise ValueError(f"a window that looks ahead needs a key for each query, got T = {T} and S = {S}")
        y = window_attention(q[:, :, T - S :], k, v, key_mask, back=back, ahead=0, n_global=n_global)
        return F.pad(y, (0, 0, T - S, 0))
    n_global, mask = min(n_global, S), None if key_mask is None else key_mask[:, None, :, None]  # time as in k and v
    pieces, ys = _pieces(T, S, back, ahead, n_global), []
    parts = torch.split(q, [stop - start for start, stop, _ in pieces], dim=2)
    for part, (start, stop, in_blocks) in zip(parts, pieces, strict=True):
        low, high = _reach(start, stop, S - T, S, back, ahead, n_global)
        if in_blocks:
            ys.append(_mix_blocks(part, k, v, mask, low, back, ahead, n_global))
            continue
        read = partial(_read, low=low, high=high, n_far=n_global if low else 0)
        visible = _end(start + S - T, stop - start, low, high, back, ahead, n_global, q.device)
        ys.append(_mix(part, read(k), read(v), None if mask is None else read(mask), visible))
    return torch.cat(ys, dim=2)


def window_pairs(T: int, S: int, *, back: int, ahead: int, n_global: int = 0) -> tuple[int, int]:
    """Pairs of query and key that a window lets meet, and those that `window_attention` multiplies."""
    seen, n_global = 0, min(n_global, S)
    for at in range(max(0, S - T), S):
        low = max(0, at - back)
        seen += min(S, at + ahead + 1) - low + min(n_global, low)
    T, executed = min(T, S), 0
    for start, stop, in_blocks in _pieces(T, S, back, ahead, n_global):
        low, high = _reach(start, stop, S - T, S, back, ahead, n_global)
        n_near = back + _block(back, ahead) + ahead if in_blocks else high - low
        executed += (stop - start) * (n_near + (n_global if low else 0))
    return seen, executed


def _block(back: int, ahead: int) -> int:
    return TILE * max(1, round((back + ahead) / (2 * TILE)))


def _pieces(T: int, S: int, back: int, ahead: int, n_global: int) -> list[tuple[int, int, bool]]:
    """Ranges of queries, and whether they are whole blocks with all their windows behind the global keys."""
    block = _block(back, ahead)
    earliest, last = max(0, n_global + back - (S - T)), T - ahead
    first = last - (last - earliest) // block * block
    if last <= earliest or first == last:
        return [(0, T, False)]
    pieces = [(0, first, False), (first, last, True), (last, T, False)]
    return [piece for piece in pieces if piece[0] < piece[1]]


def _reach(start: int, stop: int, shift: int, S: int, back: int, ahead: int, n_global: int) -> tuple[int, int]:
    """The keys that queries start to stop are shown; query 0 stands at key `shift`. From 0 where globals are near."""
    low = start + shift - back
    return low if low >= n_global else 0, min(S, stop + shift + ahead)


def _read(x: Tensor, low: int, high: int, n_far: int) -> Tensor:
    """Positions low to high of x (B, H, S, D), behind the first n_far ones."""
    near = x[:, :, low:high]
    return torch.cat((x[:, :, :n_far], near), dim=2) if n_far else near


def _end(at: int, T: int, low: int, high: int, back: int, ahead: int, n_global: int, device: torch.device) -> Tensor:
    """Which keys T queries see of which the first stands at key `at`: (T, high - low), globals before it if low > 0."""
    visible = band(T, high - low, back=back, ahead=ahead, offset=at - low, device=device)
    if not n_global:
        return visible
    if low:
        return F.pad(visible, (n_global, 0), value=True)
    order = torch.arange(high, device=device)
    return visible | ((order < n_global) & (order <= torch.arange(at, at + T, device=device)[:, None]))


def _mix(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, visible: Tensor) -> Tensor:
    """One dense call. mask: (B, 1, S, 1) or None. visible: (T, S)."""
    if mask is not None:
        return masked_attention(q, k, v, visible & mask.transpose(2, 3))  # (B, 1, T, S)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def _mix_blocks(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, low: int, back: int, ahead: int, n_global: int
) -> Tensor:
    """Whole blocks in one call: (B, H, n block, d_k) meets the global keys and those from `low` on, to the last."""
    B, H, T, d_k = q.shape
    block = _block(back, ahead)
    n, size = T // block, back + block + ahead

    def blocks(x: Tensor) -> Tensor:  # (B n, H, n_global + size, d_k or d_v)
        near = overlapping_blocks(x, size, block, start=low).transpose(1, 2)  # (B, n, H, size, d_k or d_v)
        if n_global:
            near = torch.cat((x[:, None, :, :n_global].expand(-1, n, -1, -1, -1), near), dim=3)
        return near.flatten(0, 1)

    q = q.view(B, H, n, block, d_k).transpose(1, 2).flatten(0, 1)  # (B n, H, block, d_k)
    visible = band(block, size, back=back, ahead=ahead, offset=back, device=q.device)
    visible = F.pad(visible, (n_global, 0), value=True) if n_global else visible
    y = _mix(q, blocks(k), blocks(v), None if mask is None else blocks(mask), visible)  # (B n, H, block, d_v)
    return y.view(B, n, H, block, -1).transpose(1, 2).flatten(2, 3)  # (B, H, n block, d_v)

"""Softmax attention inside a window around each query, in time and memory linear in T.

Queries stand in blocks of about half a window, and each block meets the keys that its windows touch through fused
attention, all blocks in one call. These keys are overlapping views (copied, three times over, only where B > 1). The
queries at both ends, whose windows stick out, are two small calls: nothing is padded.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.kernels.blocks import overlapping_blocks
from attnbench.kernels.masked import masked_attention
from attnbench.kernels.masks import band

SMALLEST_BLOCK = 32  # in smaller blocks the overhead outgrows the work


def window_attention(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, *, back: int, ahead: int) -> Tensor:
    """Softmax over the keys from `back` before to `ahead` after each query; the last query stands at the last key.

    q: (B, H, T, d_k). k: (B, H, S, d_k). v: (B, H, S, d_v). key_mask: (B, S), True where real, or None.
    Returns (B, H, T, d_v), 0 where a query sees no key.
    """
    T, S = q.shape[2], k.shape[2]
    if T > S:  # the first T - S queries stand before every key
        if ahead:
            raise ValueError(f"a window that looks ahead needs a key for each query, got T = {T} and S = {S}")
        return F.pad(window_attention(q[:, :, T - S :], k, v, key_mask, back=back, ahead=0), (0, 0, T - S, 0))
    pieces = []
    for start, stop, in_blocks in _pieces(T, S, back, ahead):
        low, high = _reach(start, stop, S - T, S, back, ahead)
        mask = None if key_mask is None else key_mask[:, low:high]
        part = q[:, :, start:stop], k[:, :, low:high], v[:, :, low:high], mask
        offset = start + S - T - low
        pieces.append(_mix_blocks(*part, back, ahead) if in_blocks else _mix_end(*part, back, ahead, offset))
    return torch.cat(pieces, dim=2)


def window_pairs(T: int, S: int, *, back: int, ahead: int) -> tuple[int, int]:
    """Pairs of query and key that a window lets meet, and those that `window_attention` multiplies."""
    seen = sum(max(0, min(S, at + ahead + 1) - max(0, at - back)) for at in range(S - T, S))
    T, executed = min(T, S), 0
    for start, stop, in_blocks in _pieces(T, S, back, ahead):
        low, high = _reach(start, stop, S - T, S, back, ahead)
        executed += (stop - start) * (back + _block(back, ahead) + ahead if in_blocks else high - low)
    return seen, executed


def _block(back: int, ahead: int) -> int:
    return max(SMALLEST_BLOCK, (back + ahead) // 2 + 1)


def _pieces(T: int, S: int, back: int, ahead: int) -> list[tuple[int, int, bool]]:
    """Ranges of queries, and whether they are whole blocks with all their windows inside the sequence."""
    block = _block(back, ahead)
    first = -(-max(0, back - (S - T)) // block) * block
    last = (T - ahead) // block * block
    if last <= first:
        return [(0, T, False)]
    pieces = [(0, first, False), (first, last, True), (last, T, False)]
    return [piece for piece in pieces if piece[0] < piece[1]]


def _reach(start: int, stop: int, shift: int, S: int, back: int, ahead: int) -> tuple[int, int]:
    """The range of keys that queries start to stop may see; query 0 stands at key `shift`."""
    return max(0, start + shift - back), min(S, stop + shift + ahead)


def _mix_end(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, back: int, ahead: int, offset: int) -> Tensor:
    """One dense call; q's first position is k's position `offset`."""
    visible = band(q.shape[2], k.shape[2], back=back, ahead=ahead, offset=offset, device=q.device)
    if key_mask is not None:
        return masked_attention(q, k, v, visible & key_mask[:, None, None, :])  # (B, 1, T, S)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def _mix_blocks(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, back: int, ahead: int) -> Tensor:
    """Whole blocks in one call: (B, H, n block, d_k) meets (B, H, back + n block + ahead, d_k)."""
    B, H, T, d_k = q.shape
    block = _block(back, ahead)
    n, size = T // block, back + block + ahead
    q = q.view(B, H, n, block, d_k)
    k, v = (overlapping_blocks(x, size, block) for x in (k, v))  # (B, H, n, size, d_k or d_v)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B n, H, block or size, d_k or d_v)
    visible = band(block, size, back=back, ahead=ahead, offset=back, device=q.device)
    if key_mask is None:
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)  # (B n, H, block, d_v)
    else:
        keys = key_mask.unfold(1, size, block).flatten(0, 1)  # (B n, size)
        y = masked_attention(q, k, v, visible & keys[:, None, None, :])  # (B n, 1, block, size)
    return y.view(B, n, H, block, -1).transpose(1, 2).flatten(2, 3)  # (B, H, n block, d_v)

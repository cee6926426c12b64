"""What each variant computes, written as plainly as possible: every pair, every step. Speed does not matter here.

A fast form is right when it equals its slow form in float64, gradients too.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def visible(T: int, S: int, role: str, *, window: int | None = None, key_mask: Tensor | None = None) -> Tensor:
    """Whether query i of T sees key j of S, (B or 1, T, S); causal order is aligned bottom-right."""
    pairs = _pairs(T, S, role, window)
    return pairs if key_mask is None else pairs & key_mask[:, None, :]


@cache
def _pairs(T: int, S: int, role: str, window: int | None) -> Tensor:
    def sees(i: int, j: int) -> bool:
        distance = i + (S - T) - j
        if role == "causal":
            return distance >= 0 and (window is None or distance < window)
        return window is None or abs(distance) <= window // 2

    return torch.tensor([[[sees(i, j) for j in range(S)] for i in range(T)]])


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Softmax over the keys that `seen` (B or 1, T, S) allows; 0 where there is none."""
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    weights = scores.exp().where(seen[:, None], 0.0)
    total = weights.sum(-1, keepdim=True)
    return torch.einsum("bhij,bhjd->bhid", weights / total.where(total > 0, 1.0), v)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Weights phi(q_i) phi(k_j) over the keys seen, divided by their sum plus 1e-6."""
    weights = torch.einsum("bhid,bhjd->bhij", phi(q), phi(k)).where(seen[:, None], 0.0)
    return torch.einsum("bhij,bhjd->bhid", weights / (weights.sum(-1, keepdim=True) + 1e-6), v)


def phi(x: Tensor) -> Tensor:
    """elu(x) + 1: exp(x) below 0, x + 1 above."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def matrix_recurrence(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """S_t = S_{t-1} + k_t^T v_t, y_t = q_t S_t, token by token."""
    rows = [v.new_zeros(*v.shape[:2], 0, v.shape[-1])]
    for t in range(q.shape[2]):
        state = state + k[:, :, t, :, None] * v[:, :, t, None, :]
        rows.append((q[:, :, t, :, None] * state).sum(-2)[:, :, None])
    return torch.cat(rows, dim=2), state


def lstm(x: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> Tensor:
    """One direction over x (B, T, d_in), cell by cell; gates stand in the order i, f, g, o."""
    h = c = x.new_zeros(x.shape[0], w_hh.shape[1])
    rows = []
    for t in range(x.shape[1]):
        i, f, g, o = (x[:, t] @ w_ih.T + h @ w_hh.T + bias).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        rows.append(h)
    return torch.stack(rows, dim=1)

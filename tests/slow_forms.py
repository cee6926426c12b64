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


def gru(x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
    """One direction over x (B, T, d_in), cell by cell; gates stand in the order r, z, n, and r acts after w_hh."""
    h = x.new_zeros(x.shape[0], w_hh.shape[1])
    rows = []
    for t in range(x.shape[1]):
        r, z, n = (x[:, t] @ w_ih.T + b_ih).chunk(3, dim=-1)
        r_h, z_h, n_h = (h @ w_hh.T + b_hh).chunk(3, dim=-1)
        r, z = (r + r_h).sigmoid(), (z + z_h).sigmoid()
        h = (1 - z) * (n + r * n_h).tanh() + z * h
        rows.append(h)
    return torch.stack(rows, dim=1)


def rnn(x: Tensor, w_ih: Tensor, w_hh: Tensor, bias: Tensor) -> Tensor:
    """One direction over x (B, T, d_in): h_t = tanh(w_ih x_t + w_hh h_{t-1} + bias)."""
    h = x.new_zeros(x.shape[0], w_hh.shape[1])
    rows = []
    for t in range(x.shape[1]):
        h = (x[:, t] @ w_ih.T + h @ w_hh.T + bias).tanh()
        rows.append(h)
    return torch.stack(rows, dim=1)


def strided_attention(
    q: Tensor, k: Tensor, v: Tensor, role: str, *, stride: int, n_local: int, key_mask: Tensor | None = None
) -> Tensor:
    """Softmax attention whose first `n_local` heads see the nearest keys, the others every key `stride` apart."""
    T, S = q.shape[2], k.shape[2]
    near = _pairs(T, S, role, stride)
    ahead = torch.arange(T)[:, None] + (S - T) - torch.arange(S)
    far = _pairs(T, S, role, None) & (ahead % stride == 0)
    heads = [
        softmax_attention(*(x[:, h : h + 1] for x in (q, k, v)), seen if key_mask is None else seen & key_mask[:, None])
        for h, seen in enumerate([near] * n_local + [far] * (q.shape[1] - n_local))
    ]
    return torch.cat(heads, dim=1)


def uniform_attention(v: Tensor, seen: Tensor) -> Tensor:
    """The mean of the values v (B, S, d) that `seen` (B or 1, T, S) allows; 0 where there is none."""
    weights = seen.to(v.dtype)
    return torch.einsum(
        "bij,bjd->bid", (weights / weights.sum(-1, keepdim=True).clamp(min=1)).expand(len(v), -1, -1), v
    )


def temporal_convolution(
    x: Tensor, first: Tensor, second: Tensor, *, dilation: int, n_ahead: int, key_mask: Tensor | None = None
) -> Tensor:
    """Two convolutions with a ReLU each, tap by tap; the last `n_ahead` of k taps (d, d, k) stand in the future."""
    for weight in (first, second):
        if key_mask is not None:
            x = x.where(key_mask[..., None], 0.0)
        rows = []
        for t in range(x.shape[1]):
            row = x.new_zeros(x.shape[0], len(weight))
            for tap in range(weight.shape[2]):
                s = t - (weight.shape[2] - 1 - n_ahead - tap) * dilation
                if 0 <= s < x.shape[1]:
                    row = row + x[:, s] @ weight[:, :, tap].T
            rows.append(row.relu())
        x = torch.stack(rows, dim=1)
    return x

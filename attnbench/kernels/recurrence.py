"""The linear recurrence whose state is a matrix, in chunks (Yang et al. 2024, arXiv 2312.06635, section 2.2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.kernels.scalar_decay import scalar_recurrence
from attnbench.kernels.vector_decay import vector_recurrence


def matrix_recurrence(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, *, chunk: int, log_decay: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """S_t = D_t S_{t-1} + k_t^T v_t and y_t = q_t S_t for all t, from S_0 = state; D_t acts before the write.

    q, k: (B, H, T, d_k). v: (B, H, T, d_v). state: (B, H, d_k, d_v). Any T, 0 included.
    log_decay: log D_t, at most 0: (B, H, T), one number per head; (B, H, T, d_k), one per key channel; None, D_t = 1.
    With one number per head, q and k may have fewer heads G, each shared by H / G consecutive heads of v. Any size of
    log_decay is taken, to -inf excluded; with it, gradients can be taken once, not twice.

    Returns y (B, H, T, d_v) and the last state. Inside a chunk the pairs are masked products, between chunks a state
    is handed on; `chunk` changes speed and memory (H T chunk for training, without decay), not the result.
    """
    if log_decay is None:
        return _without_decay(q, k, v, state, chunk)
    if log_decay.ndim == 3:
        return scalar_recurrence(q, k, v, log_decay.expand(v.shape[:3]), state, chunk)
    return vector_recurrence(q, k, v, log_decay.expand(k.shape), state, chunk)


def last_positions(x: Tensor, n: int) -> Tensor:
    """The last n positions of x (B, H, T, D), behind zeros where T is less: (B, H, n, D).

    With the last query at the last key, a recurrence over S keys is asked the last S queries, and answers the last T.
    """
    T = x.shape[2]
    if n == T:
        return x
    return F.pad(x, (0, 0, n - T, 0)) if n > T else x[:, :, T - n :]


def _without_decay(q: Tensor, k: Tensor, v: Tensor, state: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    T = q.shape[2]
    rest = T % chunk
    if rest in (0, T):
        return _whole_chunks(q, k, v, state, rest or chunk)
    at = T - rest
    y, state = _whole_chunks(q[:, :, :at], k[:, :, :at], v[:, :, :at], state, chunk)
    y_rest, state = _whole_chunks(q[:, :, at:], k[:, :, at:], v[:, :, at:], state, rest)
    return torch.cat((y, y_rest), dim=2), state


def _whole_chunks(q: Tensor, k: Tensor, v: Tensor, state: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    B, H, T, d_k = q.shape
    n, d_v = T // chunk, v.shape[-1]
    q, k, v = (x.reshape(B * H * n, chunk, x.shape[-1]) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).tril_()  # (B H n, chunk, chunk)
    gains = torch.bmm(k.transpose(1, 2), v).view(B, H, n, d_k, d_v)
    states = torch.cat((state[:, :, None], gains), dim=2).cumsum(2)  # (B, H, n + 1, d_k, d_v), before each chunk
    before = states[:, :, :n].reshape(B * H * n, d_k, d_v)
    y = torch.baddbmm(torch.bmm(scores, v), q, before)
    return y.view(B, H, T, d_v), states[:, :, n]

"""The delta rule with a decay, in chunks (Yang et al. 2024, arXiv 2406.06484, section 3; 2412.06464, section 3.3).

A write first reads what its key holds, then replaces a share beta of it. With u_t, what is really added to key k_t,

    S_t = a_t S_{t-1} + k_t^T u_t,  u_t = beta_t (v_t - k_t a_t S_{t-1})
        = a_t (I - beta_t k_t^T k_t) S_{t-1} + beta_t k_t^T v_t,  a_t = exp(log_decay_t)

so the old state decays before the error is taken. Inside a chunk all u_t are the solution of one triangular system
(the UT transform), between chunks the state is handed on:

    (I + A) [U | W] = diag(beta) [V | e^G K],  A_ij = beta_i e^(G_i - G_j) k_i k_j^T for j < i,  G = sums of log_decay
    u = U - W S;  y = e^G Q S + P u,  P_ij = e^(G_i - G_j) q_i k_j^T for j <= i;  S <- e^(G_C) S + (e^(G_C - G) K)^T u
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.kernels.chunks import pieces

SMALLEST_LOG_DECAY = -200.0  # exp of it is 0 in float32, and 1e-87 in float64


def delta_recurrence(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor, *, chunk: int, log_decay: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """S_t = a_t (I - beta_t k_t^T k_t) S_{t-1} + beta_t k_t^T v_t and y_t = q_t S_t for all t, from S_0 = state.

    q, k: (B, H, T, d_k). v: (B, H, T, d_v). beta: (B, H, T). state: (B, H, d_k, d_v). Any T, 0 included. All of one
    floating dtype, float32 or float64. log_decay: (B, H, T), finite and at most 0, is log a_t; None is no decay.
    Returns y (B, H, T, d_v) and the last state. Stable where |k_t| <= 1 and 0 <= beta_t <= 2; `chunk` changes speed
    and memory (H T chunk for training), not the result. Gradients exist, second derivatives do not.
    """
    (B, H, T, d_k), d_v = q.shape, v.shape[-1]
    cuts, ys = pieces(T, chunk, B * H * max(d_k, d_v), q.device), []
    sizes = [stop - start for start, stop, _ in cuts]
    given = [q, k, v, beta] if log_decay is None else [q, k, v, beta, log_decay]
    runs = zip(*(torch.split(x, sizes, dim=2) for x in given), strict=True) if T else ()
    for run, (_, _, size) in zip(runs, cuts, strict=True):
        y, state = _whole_chunks(*run, state=state, chunk=size)
        ys.append(y)
    return torch.cat(ys, dim=2) if ys else torch.zeros_like(v), state


def _whole_chunks(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor | None = None, *, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    B, H, T, d_k = q.shape
    n, d_v = T // chunk, v.shape[-1]
    q, k, v, beta = (x.reshape(B * H * n, chunk, x.shape[-1]) for x in (q, k, v, beta[..., None]))
    keys, scores = torch.bmm(k, k.transpose(1, 2)), torch.bmm(q, k.transpose(1, 2))  # (B H n, chunk, chunk)
    written, final = k, None
    if log_decay is None:
        scores, read = scores.tril(), k
    else:
        sums = log_decay.reshape(B * H * n, chunk).double().clamp(min=SMALLEST_LOG_DECAY).cumsum(1)
        between = _decay_between(sums, k.dtype)  # (B H n, chunk, chunk)
        keys, scores = keys * between, scores * between
        since, until = (x.to(k.dtype).unsqueeze(2) for x in (sums.exp(), (sums[:, -1:] - sums).exp()))
        q, read, written, final = q * since, k * since, k * until, since[:, -1:].view(B * H, n, 1, 1)
    solved = _InverseOfUnitLower.apply((keys * beta).tril(-1))  # type: ignore[no-untyped-call]  # torch's is
    added, erased = torch.bmm(solved, torch.cat((v, read), dim=2) * beta).tensor_split((d_v,), dim=2)  # U and W
    parts = (x.reshape(B * H, n, chunk, x.shape[-1]) for x in (added, erased, written))
    u, states = _Handover.apply(*parts, final, state.reshape(B * H, d_k, d_v))  # type: ignore[no-untyped-call]
    before = states[:, :n].reshape(B * H * n, d_k, d_v)
    y = torch.baddbmm(torch.bmm(scores, u.reshape(B * H * n, chunk, d_v)), q, before)
    return y.view(B, H, T, d_v), states[:, n].view(B, H, d_k, d_v)


def _decay_between(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """e^(G_i - G_j) where j <= i, else 0: (N, chunk) -> (N, chunk, chunk).

    Masked before exp, which would overflow. The sums are float64: the difference of two long ones is a small decay.
    """
    chunk = sums.shape[1]
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=sums.device).triu(1)
    return (sums[:, :, None] - sums[:, None, :]).to(dtype).masked_fill(later, -torch.inf).exp()


class _InverseOfUnitLower(torch.autograd.Function):
    """(I + A)^-1 of strictly lower triangular A (N, C, C); its gradient is two products instead of two more solves."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand_as(a)
        solved: Tensor = torch.linalg.solve_triangular(a, eye, upper=False, unitriangular=True)
        ctx.save_for_backward(solved)
        return solved

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (solved,) = ctx.saved_tensors
        turned = solved.transpose(1, 2)
        return torch.bmm(torch.bmm(turned, grads[0]), turned).neg_()


class _Handover(torch.autograd.Function):
    """u_n = U_n - W_n S_n and S_{n+1} = f_n S_n + K_n^T u_n over n chunks: what has to follow one another.

    U: (N, n, C, d_v). W, K: (N, n, C, d_k). f: (N, n, 1, 1) or None for 1. S_0: (N, d_k, d_v). Returns all u, shaped
    as U, and S (N, n + 1, d_k, d_v).
    """

    @staticmethod
    def forward(ctx: Any, U: Tensor, W: Tensor, K: Tensor, f: Tensor | None, start: Tensor) -> tuple[Tensor, Tensor]:
        n = U.shape[1]
        u, states = torch.empty_like(U), start.new_empty(len(start), n + 1, *start.shape[1:])
        states[:, 0] = start
        for i in range(n):
            kept = states[:, i] if f is None else states[:, i] * f[:, i]
            u[:, i] = torch.baddbmm(U[:, i], W[:, i], states[:, i], alpha=-1)
            states[:, i + 1] = torch.baddbmm(kept, K[:, i].transpose(1, 2), u[:, i])
        ctx.save_for_backward(W, K, f, u, states)
        return u, states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        W, K, f, u, states = ctx.saved_tensors
        du, dstates = (grad.clone() for grad in grads)
        for i in reversed(range(u.shape[1])):
            after = dstates[:, i + 1]
            du[:, i].baddbmm_(K[:, i], after)
            dstates[:, i] += after if f is None else after * f[:, i]
            dstates[:, i].baddbmm_(W[:, i].transpose(1, 2), du[:, i], alpha=-1)
        before, after = states[:, :-1], dstates[:, 1:]
        dW = -du @ before.transpose(2, 3)
        dK = u @ after.transpose(2, 3)
        df = None if f is None else (before * after).sum((2, 3), keepdim=True)
        return du, dW, dK, df, dstates[:, 0]

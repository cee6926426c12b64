"""Attention whose weights are products of features, y_i = sum_j (phi(q_i) phi(k_j)) v_j, over sums that are a state.

Katharopoulos et al. 2020, arXiv 2006.16236. Every function takes features, not queries and keys: phi_q (B, H, T, m) and
phi_k (B, H, S, m), at least in float32, and 0 for a key that nobody may see. `eps` is added to the sum of weights that
a query divides by; None: nothing is divided. A query whose weights sum to nothing gives 0.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

SMALLEST = 1e-30  # what a float32 can still divide by: weights that sum to less are nothing


def in_float32(x: Tensor) -> Tensor:
    """x, at least in float32: a sum over T overflows float16 and stalls in bfloat16."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def feature_sums(phi_k: Tensor, v: Tensor) -> Tensor:
    """The state after all keys given: sum_j phi(k_j)^T [v_j, 1].

    v: (B, H, S, d_v). Returns (B, H, m, d_v + 1); the last column is the sum of the features.
    """
    return phi_k.transpose(2, 3) @ F.pad(in_float32(v), (0, 1), value=1.0)


def read_features(phi_q: Tensor, sums: Tensor, *, eps: float | None = 0.0) -> Tensor:
    """Read sums (B, H, m, d_v + 1) by phi_q (B, H, T, m): (B, H, T, d_v)."""
    if eps is None:
        return phi_q @ sums[..., :-1]
    y = phi_q @ sums  # (B, H, T, d_v + 1)
    return divide(y[..., :-1], y[..., -1:], eps)


def divide(y: Tensor, total: Tensor, eps: float) -> Tensor:
    """Sums of weighted values by the sums of weights (..., 1), plus eps; 0 where the weights sum to nothing."""
    return y * _inverse(total, eps)


def causal_features(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, sums: Tensor, *, chunk: int, eps: float | None = 0.0
) -> tuple[Tensor, Tensor]:
    """Each query reads the keys up to its own position, and all that `sums` (B, H, m, d_v + 1) hold already.

    phi_q, phi_k: (B, H, T, m). v: (B, H, T, d_v). Any T, 0 included. Returns y (B, H, T, d_v) and the sums after the
    last key. Inside a chunk the pairs are masked products, between chunks the sums are handed on: `chunk` changes
    speed, not the result. Training keeps the inputs and y, and multiplies the pairs again on the way back. Has no
    second derivative.
    """
    v, T = in_float32(v), phi_q.shape[2]
    rest = T % chunk
    if rest in (0, T):
        return _apply(phi_q, phi_k, v, sums, rest or chunk, eps)
    at = T - rest
    y, sums = _apply(phi_q[:, :, :at], phi_k[:, :, :at], v[:, :, :at], sums, chunk, eps)
    y_rest, sums = _apply(phi_q[:, :, at:], phi_k[:, :, at:], v[:, :, at:], sums, rest, eps)
    return torch.cat((y, y_rest), dim=2), sums


def _apply(q: Tensor, k: Tensor, v: Tensor, sums: Tensor, chunk: int, eps: float | None) -> tuple[Tensor, Tensor]:
    both: tuple[Tensor, Tensor] = _Chunks.apply(q, k, v, sums, chunk, eps)  # type: ignore[no-untyped-call]  # torch's is
    return both


def _inverse(total: Tensor, eps: float) -> Tensor:
    """1 / (total + eps), and 0 where the total is nothing."""
    nothing = total < SMALLEST
    return (total + eps).masked_fill(nothing, 1.0).reciprocal().masked_fill(nothing, 0.0)


class _Chunks(torch.autograd.Function):
    """Whole chunks, n of them, chunk-major: (n B H, chunk, width). States are those before each chunk.

    With n_i the sums of weighted values, d_i those of weights and y_i = n_i / (d_i + eps), the gradients are those of
    the same recurrence run from the end, of g_i = dy_i / (d_i + eps) and e_i = -g_i y_i.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sums: Tensor, chunk: int, eps: float | None
    ) -> tuple[Tensor, Tensor]:
        B, H, T, m = q.shape
        ctx.chunk, ctx.divided = chunk, eps is not None
        qs, ks, vs = (_chunks(x, chunk) for x in (q, k, v))  # (n B H, chunk, m or d_v)
        states, totals = _states(ks, vs, sums)
        n = T // chunk
        pairs = torch.bmm(qs, ks.transpose(1, 2)).tril_()  # (n B H, chunk, chunk)
        ys = _add_product(torch.bmm(pairs, vs), qs, states[:n].flatten(0, 1))
        inverse = None
        if eps is not None:
            total = torch.bmm(qs, totals[:n].flatten(0, 1)).add_(pairs.sum(-1, keepdim=True))  # (n B H, chunk, 1)
            inverse = _inverse(total, eps)
            ys.mul_(inverse)
        after = torch.cat((states[n], totals[n]), dim=-1).view(B, H, m, -1)
        y = _whole(ys, B, H)
        ctx.save_for_backward(q, k, v, sums, y, inverse)
        return y, after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sums, y, inverse = ctx.saved_tensors
        B, H, T, _ = q.shape
        n = T // ctx.chunk
        qs, ks, vs, gs = (_chunks(x, ctx.chunk) for x in (q, k, v, grads[0]))
        es = None
        if inverse is not None:
            gs = gs * inverse
            es = (gs * _chunks(y, ctx.chunk)).sum(-1, keepdim=True).neg_()  # (n B H, chunk, 1)
        states, totals = _states(ks, vs, sums)
        later, later_totals = _later(qs, gs, es, grads[1], n)
        dq, dk, dv = _gradients((qs, ks, vs, gs, es), states[:n], later)
        if es is not None:
            dq.addcmul_(es, totals[:n].flatten(0, 1).transpose(1, 2))
        dk.add_(later_totals[1:].flatten(0, 1).transpose(1, 2))
        before = torch.cat((later[0], later_totals[0]), dim=-1).view_as(sums)
        return _whole(dq, B, H), _whole(dk, B, H), _whole(dv, B, H), before, None, None


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """(B, H, n chunk, D) -> (n B H, chunk, D)."""
    B, H, T, D = x.shape
    return x.reshape(B * H, T // chunk, chunk, D).transpose(0, 1).reshape(-1, chunk, D)


def _whole(x: Tensor, B: int, H: int) -> Tensor:
    """The inverse of `_chunks`."""
    chunk, D = x.shape[1:]
    return x.view(-1, B * H, chunk, D).transpose(0, 1).reshape(B, H, -1, D)


def _states(k: Tensor, v: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Sums before each chunk and after the last: (n + 1, B H, m, d_v) of values and (n + 1, B H, m, 1) of weights."""
    first = sums.flatten(0, 1)  # (B H, m, d_v + 1)
    n = len(k) // len(first)
    states = k.new_empty(n + 1, len(first), k.shape[-1], v.shape[-1])
    totals = k.new_empty(n + 1, len(first), k.shape[-1], 1)
    states[0], totals[0] = first[..., :-1], first[..., -1:]
    torch.bmm(k.transpose(1, 2), v, out=states[1:].flatten(0, 1))
    torch.sum(k, 1, out=totals[1:].view(-1, k.shape[-1]))
    for i in range(n):
        states[i + 1] += states[i]
        totals[i + 1] += totals[i]
    return states, totals


def _later(q: Tensor, g: Tensor, e: Tensor | None, after: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Sums from the end of q_i^T g_i and q_i^T e_i: before the first chunk, then after each; shapes as `_states`."""
    last = after.flatten(0, 1)
    states = q.new_empty(n + 1, len(last), q.shape[-1], g.shape[-1])
    totals = q.new_zeros(n + 1, len(last), q.shape[-1], 1)
    states[n], totals[n] = last[..., :-1], last[..., -1:]
    torch.bmm(q.transpose(1, 2), g, out=states[:n].flatten(0, 1))
    if e is not None:
        torch.bmm(q.transpose(1, 2), e, out=totals[:n].flatten(0, 1))
    for i in reversed(range(n)):
        states[i] += states[i + 1]
        totals[i] += totals[i + 1]
    return states, totals


def _gradients(
    parts: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None], before: Tensor, later: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v in chunks, but for the totals of other chunks."""
    q, k, v, g, e = parts
    before, after = before.flatten(0, 1), later[1:].flatten(0, 1)
    pairs = torch.bmm(q, k.transpose(1, 2)).tril_()
    slopes = torch.bmm(g, v.transpose(1, 2))  # of the pairs
    slopes = (slopes if e is None else slopes.add_(e)).tril_()
    dq = _add_product(torch.bmm(slopes, k), g, before.transpose(1, 2))
    dk = _add_product(torch.bmm(slopes.transpose(1, 2), q), v, after.transpose(1, 2))
    dv = _add_product(torch.bmm(pairs.transpose(1, 2), g), k, after)
    return dq, dk, dv


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """total + a b, in the place of total, and seen by torch's counter of operations."""
    return torch.baddbmm(total, a, b, out=total)

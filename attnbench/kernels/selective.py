"""The selective scan of Mamba: a recurrence whose state would not fit into memory at all times at once.

Gu and Dao 2023, arXiv 2312.00752, algorithm 2 and section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.kernels.chunks import CACHED_NUMBERS
from attnbench.kernels.scan import FEW_NUMBERS, scan_in_place


def selective_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t and y_t = C_t h_t for all t, from h_{-1} = h, or 0 where none is given.

    x, dt: (rows, T, E), of each channel its own. A: (E, N). B, C: (rows, T, N), for all channels. h: (rows, N, E).
    Returns y (rows, T, E), of x's dtype, and the last h (rows, N, E), at least float32, as is all that is summed.

    How it runs: piece by piece in time, so that a piece of the states (T, N, E) stays in a core's cache. Only the state
    before each piece is kept for gradients; they compute the others again. Gradients have no derivative themselves.
    """
    kind = torch.promote_types(x.dtype, torch.float32)
    start = x.new_zeros(x.shape[0], A.shape[1], A.shape[0], dtype=kind) if h is None else h.to(kind)
    if not x.numel():
        return x, start
    y, last = _SelectiveScan.apply(  # type: ignore[no-untyped-call]  # torch's is
        *(part.to(kind) for part in (x, dt, A.T.contiguous(), B, C)), start
    )
    return y.to(x.dtype), last


class _SelectiveScan(torch.autograd.Function):
    """Forward keeps the state before each piece; backward walks the pieces from the last to the first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, start: Tensor) -> tuple[Tensor, ...]:
        u, y, last = dt * x, torch.empty_like(x, memory_format=torch.contiguous_format), start.clone()
        pieces = list(_pieces(x, A))
        before = x.new_empty(1 + pieces[-1].i, *start.shape)
        room = _room(pieces[0], A)
        with torch.inference_mode():  # autograd's bookkeeping would cost as much as a small step
            for rows, i, times in pieces:
                here = (rows, times)
                before[i, rows] = last[rows]
                _, h = _states(room, dt[here], u[here], A, B[here], last[rows])
                y[here] = torch.matmul(C[here].unsqueeze(2), h).squeeze(2)
                last[rows] = h[:, -1]
        ctx.save_for_backward(x, dt, A, B, C, before)
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, dt, A, B, C, before = ctx.saved_tensors
        dy, after = grads[0], grads[1].clone(memory_format=torch.contiguous_format)  # after: the loss by the state
        u, du, ddt = dt * x, *(torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
        dA, dB, dC = torch.zeros_like(A), torch.empty_like(B), torch.empty_like(C)
        pieces = list(_pieces(x, A))
        room = _room(pieces[0], A)
        with torch.inference_mode():
            for rows, i, times in reversed(pieces):
                here = (rows, times)
                a, h = _states(room, dt[here], u[here], A, B[here], before[i, rows])
                dC[here] = torch.mul(h, dy[here].unsqueeze(2), out=_part(room[2], h.shape)).sum(3)
                dh = torch.mul(dy[here].unsqueeze(2), C[here].unsqueeze(3), out=_part(room[2], h.shape))
                dh[:, -1] += after[rows]
                scan_in_place(a[:, 1:], dh[:, :-1], dh[:, -1], backwards=True)
                torch.mul(a[:, 0], dh[:, 0], out=after[rows])
                da = a.mul_(dh)  # times the state before, it is the loss by dt_t A
                da[:, 1:].mul_(h[:, :-1])
                da[:, 0].mul_(before[i, rows])
                du[here] = torch.matmul(B[here].unsqueeze(2), dh).squeeze(2)
                dB[here] = torch.mul(dh, u[here].unsqueeze(2), out=h).sum(3)
                dA += torch.mul(da, dt[here].unsqueeze(2), out=h).sum((0, 1))
                ddt[here] = da.mul_(A).sum(2)
        ddt.addcmul_(du, x)
        return du.mul_(dt), ddt, dA, dB, dC, after


class _Piece(NamedTuple):
    """Some rows at some times; i counts the times."""

    rows: slice
    i: int
    times: slice


def _pieces(x: Tensor, A: Tensor) -> Iterator[_Piece]:
    """All rows and times of x (rows, T, E), those of a row in order."""
    B, T, _ = x.shape
    n_rows, n_times = max(1, 2 * FEW_NUMBERS // A.numel()), T
    if x.device.type == "cpu":
        n_times = max(1, CACHED_NUMBERS // (n_rows * A.numel()))
    for row in range(0, B, n_rows):
        for i, t in enumerate(range(0, T, n_times)):
            yield _Piece(slice(row, min(B, row + n_rows)), i, slice(t, min(T, t + n_times)))


def _room(piece: _Piece, A: Tensor) -> list[Tensor]:
    """Room for decays, states and their gradients in a piece no larger than this one."""
    n_rows, n_times = (part.stop - part.start for part in (piece.rows, piece.times))
    return list(A.new_empty(3, n_rows * n_times * A.numel()).unbind())


def _part(room: Tensor, shape: torch.Size) -> Tensor:
    return room[: shape.numel()].view(shape)


def _states(room: list[Tensor], dt: Tensor, u: Tensor, A: Tensor, B: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Decays exp(dt_t A) and states of a piece, (rows, times, N, E) each, in `room`; u is dt x, A is (N, E)."""
    shape = torch.Size((*dt.shape[:2], *A.shape))
    a = torch.mul(dt.unsqueeze(2), A, out=_part(room[0], shape)).exp_()
    h = torch.mul(u.unsqueeze(2), B.unsqueeze(3), out=_part(room[1], shape))
    scan_in_place(a, h, before)
    return a, h

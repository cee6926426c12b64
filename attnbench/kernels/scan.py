"""The linear recurrence whose state is a vector: every channel decays and adds on its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 32  # positions of a block
FEW_NUMBERS = 1024  # per position: calls cost more than arithmetic, so that fewer calls pay for twice the work


def diagonal_scan(a: Tensor, b: Tensor, h: Tensor | None = None) -> Tensor:
    """h_t = a_t h_{t-1} + b_t for all t, elementwise, from h_{-1} = h, or 0 where none is given.

    b: (B, T, ...), real or complex, any T. a: the same, or with a size of 1 where it is one for all rows, times or
    channels. h: (B, ...). Any values: nothing is divided and no logarithm taken. Half precision is computed in float32.
    Returns every h_t, (B, T, ...), of b's dtype. Gradients keep a and the result, and have no derivative themselves.

    How it runs: step by step where one position is much work, else in blocks that advance side by side, each from 0;
    what then enters a block reaches its positions by the products of a up to them (Blelloch 1990).
    """
    if a.ndim != b.ndim or any(n not in (1, m) for n, m in zip(a.shape, b.shape, strict=True)):
        raise ValueError(f"a must have b's shape {tuple(b.shape)} or sizes of 1, got {tuple(a.shape)}")
    if h is not None and h.shape != b[:, :1].squeeze(1).shape:
        raise ValueError(f"h must be {tuple(b[:, :1].squeeze(1).shape)}, got {tuple(h.shape)}")
    kind = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    if not b.numel():
        return b
    start = None if h is None else h.to(kind)
    found: Tensor = _DiagonalScan.apply(a.to(kind), b.to(kind), start)  # type: ignore[no-untyped-call]  # torch's is
    return found.to(b.dtype) if kind == torch.float32 else found


class _DiagonalScan(torch.autograd.Function):
    """The scan and, backwards, the scan from the other end."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, start: Tensor | None) -> Tensor:
        h = b.clone(memory_format=torch.contiguous_format)
        if start is not None:
            h[:, 0].addcmul_(a[:, 0], start)
        with torch.inference_mode():  # autograd's bookkeeping would cost as much as a small step
            scan_in_place(a if a.shape[1] == 1 else a[:, 1:], h[:, 1:], h[:, 0])
        ctx.save_for_backward(a, h, start)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        a, h, start = ctx.saved_tensors
        a_back, db = a.conj().resolve_conj(), grads[0].clone(memory_format=torch.contiguous_format)
        with torch.inference_mode():
            scan_in_place(a_back if a.shape[1] == 1 else a_back[:, 1:], db[:, :-1], db[:, -1], backwards=True)
        dstart = None if start is None else (a_back[:, 0] * db[:, 0]).sum_to_size(start.shape)
        da = _gradient_of_a(a, h, start, db) if ctx.needs_input_grad[0] else None
        return da, db, dstart


def _gradient_of_a(a: Tensor, h: Tensor, start: Tensor | None, db: Tensor) -> Tensor:
    """The sum of db_t times the conjugate of h_{t-1} over all that one number of a serves."""
    da = torch.empty_like(db)
    torch.mul(db[:, 1:], h[:, :-1].conj(), out=da[:, 1:])
    if start is None:
        da[:, 0] = 0
    else:
        torch.mul(db[:, 0], start.conj(), out=da[:, 0])
    return da.sum_to_size(a.shape)


def scan_in_place(a: Tensor, h: Tensor, first: Tensor, backwards: bool = False) -> None:
    """h_t += a_t h_{t-1} in place for all t, where `first` (B, ...) stands before the first; backwards, after the last.

    a: (B or 1, T or 1, ...). h: (B, T, ...).
    """
    T = h.shape[1]
    n_blocks = T // BLOCK
    n_numbers = first.numel() * (2 if h.is_complex() else 1)
    if n_blocks < 2 or (n_numbers >= FEW_NUMBERS and h.device.type == "cpu"):
        _steps_(a, h, first, backwards)
        return
    at = n_blocks * BLOCK
    whole, rest = (slice(T - at, T), slice(0, T - at)) if backwards else (slice(0, at), slice(at, T))
    last = _blocks_(a if a.shape[1] == 1 else a[:, whole], h[:, whole], first, n_blocks, backwards)
    _steps_(a if a.shape[1] == 1 else a[:, rest], h[:, rest], last, backwards)


def _steps_(a: Tensor, h: Tensor, before: Tensor, backwards: bool) -> Tensor:
    """`scan_in_place` one position after the other; returns the last one."""
    order = slice(None, None, -1 if backwards else 1)
    for a_t, h_t in zip(a.expand(-1, h.shape[1], *a.shape[2:]).unbind(1)[order], h.unbind(1)[order], strict=True):
        before = h_t.addcmul_(a_t, before)
    return before


def _blocks_(a: Tensor, h: Tensor, before: Tensor, n_blocks: int, backwards: bool) -> Tensor:
    """`scan_in_place` over whole blocks; returns the last position."""
    blocks = (n_blocks, BLOCK)
    h = h.view(h.shape[0], *blocks, *h.shape[2:])  # (B, n_blocks, BLOCK, ...)
    if a.shape[1] == 1:
        a = a.unsqueeze(2).expand(-1, -1, BLOCK, *a.shape[2:])
    else:
        a = a.view(a.shape[0], *blocks, *a.shape[2:])
    order = slice(None, None, -1 if backwards else 1)
    a_steps, h_steps, products = a.unbind(2)[order], h.unbind(2)[order], torch.empty_like(a)  # dense where a repeats
    p_steps = products.unbind(2)[order]
    p_steps[0].copy_(a_steps[0])
    for c in range(1, BLOCK):
        h_steps[c].addcmul_(a_steps[c], h_steps[c - 1])
        torch.mul(a_steps[c], p_steps[c - 1], out=p_steps[c])
    whole = p_steps[-1].expand(-1, n_blocks, *a.shape[3:])
    carried = torch.empty_like(h_steps[-1])  # what enters each block
    for i in range(n_blocks)[order]:
        carried[:, i] = before
        before = h_steps[-1][:, i].addcmul_(whole[:, i], before)
    others = slice(1, None) if backwards else slice(0, -1)  # the last of each block has had its share
    h[:, :, others].addcmul_(products[:, :, others], carried.unsqueeze(2))
    return before

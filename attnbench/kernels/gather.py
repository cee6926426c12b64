"""Blocks along time, gathered by a table of block numbers: what a block of queries of a sparse attention reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def gather_blocks(x: Tensor, table: Tensor, block: int) -> Tensor:
    """Block `table[h, i, j]` of head h, for each j one after the other: (B, H, S, D) -> (B, H, n, r block, D).

    x: cut into S / block blocks, which must be whole. table: (H, n, r), whole numbers from 0 to S / block - 1; a block
    may be read any number of times.
    """
    if x.shape[2] % block:
        raise ValueError(f"x must hold whole blocks of {block} positions, got S = {x.shape[2]}")
    gathered: Tensor = _GatherBlocks.apply(x, table, block)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return gathered


class _GatherBlocks(torch.autograd.Function):
    """Whole blocks are copied as rows, and in the backward pass added as rows: no index per number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, block: int) -> Tensor:
        B, H, S, D = x.shape
        _, n, r = table.shape
        ctx.shape, ctx.block = x.shape, block
        rows = _rows(table, B, S // block)
        ctx.save_for_backward(rows)
        blocks = x.reshape(B * H * (S // block), block * D)
        return blocks.index_select(0, rows).view(B, H, n, r * block, D)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        B, H, S, D = ctx.shape
        (rows,) = ctx.saved_tensors
        total = grad.new_zeros(B * H * (S // ctx.block), ctx.block * D)
        total.index_add_(0, rows, grad.reshape(len(rows), ctx.block * D))
        return total.view(B, H, S, D), None, None


def _rows(table: Tensor, B: int, n_blocks: int) -> Tensor:
    """Numbers of the blocks when those of all rows and heads stand one after the other: (B H n r)."""
    H = len(table)
    firsts = torch.arange(B * H, device=table.device).view(B, H, 1, 1) * n_blocks
    return (firsts + table).flatten()

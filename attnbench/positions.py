"""Position embeddings: sinusoidal (Vaswani et al. 2017, section 3.5), learned, or none."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn

from attnbench.mixer import PositionKind, check_name


def sinusoidal(T: int, d_model: int) -> Tensor:
    """The fixed table (T, d_model): sin(t / 10000^(2i/d_model)) at channel 2i, cos of the same angle at 2i + 1.

    An odd d_model ends on a sine. Computed in float64, returned as float32.
    """
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = torch.arange(T, dtype=torch.float64)[:, None] / 10000.0 ** (even / d_model)  # (T, ceil(d_model / 2))
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[:, :d_model].float()


class Positions(nn.Module):
    """Adds a position embedding to x (B, T, d_model); `start` is the position of x's first token.

    Raises ValueError when a position reaches max_T, never wrapped, never clamped, and for an unknown kind.
    """

    table: Tensor

    def __init__(self, kind: PositionKind, max_T: int, d_model: int, std: float = 0.02) -> None:
        super().__init__()
        check_name("positions", kind, get_args(PositionKind))
        self.kind, self.max_T = kind, max_T
        if kind == "learned":
            self.table = nn.Parameter(torch.randn(max_T, d_model) * std)
        elif kind == "sinusoidal":
            self.register_buffer("table", sinusoidal(max_T, d_model), persistent=False)

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Shape in, shape out: (B, T, d_model)."""
        if self.kind == "none":
            return x
        end = start + x.shape[1]
        if end > self.max_T:
            raise ValueError(f"T = {end} is beyond max_T = {self.max_T} of the {self.kind} positions")
        return x + self.table[start:end].to(x.dtype)

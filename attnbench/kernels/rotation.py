"""Rotation of queries and keys by their positions, so that a score sees their distance (Su et al. 2021, 2104.09864)."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.kernels.precision import at_least_float32


def rotated(x: Tensor, start: int) -> Tensor:
    """x (B, H, T, D) whose position t is start + t: pairs of channels turned by t theta, theta from 1 down to 1/10000.

    An odd last channel stays. Returns (B, H, T, D), in float32 at least; angles are float64, for t may be large.
    """
    half, T = x.shape[-1] // 2, x.shape[2]
    x = at_least_float32(x)
    if not half:
        return x
    theta = 10000.0 ** -torch.linspace(0, 1, half, dtype=torch.float64, device=x.device)
    angle = torch.arange(start, start + T, dtype=torch.float64, device=x.device)[:, None] * theta  # (T, half)
    kind = torch.complex128 if x.dtype.itemsize == 8 else torch.complex64
    pairs = torch.view_as_complex(x[..., : 2 * half].contiguous().view(*x.shape[:-1], half, 2))
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle).to(kind)).flatten(-2)
    return torch.cat((turned, x[..., 2 * half :]), dim=-1) if x.shape[-1] % 2 else turned

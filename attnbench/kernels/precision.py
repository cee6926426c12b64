"""Half precision is too narrow for sums over time and for exponentials of sums: these are float32 at the least."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """x, in float32 where its dtype is narrower: itself in float32 and float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))

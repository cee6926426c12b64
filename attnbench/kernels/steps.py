"""Step sizes of state-space models, dt = softplus(bias): the bias that they start from."""

from __future__ import annotations

import torch
from torch import Tensor


def step_bias(dt: Tensor) -> Tensor:
    """The bias whose softplus is dt, positive numbers of any shape."""
    return dt + torch.log(-torch.expm1(-dt))

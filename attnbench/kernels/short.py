"""Short causal convolution of each channel with a few taps of its own, as in H3 (Fu et al. 2023, arXiv 2212.14052).

A sum of shifted products: for the usual three or four taps that is faster on a CPU than torch's grouped convolution.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def short_convolution(x: Tensor, weight: Tensor, before: Tensor | None = None) -> Tensor:
    """y_t = sum_i weight[:, k - 1 - i] x_{t-i} over i < k: each channel sees itself and its last k - 1 values.

    x: (B, T, D), T = 0 included. weight: (D, k), the last column is the present. before: (B, k - 1, D), what came
    before x; zeros unless given. Returns (B, T, D).
    """
    T, n_back = x.shape[1], weight.shape[1] - 1
    seen = F.pad(x, (0, 0, n_back, 0)) if before is None else torch.cat((before, x), dim=1)  # (B, k - 1 + T, D)
    y = x * weight[:, n_back]
    for i in range(n_back):
        y = torch.addcmul(y, seen[:, i : i + T], weight[:, i])
    return y


def short_convolution_moved(width: int) -> int:
    """Numbers per channel and position that `short_convolution` leaves behind: padded input and each tap's sum.

    Each is written and read once; the last sum is the output.
    """
    return 2 * (1 + width)


class ShortConvolution(nn.Module):
    """`short_convolution` with learned taps, drawn uniformly from -1/sqrt(width) to 1/sqrt(width) as torch's are.

    Padding on the right changes no real position; whoever takes other masks hides positions beforehand.
    """

    def __init__(self, d: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d, width))
        nn.init.uniform_(self.weight, -(width**-0.5), width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve whole sequences: (B, T, d) -> (B, T, d)."""
        return short_convolution(x, self.weight)

    def prefill(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Also the last width - 1 inputs (B, width - 1, d), zeros before the first one: the state for `step`."""
        return self(x), self._last(F.pad(x, (0, 0, self.weight.shape[1] - 1, 0)))

    def step(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """One more position x (B, d) behind the state: the output (B, d) and the next state. Nothing is written to."""
        seen = torch.cat((before, x[:, None]), dim=1)  # (B, width, d)
        return (seen * self.weight.T).sum(1), seen[:, 1:]

    def _last(self, seen: Tensor) -> Tensor:
        return seen[:, seen.shape[1] - (self.weight.shape[1] - 1) :].clone()

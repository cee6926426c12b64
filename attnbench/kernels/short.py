"""Short causal convolution of each channel with a few taps of its own, as in H3 (Fu et al. 2023, arXiv 2212.14052).

A sum of shifted products: for the usual three or four taps that is faster on a CPU than torch's grouped convolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

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
        return self.resume(x, self.nothing(x))

    def nothing(self, x: Tensor) -> Tensor:
        """The state before the first position: zeros (B, width - 1, d), with B and dtype of x (B, T, .)."""
        d, width = self.weight.shape
        return x.new_zeros(len(x), width - 1, d)

    def resume(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Positions x (B, T, d) behind the state: outputs (B, T, d) and the next state. Nothing is written to."""
        n = before.shape[1]
        seen = torch.cat((before, x[:, max(0, x.shape[1] - n) :]), dim=1)
        return short_convolution(x, self.weight, before), seen[:, seen.shape[1] - n :].clone()

    def step(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """One more position x (B, d) behind the state: the output (B, d) and the next state. Nothing is written to."""
        seen = torch.cat((before, x[:, None]), dim=1)  # (B, width, d)
        return (seen * self.weight.T).sum(1), seen[:, 1:]


class ShortConvolutions(nn.ModuleDict):
    """A `ShortConvolution` behind each of several maps, by the map's name; none where width is 0."""

    def __init__(self, maps: Mapping[str, nn.Linear], width: int) -> None:
        channels = {name: layer.out_features for name, layer in maps.items()} if width else {}
        super().__init__({name: ShortConvolution(d, width) for name, d in channels.items()})

    def nothing(self, x: Tensor) -> dict[str, Tensor]:
        """The states before the first position, by name; x as in `ShortConvolution.nothing`."""
        return {name: layer.nothing(x) for name, layer in self._layers()}

    def forward(self, maps: Sequence[Tensor], past: Mapping[str, Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
        """What the maps made (B, T, d), in their order, convolved behind the states in `past`; and the next states."""
        ys, after = list(maps), {}
        for i, (name, layer) in enumerate(self._layers()):
            ys[i], after[name] = layer.resume(ys[i], past[name])
        return ys, after

    def _layers(self) -> Iterator[tuple[str, ShortConvolution]]:
        for name, layer in self.items():
            assert isinstance(layer, ShortConvolution)
            yield name, layer

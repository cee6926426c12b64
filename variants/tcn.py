"""Temporal convolution (`tcn`). Bai, Kolter and Koltun 2018, arXiv 1803.01271, section 3.

    h_t = relu(sum over j < k of W_j x_{t - j s}),  y_t = relu(sum over j < k of V_j h_{t - j s});  s = 2^i
    what stands before the sequence is 0; L layers see the last 1 + 2 (k - 1) (2^L - 1) positions, x_t among them

    k         kernel         taps of a convolution
    s         dilation       how far apart they stand, by layer
    i         spec.layer     which layer this is, from 0
    W_j, V_j  first, second  (d_model, d_model) each
    h, y      h, y           between both convolutions, and the output

How it runs: two dilated `conv1d`. While decoding, the state is what the next position still sees of x and of h.

Departures: no weight normalisation and no dropout; the residual sum is the block's, in front of its own norm; no bias,
so that a position that sees no key gives 0; torch's initial weights. The dilation begins again at 1 where it would pass
max_T, as in WaveNet. The bidirectional form is ours: taps stand on both sides, for an even k one more in the past.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from attnbench.mixer import Claim, Flops, Mixer, Spec, State, Use, check_count

NO_CROSS = "a convolution reads one sequence, so there is no cross role"


class TCN(Mixer):
    """Two dilated convolutions with a ReLU behind each."""

    claim = Claim(time="T d^2 kernel", memory="T d", sequential="1", path="log T")
    positions = "none"

    def __init__(self, spec: Spec, *, kernel: Annotated[int, Ge(1)] = 3) -> None:
        super().__init__(spec)
        if spec.role == "cross":
            raise ValueError(NO_CROSS)
        check_count("kernel", kernel)
        self.kernel = kernel
        self.dilation = 2 ** (spec.layer % spec.max_T.bit_length())
        n_ahead = 0 if spec.role == "causal" else (kernel - 1) // 2
        self.back, self.ahead = (kernel - 1 - n_ahead) * self.dilation, n_ahead * self.dilation
        self.first, self.second = (
            nn.Conv1d(spec.d_model, spec.d_model, kernel, dilation=self.dilation, bias=False) for _ in range(2)
        )

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: no cross role."""
        return NO_CROSS if spec.role == "cross" else super().unsupported(spec, use, **options)

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`; a hidden position counts as 0 in both convolutions."""
        self._check_inputs(x, context, key_mask)
        h = _convolved(self.first, self._padded(x, key_mask))
        return _convolved(self.second, self._padded(h, key_mask))

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Tap by tap: each adds the whole sequence, shifted, to the output."""
        for weight in (self.first.weight, self.second.weight):
            x = x if key_mask is None else x.where(key_mask[..., None], 0.0)
            shifts = range(self.back, -self.ahead - 1, -self.dilation)
            taps = [F.pad(x, (0, 0, max(0, s), max(0, -s)))[:, max(0, -s) :][:, : x.shape[1]] for s in shifts]
            x = torch.stack([tap @ weight[:, :, n].T for n, tap in enumerate(taps)]).sum(0).relu()
        return x

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Read the prompt; the state is the last `back` positions of x and of h, (B, back, d_model) each."""
        self._check_inputs(x, context, key_mask)
        seen = h = self._padded(x, key_mask)
        y = x
        if x.shape[1]:
            h = self._padded(_convolved(self.first, seen), key_mask)
            y = _convolved(self.second, h)
        T = x.shape[1]
        return y, {"x": seen[:, T : T + self.back].clone(), "h": h[:, T : T + self.back].clone()}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One position of each convolution. No state is written to."""
        seen = torch.cat((state["x"], x[:, None]), dim=1)  # (B, back + 1, d_model)
        h = torch.cat((state["h"], _convolved(self.first, seen)), dim=1)
        return _convolved(self.second, h)[:, 0], {"x": seen[:, 1:], "h": h[:, 1:]}

    def flops(self, T: int, S: int) -> Flops:
        """Taps inside the sequence; executed, those outside too."""
        shifts = range(-self.ahead, self.back + 1, self.dilation)
        taps, d_model = sum(max(0, T - abs(shift)) for shift in shifts), self.spec.d_model
        return self._core(taps, T, 4.0 * T * d_model)  # x in, h out and in, y out

    def step_flops(self, T: int, S: int) -> Flops:
        """The taps that reach into the T tokens; both states are copied to drop their oldest position."""
        taps = min(self.kernel, T // self.dilation + 1)
        return self._core(taps, 1, 2.0 * self.spec.d_model * (2 * (self.back + 1) + self.kernel + 1))

    def _core(self, taps: int, T: int, moved: float) -> Flops:
        per_tap = 4.0 * self.spec.d_model**2  # both convolutions
        return Flops(per_tap * taps, 0.0, per_tap * self.kernel * T, core_moved=moved, projection_moved=0.0)

    def _padded(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """(B, T, d_model) -> (B, back + T + ahead, d_model), 0 around it and where hidden."""
        if key_mask is not None:
            x = x.masked_fill(~key_mask[..., None], 0.0)
        return F.pad(x, (0, 0, self.back, self.ahead))


def _convolved(layer: nn.Conv1d, x: Tensor) -> Tensor:
    """(B, n, d_model) -> (B, n - back - ahead, d_model)."""
    y: Tensor = layer(x.mT)
    return y.relu_().mT

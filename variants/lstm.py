"""Long short-term memory. Hochreiter and Schmidhuber 1997; the forget gate is from Gers, Schmidhuber and Cummins 2000.

    i, f, o = sigmoid(W x_t + U h_{t-1} + b), each with weights of its own;  g = tanh(W x_t + U h_{t-1} + b)
    c_t = f * c_{t-1} + i * g;  h_t = o * tanh(c_t)

    W, U      w_ih, w_hh     input and recurrent maps, gates stacked in the order i, f, g, o
    b         b_ih + b_hh    1 for the forget gate (Jozefowicz et al. 2015), else 0
    h, c      h, c           output and cell state

Departures: U starts orthogonal; a bidirectional layer is two directions of d_model / 2, concatenated. There are no
heads, and no map out: h is the output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnbench.mixer import Claim, Flops, Mixer, Spec, State, Use


class LSTM(Mixer):
    """One layer of torch's LSTM, in one direction or in two."""

    claim = Claim(time="T d^2", memory="T d")
    positions = "none"

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        if reason := _misfit(spec):
            raise ValueError(reason)
        two = spec.role == "bidirectional"
        self.rightward = _lstm(spec.d_model, spec.d_model // 2 if two else spec.d_model)
        self.leftward = _lstm(spec.d_model, spec.d_model // 2) if two else None

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: no cross role, no odd d_model in two directions, no padding but on the right of whole sequences."""
        if reason := super().unsupported(spec, use, **options) or _misfit(spec):
            return reason
        if use.mask == "any":
            return "a recurrence cannot skip hidden positions, only padding on the right"
        if use.mask == "right" and use.decodes:
            return "a padded prompt would leave its padding in the state"
        return None

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`. Raises ValueError when key_mask hides more than padding on the right."""
        self._check_context(context)
        order = None if key_mask is None else _reversal(key_mask)
        y: Tensor = self.rightward(x)[0]
        if self.leftward is None:
            return y  # padding on the right comes after every real position
        return torch.cat((y, _reverse(self.leftward(_reverse(x, order))[0], order)), dim=-1)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Read the prompt; the state is h and c, (B, d_model) each. Takes no key_mask."""
        self._check_context(context)
        if key_mask is not None:
            raise ValueError("a padded prompt would leave its padding in the state: prefill takes no key_mask")
        if x.shape[1] == 0:
            zero = x.new_zeros(x.shape[0], self.spec.d_model)
            return x, {"h": zero, "c": zero}
        y, (h, c) = self.rightward(x)
        return y, {"h": h[0], "c": c[0]}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One cell update. No state is written to."""
        y, (h, c) = self.rightward(x[:, None], (state["h"][None], state["c"][None]))
        return y[:, 0], {"h": h[0], "c": c[0]}

    def flops(self, T: int, S: int) -> Flops:
        """The recurrent maps are the core, the input maps the projection."""
        lstms = [self.rightward] if self.leftward is None else [self.rightward, self.leftward]
        n_input = sum(lstm.all_weights[0][0].numel() for lstm in lstms)
        n_recurrent = sum(lstm.all_weights[0][1].numel() for lstm in lstms)
        return Flops(2.0 * T * n_recurrent, projection=2.0 * T * n_input)


def _misfit(spec: Spec) -> str | None:
    if spec.role == "cross":
        return "a recurrence reads one sequence, so there is no cross role"
    if spec.role == "bidirectional" and spec.d_model % 2:
        return f"two directions of d_model / 2 need an even d_model, got {spec.d_model}"
    return None


@torch.no_grad()
def _lstm(d_in: int, d_out: int) -> nn.LSTM:
    lstm = nn.LSTM(d_in, d_out, batch_first=True)
    _, w_hh, b_ih, b_hh = lstm.all_weights[0]
    for gate in w_hh.chunk(4):
        nn.init.orthogonal_(gate)
    b_hh.zero_()
    b_ih.zero_()
    b_ih[d_out : 2 * d_out] = 1.0
    return lstm


def _reversal(key_mask: Tensor) -> Tensor:
    """Positions that turn each row's real part around and leave its padding in place: (B, T)."""
    lengths = key_mask.sum(1, keepdim=True)  # (B, 1)
    position = torch.arange(key_mask.shape[1], device=key_mask.device)
    real = position < lengths
    if not torch.equal(real, key_mask):
        raise ValueError("a recurrence cannot skip hidden positions: key_mask may only hide padding on the right")
    return torch.where(real, lengths - 1 - position, position)


def _reverse(x: Tensor, order: Tensor | None) -> Tensor:
    """Turn x (B, T, .) around in time, by `order` (B, T) where given."""
    return x.flip(1) if order is None else x.gather(1, order[:, :, None].expand_as(x))

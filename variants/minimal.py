"""Minimal recurrent networks (`mingru`, `minlstm`). Feng et al. 2024, arXiv 2410.01201 ("Were RNNs All We Needed?").

    mingru    z_t = sigmoid(W_z x_t + b_z);  c_t = g(W_h x_t + b_h);  h_t = (1 - z_t) h_{t-1} + z_t c_t
    minlstm   f_t = sigmoid(W_f x_t + b_f);  i_t = sigmoid(W_i x_t + b_i);  c_t = g(W_h x_t + b_h)
              h_t = (f_t h_{t-1} + i_t c_t) / (f_t + i_t)
    g(u) = u + 1/2 for u >= 0, else sigmoid(u): the paper's, so that c is positive and continuous

    W_z, W_f, W_i, W_h   W_in, in this order   input maps, stacked; c comes last
    e                    expand                h is e times as wide as the output; from e = 2 on, W_o maps it back
    z, f, i              keep                  what is left of h_{t-1}: 1 - z, or f / (f + i); c has the rest

How it runs: gates do not look at h, so that h is a `diagonal_scan`: all of them first, then the scan.

Departures: the scan needs no logarithms, and any h would do; f / (f + i) is the sigmoid of log f - log i, which no gate
overflows. Biases are 0 at the start. h_0 is 0. A bidirectional layer is two directions of d_model / 2, concatenated.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from attnbench.kernels import (
    at_least_float32,
    both_ways,
    check_no_padding,
    diagonal_scan,
    halves_reason,
    padding_reason,
    recurrence_reason,
)
from attnbench.mixer import Claim, Flops, Mixer, Spec, State, Use, check_count


class _Direction(nn.Module):
    """Gates of one direction: d_in channels in, `expand` times d_out states, d_out channels out."""

    def __init__(self, d_in: int, d_out: int, n_gates: int, expand: int) -> None:
        super().__init__()
        self.d_state = expand * d_out
        self.W_in = nn.Linear(d_in, (n_gates + 1) * self.d_state)
        nn.init.zeros_(self.W_in.bias)
        self.W_out = None if expand == 1 else nn.Linear(self.d_state, d_out, bias=False)

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """How much of h_{t-1} is kept, and what is written: (B, T, d_state) each, at least float32."""
        raise NotImplementedError

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """The input maps of x (B, T, d_in), (B, T, d_state) each."""
        return at_least_float32(self.W_in(x)).split(self.d_state, dim=-1)  # type: ignore[no-any-return, no-untyped-call]  # torch's

    def run(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs (B, T, d_out) and the last h (B, d_state), from h; T is at least 1."""
        states = diagonal_scan(*self.gates(x), h)
        return self.read(states.to(x.dtype)), states[:, -1]

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (B, T, d_out) of x (B, T, d_in), from h = 0."""
        return self.run(x)[0]

    def slow(self, x: Tensor) -> Tensor:
        """`forward` as the paper's recurrence reads, step by step."""
        h, rows = x.new_zeros(x.shape[0], self.d_state), []
        for t in range(x.shape[1]):
            h = self.cell(h, *self.W_in(x[:, t]).split(self.d_state, dim=-1))
            rows.append(h)
        return self.read(torch.stack(rows, dim=1))

    def cell(self, h: Tensor, *maps: Tensor) -> Tensor:
        """One step of the recurrence from the input maps (B, d_state)."""
        raise NotImplementedError

    def read(self, h: Tensor) -> Tensor:
        """(B, T, d_state) -> (B, T, d_out)."""
        return h if self.W_out is None else self.W_out(h)


class _GRUDirection(_Direction):
    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, c = self.split(x)
        return (-z).sigmoid(), z.sigmoid() * candidate(c)

    def cell(self, h: Tensor, *maps: Tensor) -> Tensor:
        z, c = maps
        return (1 - z.sigmoid()) * h + z.sigmoid() * torch.where(c >= 0, c + 0.5, c.sigmoid())


class _LSTMDirection(_Direction):
    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        f, i, c = self.split(x)
        log_odds = F.logsigmoid(f) - F.logsigmoid(i)
        return log_odds.sigmoid(), (-log_odds).sigmoid() * candidate(c)

    def cell(self, h: Tensor, *maps: Tensor) -> Tensor:
        f, i, c = maps
        total = f.sigmoid() + i.sigmoid()
        return (f.sigmoid() * h + i.sigmoid() * torch.where(c >= 0, c + 0.5, c.sigmoid())) / total


def candidate(u: Tensor) -> Tensor:
    """g: u + 1/2 above 0, sigmoid(u) below; the sum of two terms of which one is constant on either side."""
    return u.relu() + u.clamp(max=0).sigmoid()


class _Minimal(Mixer):
    """One layer whose gates see the input alone, in one direction or in two."""

    claim = Claim(time="T d^2 expand", memory="T d expand", sequential="T", path="T")
    positions = "none"
    direction: ClassVar[type[_Direction]]
    n_gates: ClassVar[int]

    def __init__(self, spec: Spec, *, expand: Annotated[int, Ge(1)] = 1) -> None:
        super().__init__(spec)
        check_count("expand", expand)
        if reason := _misfit(spec):
            raise ValueError(reason)
        self.expand, two = expand, spec.role == "bidirectional"
        d_out = spec.d_model // 2 if two else spec.d_model
        self.rightward, *left = (self.direction(spec.d_model, d_out, self.n_gates, expand) for _ in range(1 + two))
        self.leftward = left[0] if left else None

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: no cross role, no odd d_model in two directions, no padding but on the right of whole sequences."""
        reason = super().unsupported(spec, use, **options) or _misfit(spec)
        return reason or padding_reason(use.mask, use.decodes)

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`. Raises ValueError when key_mask hides more than padding on the right."""
        self._check_inputs(x, context, key_mask)
        return both_ways(self.rightward, self.leftward, x, key_mask)

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """The recurrence step by step, row by row without its padding, whose outputs are 0."""
        rows = []
        for b, row in enumerate(x):
            real = row if key_mask is None else row[: int(key_mask[b].sum())]
            y = both_ways(self.rightward.slow, self.leftward and self.leftward.slow, real[None]) if len(real) else real
            rows.append(F.pad(y.reshape(-1, row.shape[-1]), (0, 0, 0, len(row) - len(real))))
        return torch.stack(rows)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Read the prompt; the state is h (B, expand d_model), at least float32. Takes no key_mask."""
        self._check_inputs(x, context, key_mask)
        check_no_padding(key_mask)
        if x.shape[1] == 0:
            kind = torch.promote_types(x.dtype, torch.float32)
            return x, {"h": x.new_zeros(x.shape[0], self.rightward.d_state, dtype=kind)}
        y, h = self.rightward.run(x)
        return y, {"h": h}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of the recurrence. No state is written to."""
        y, h = self.rightward.run(x[:, None], state["h"])
        return y[:, 0], {"h": h}

    def flops(self, T: int, S: int) -> Flops:
        """The scan is the core: a multiply-add for each of the states, which no counter sees; maps, the projection."""
        layers = [self.rightward] if self.leftward is None else [self.rightward, self.leftward]
        n_states = sum(layer.d_state for layer in layers)
        weights = [layer.W_in.weight.numel() for layer in layers]
        weights += [layer.W_out.weight.numel() for layer in layers if layer.W_out is not None]
        n_maps, n_out = (self.n_gates + 1) * n_states, 0 if self.expand == 1 else n_states + self.spec.d_model
        return Flops(
            2.0 * T * n_states,
            2.0 * T * sum(weights),
            core_executed=0.0,
            core_moved=float(T * (n_maps + 5 * n_states)),  # maps in; what is kept and written, out and in; h out
            projection_moved=float(T * (self.spec.d_model + n_maps + n_out)),
        )

    def step_flops(self, T: int, S: int) -> Flops:
        """One step of the recurrence."""
        return self.flops(1, 1)


class MinGRU(_Minimal):
    """A gated recurrent unit without the reset gate, and without h in its gate."""

    direction = _GRUDirection
    n_gates = 1


class MinLSTM(_Minimal):
    """An LSTM without output gate and cell state, its two gates scaled to sum to 1, and without h in them."""

    direction = _LSTMDirection
    n_gates = 2


def _misfit(spec: Spec) -> str | None:
    return recurrence_reason(spec.role) or halves_reason(spec.role, spec.d_model)

"""Recurrent networks. Elman 1990 (`rnn`); Cho et al. 2014 (`gru`); Hochreiter and Schmidhuber 1997 (`lstm`).

    rnn    h_t = tanh(W x_t + U h_{t-1} + b)
    gru    r, z = sigmoid(W x_t + U h_{t-1} + b), each with weights of its own
           n = tanh(W x_t + b + r * (U h_{t-1} + b'));  h_t = (1 - z) * n + z * h_{t-1}
    lstm   i, f, o = sigmoid(W x_t + U h_{t-1} + b), each with weights of its own;  g = tanh(W x_t + U h_{t-1} + b)
           c_t = f * c_{t-1} + i * g;  h_t = o * tanh(c_t)      (f is from Gers, Schmidhuber and Cummins 2000)

    W, U      w_ih, w_hh     input and recurrent maps, gates stacked in the order r, z, n or i, f, g, o
    b         b_ih + b_hh    1 for the LSTM's forget gate f (Jozefowicz et al. 2015), else 0
    h, c      h, c           output, and the LSTM's cell state

How it runs: torch's fused layers. Their backward passes of `rnn` and `gru` are slow on a CPU; there, in float32 and
float64, these two run time loops of their own, which leave to each step back what must wait for the next one, and take
the gradients of weights as matrix products over all steps at once. Such a loop has no second derivative.

Departures: U starts orthogonal; the reset gate r acts after the product with U, as in cuDNN, so that one product serves
all gates; a bidirectional layer is two directions of d_model / 2, concatenated. There are no heads, and no map out: h
is the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnbench.kernels import both_ways, check_no_padding, halves_reason, padding_reason, recurrence_reason
from attnbench.mixer import Claim, Flops, Mixer, Spec, State, Use

OWN_LOOP_DTYPES = (torch.float32, torch.float64)


class _Recurrent(Mixer):
    """One layer of a network that torch has, in one direction or in two."""

    claim = Claim(time="T d^2", memory="T d", sequential="T", path="T")
    positions = "none"
    layer_class: ClassVar[type[nn.RNN | nn.GRU | nn.LSTM]]
    own_loop: ClassVar[type[torch.autograd.Function] | None] = None
    state_names: ClassVar[tuple[str, ...]] = ("h",)

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        if reason := _misfit(spec):
            raise ValueError(reason)
        two = spec.role == "bidirectional"
        self.rightward = self._direction(spec.d_model, spec.d_model // 2 if two else spec.d_model)
        self.leftward = self._direction(spec.d_model, spec.d_model // 2) if two else None

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: no cross role, no odd d_model in two directions, no padding but on the right of whole sequences."""
        reason = super().unsupported(spec, use, **options) or _misfit(spec)
        return reason or padding_reason(use.mask, use.decodes)

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`. Raises ValueError when key_mask hides more than padding on the right."""
        self._check_inputs(x, context, key_mask)
        leftward = None if self.leftward is None else partial(self._scan, self.leftward)
        return both_ways(partial(self._scan, self.rightward), leftward, x, key_mask)

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Cell by cell, row by row; in two directions over the real part of a row, with 0 behind it."""
        rows = []
        for b, row in enumerate(x):
            n = len(row) if key_mask is None else int(key_mask[b].sum())
            y = self._cells(self.rightward, row[:n] if self.leftward else row)
            if self.leftward:
                back = self._cells(self.leftward, row[:n].flip(0)).flip(0)
                y = F.pad(torch.cat((y, back), dim=-1), (0, 0, 0, len(row) - n))
            rows.append(y)
        return torch.stack(rows)

    def _cells(self, layer: nn.RNNBase, x: Tensor) -> Tensor:
        """One direction over x (T, d_model): (T, d_out)."""
        last, hs = tuple(x.new_zeros(layer.hidden_size) for _ in self.state_names), [x.new_zeros(0, layer.hidden_size)]
        for x_t in x:
            last = self._cell(x_t, last, *layer.all_weights[0])
            hs.append(last[0][None])
        return torch.cat(hs)

    @staticmethod
    def _cell(
        x: Tensor, last: tuple[Tensor, ...], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
    ) -> tuple[Tensor, ...]:
        """The state after x (d_model), written out."""
        raise NotImplementedError

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Read the prompt; the state is h, an LSTM's h and c, (B, d_model) each. Takes no key_mask."""
        self._check_inputs(x, context, key_mask)
        check_no_padding(key_mask)
        if x.shape[1] == 0:
            return x, dict.fromkeys(self.state_names, x.new_zeros(x.shape[0], self.spec.d_model))
        y, last = _layer(self.rightward, x)
        return y, self._state(last)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One cell update. No state is written to."""
        last = tuple(state[name][None] for name in self.state_names)
        y, last = _layer(self.rightward, x[:, None], last if len(last) > 1 else last[0])
        return y[:, 0], self._state(last)

    def flops(self, T: int, S: int) -> Flops:
        """The recurrent maps are the core, the input maps the projection."""
        layers = [self.rightward] if self.leftward is None else [self.rightward, self.leftward]
        n_input = sum(layer.all_weights[0][0].numel() for layer in layers)
        n_recurrent = sum(layer.all_weights[0][1].numel() for layer in layers)
        n_gates, d_model = sum(len(layer.all_weights[0][0]) for layer in layers), self.spec.d_model
        moved = float(T * (n_gates + d_model))  # x in and the gates' inputs out; these in, and h out
        return Flops(2.0 * T * n_recurrent, 2.0 * T * n_input, core_moved=moved, projection_moved=moved)

    def step_flops(self, T: int, S: int) -> Flops:
        """One cell update."""
        return self.flops(1, 1)

    def _scan(self, layer: nn.RNNBase, x: Tensor) -> Tensor:
        """One direction over x (B, T, d_model), from h = 0: (B, T, d_out)."""
        if self.own_loop is None or x.device.type != "cpu" or x.dtype not in OWN_LOOP_DTYPES:
            return _layer(layer, x)[0]
        y: Tensor = self.own_loop.apply(x.transpose(0, 1), *layer.all_weights[0])  # type: ignore[no-untyped-call]  # torch's is
        return y.transpose(0, 1)  # (T, B, d_out) -> (B, T, d_out)

    def _state(self, last: Tensor | tuple[Tensor, ...]) -> State:
        """The last h (1, B, d_model), or h and c, as torch gives them, by name."""
        parts = last if isinstance(last, tuple) else (last,)
        return {name: part[0] for name, part in zip(self.state_names, parts, strict=True)}

    @classmethod
    @torch.no_grad()
    def _direction(cls, d_in: int, d_out: int) -> nn.RNNBase:
        layer = cls.layer_class(d_in, d_out, batch_first=True)
        _, w_hh, b_ih, b_hh = layer.all_weights[0]
        for gate in w_hh.chunk(len(w_hh) // d_out):
            nn.init.orthogonal_(gate)
        b_ih.zero_()
        b_hh.zero_()
        return layer


class _ElmanLoop(torch.autograd.Function):
    """h_t = tanh(W x_t + U h_{t-1} + b) over time-major x (T, B, d_in), from h_0 = 0: (T, B, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
        x = x.contiguous()
        h = F.linear(x, w_ih, b_ih + b_hh)  # h_t takes the place of W x_t + b
        with torch.inference_mode():  # autograd's bookkeeping would cost as much as a small step
            u, h_t = w_hh.T.contiguous(), torch.zeros_like(h[0])
            for next_t in h.unbind():
                h_t = next_t.addmm_(h_t, u).tanh_()
        ctx.save_for_backward(x, h, w_ih, w_hh)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, h, w_ih, w_hh = ctx.saved_tensors
        da = (h * h).neg_().add_(1)  # h_t by the argument of its tanh; then the loss by it
        with torch.inference_mode():
            dh_t, after_t = torch.empty_like(h[0]), torch.zeros_like(h[0])
            for dy_t, da_t in _backwards(grads[0], da):
                torch.addmm(dy_t, after_t, w_hh, out=dh_t)
                after_t = da_t.mul_(dh_t)
        dx, dw_ih, db = _linear_gradients(da, x, w_ih)
        return dx, dw_ih, _weight_gradient(da[1:], h[:-1]), db, db


class _GatedLoop(torch.autograd.Function):
    """The gated unit over time-major x (T, B, d_in), from h_0 = 0: (T, B, d)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
        (T, B, _), d = x.shape, w_hh.shape[1]
        x = x.contiguous()
        gates = F.linear(x, w_ih[: 2 * d], b_ih[: 2 * d] + b_hh[: 2 * d])  # r_t and z_t take the place of W x_t + b
        n = F.linear(x, w_ih[2 * d :], b_ih[2 * d :])  # so does n_t
        r, z = gates.chunk(2, dim=-1)  # views, (T, B, d) each
        m, h = torch.empty_like(n), x.new_zeros(T + 1, B, d)  # m_t = U h_{t-1} + b' of n; h has h_0 too
        with torch.inference_mode():  # autograd's bookkeeping would cost as much as a small step
            u_gates, u_n = (u.T.contiguous() for u in (w_hh[: 2 * d], w_hh[2 * d :]))
            h_t, b_n, steps = h[0], b_hh[2 * d :], (part.unbind() for part in (gates, r, z, m, n, h[1:]))
            for gates_t, r_t, z_t, m_t, n_t, next_t in zip(*steps, strict=True):
                gates_t.addmm_(h_t, u_gates).sigmoid_()
                torch.addmm(b_n, h_t, u_n, out=m_t)
                n_t.addcmul_(r_t, m_t).tanh_()
                h_t = torch.lerp(n_t, h_t, z_t, out=next_t)
        ctx.save_for_backward(x, h, r, z, m, n, w_ih, w_hh)
        return h[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, h, r, z, m, n, w_ih, w_hh = ctx.saved_tensors
        (T, B, d), dh = n.shape, torch.empty_like(n)
        da = n.new_empty(T, B, 3, d)  # h_t by the arguments of r and z, and by m; then the loss by them
        dr, dz, dm = da.unbind(2)
        slope = (n * n).neg_().add_(1)
        slope.addcmul_(slope, z, value=-1)  # (1 - n^2) (1 - z): h_t by the argument of n
        torch.mul(slope, r, out=dm)
        torch.mul(dm, m, out=dr).addcmul_(dr, r, value=-1)
        torch.sub(h[:-1], n, out=dz).mul_(z).addcmul_(dz, z, value=-1)
        flat = da.flatten(2)  # (T, B, 3 d), a view
        with torch.inference_mode():
            flat_after, dh_after, z_after = (torch.zeros_like(part[0]) for part in (flat, dh, z))
            for dy_t, dh_t, da_t, flat_t, z_t in _backwards(grads[0], dh, da, flat, z):
                torch.addmm(dy_t, flat_after, w_hh, out=dh_t).addcmul_(dh_after, z_after)
                da_t.mul_(dh_t[:, None])
                flat_after, dh_after, z_after = flat_t, dh_t, z_t
        dw_hh, db_hh = _weight_gradient(flat, h[:-1]), flat.sum((0, 1))
        torch.mul(dh, slope, out=dm)  # by the argument of n
        del slope  # room for dx
        dx, dw_ih, db_ih = _linear_gradients(flat, x, w_ih)
        return dx, dw_ih, dw_hh, db_ih, db_hh


def _backwards(*parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Steps of tensors (T, ...), the last one first."""
    return zip(*(reversed(part.unbind()) for part in parts), strict=True)


def _linear_gradients(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, w and b in y = F.linear(x, w, b) from dy (T, B, d_out)."""
    return dy @ w, _weight_gradient(dy, x), dy.sum((0, 1))


def _weight_gradient(dy: Tensor, x: Tensor) -> Tensor:
    """dy (T, B, d_out) and x (T, B, d_in) give (d_out, d_in), in one product over all steps."""
    return dy.flatten(0, 1).T @ x.flatten(0, 1)


class Elman(_Recurrent):
    """One layer of torch's RNN with tanh."""

    layer_class = nn.RNN
    own_loop = _ElmanLoop

    @staticmethod
    def _cell(
        x: Tensor, last: tuple[Tensor, ...], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
    ) -> tuple[Tensor, ...]:
        return ((w_ih @ x + b_ih + w_hh @ last[0] + b_hh).tanh(),)


class GRU(_Recurrent):
    """One layer of torch's GRU."""

    layer_class = nn.GRU
    own_loop = _GatedLoop

    @staticmethod
    def _cell(
        x: Tensor, last: tuple[Tensor, ...], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
    ) -> tuple[Tensor, ...]:
        (r, z, n), (r_h, z_h, n_h) = (w_ih @ x + b_ih).chunk(3), (w_hh @ last[0] + b_hh).chunk(3)
        r, z = (r + r_h).sigmoid(), (z + z_h).sigmoid()
        return ((1 - z) * (n + r * n_h).tanh() + z * last[0],)


class LSTM(_Recurrent):
    """One layer of torch's LSTM."""

    layer_class = nn.LSTM
    state_names = ("h", "c")

    @staticmethod
    def _cell(
        x: Tensor, last: tuple[Tensor, ...], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor
    ) -> tuple[Tensor, ...]:
        i, f, g, o = (w_ih @ x + b_ih + w_hh @ last[0] + b_hh).chunk(4)
        c = f.sigmoid() * last[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    @classmethod
    @torch.no_grad()
    def _direction(cls, d_in: int, d_out: int) -> nn.RNNBase:
        layer = super()._direction(d_in, d_out)
        layer.all_weights[0][2][d_out : 2 * d_out] = 1.0  # the forget gate's b_ih
        return layer


def _layer(layer: nn.RNNBase, x: Tensor, last: Any = None) -> tuple[Tensor, Any]:
    """torch's layer from the state `last`: outputs and the last state.

    On a GPU it is in training mode where gradients are wanted, for there alone cuDNN keeps what they need. Without
    dropout the mode means nothing else.
    """
    if x.device.type != "cpu":
        layer.train(torch.is_grad_enabled())
    y, last = layer(x, last)
    return y, last


def _misfit(spec: Spec) -> str | None:
    return recurrence_reason(spec.role) or halves_reason(spec.role, spec.d_model)

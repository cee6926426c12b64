"""Controls: uniform attention (`mean`), Zhang et al. 2018, arXiv 1805.00631; no attention (`none`).

    mean    y_i = W_o (1 / n_i) sum over j of W_v x_j, over the n_i keys j that query i sees: j <= i if causal, else all
    none    y_i = W_o W_v x_i

    W_v, W_o   W_v, W_o         (d_model, d_model) each
    n_i        count            of real keys
    sum        total, pooled    running while decoding

What attention does beyond `mean` is choose; what `mean` does beyond `none` is mix. `none` shows what a task gives away
to a model that looks at one position at a time, and what all but the mixing costs.

Departures: `mean` has no gate and no feed-forward of its own, and a cross role as well. `none` is in no paper in this
form (arXiv 2210.07661 has a control without attention too): it keeps both maps of values, so that it is no shallower
than attention. There are no heads, no W_q and no W_k. Sums are float32 for half-precision inputs. A query that sees no
key gives 0 in `mean`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnbench.kernels import at_least_float32
from attnbench.mixer import Claim, Flops, Mixer, Spec, State, Use

NO_CONTEXT = "without mixing, nothing is read from a context, so there is no cross role"


class _Values(Mixer):
    """W_v and W_o, with whatever stands between them."""

    claim = Claim(time="T d^2", memory="T d", sequential="1")
    equivariant = True

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self.W_v = nn.Linear(spec.d_model, spec.d_model, bias=False)
        self.W_o = nn.Linear(spec.d_model, spec.d_model, bias=False)


class Mean(_Values):
    """The mean of the values that each query sees."""

    claim = Claim(time="T d^2", memory="T d", sequential="1", path="1")

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`."""
        self._check_inputs(x, context, key_mask)
        if self.spec.role == "causal":
            total, count = _running(self.W_v(x), key_mask)
            return self._divide(total, count, x.dtype)
        return self._pooled(x if context is None else context, key_mask).expand(x.shape)

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Weights 1 over the keys that each query sees, by their number."""
        keys = x if context is None else context
        seen = x.new_ones(len(x), x.shape[1], keys.shape[1])
        seen = seen.tril() if self.spec.role == "causal" else seen
        seen = seen if key_mask is None else seen * key_mask[:, None]
        y: Tensor = self.W_o((seen / seen.sum(-1, keepdim=True).clamp(min=1)) @ self.W_v(keys))
        return y

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Keep the sum and the number of the prompt's keys, or in the cross role the one output there is."""
        self._check_inputs(x, context, key_mask)
        if context is not None:
            pooled = self._pooled(context, key_mask)
            return pooled.expand(x.shape), {"pooled": pooled[:, 0]}
        total, count = _whole(self.W_v(x), key_mask)
        return self(x, key_mask=key_mask), {"total": total, "count": count}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Add one value (causal) and divide. No state is written to."""
        if self.spec.role == "cross":
            return state["pooled"], state
        state = {"total": state["total"] + self.W_v(x), "count": state["count"] + 1}
        return self._divide(**state, dtype=x.dtype), state

    def flops(self, T: int, S: int) -> Flops:
        """Sums are no matrix products. Where all queries see the same, W_o is applied once."""
        causal, d_model = self.spec.role == "causal", self.spec.d_model
        n_outputs = T if causal else 1
        return Flops(
            0.0,
            2.0 * (S + n_outputs) * d_model**2,
            core_moved=float(d_model * (S + n_outputs + (2 * T if causal else 0))),
            projection_moved=2.0 * (S + n_outputs) * d_model,
        )

    def step_flops(self, T: int, S: int) -> Flops:
        """Both maps once; in the cross role the output stands in the state."""
        one = self.flops(1, 1)
        return one if self.spec.role == "causal" else Flops(0.0, core_moved=0.0, projection_moved=0.0)

    def _pooled(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """The output that all queries share: (B, 1, d_model)."""
        total, count = _whole(self.W_v(x), key_mask)
        return self._divide(total, count, x.dtype)[:, None]

    def _divide(self, total: Tensor, count: Tensor, dtype: torch.dtype) -> Tensor:
        y: Tensor = self.W_o((total / count.clamp(min=1)).to(dtype))
        return y


class NoMixing(_Values):
    """The values of each position, as they are: nothing is mixed."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        if spec.role == "cross":
            raise ValueError(NO_CONTEXT)

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: no cross role."""
        return super().unsupported(spec, use, **options) or (NO_CONTEXT if spec.role == "cross" else None)

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`. A key_mask changes nothing: no position sees another."""
        self._check_inputs(x, context, key_mask)
        return self._alone(x)

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Both maps as one matrix."""
        return x @ (self.W_o.weight @ self.W_v.weight).T

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """There is nothing to keep: the state is empty."""
        return self(x, context=context, key_mask=key_mask), {}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The same as at any position."""
        return self._alone(x), state

    def flops(self, T: int, S: int) -> Flops:
        """The two maps."""
        d_model = self.spec.d_model
        return Flops(0.0, 4.0 * T * d_model**2, core_moved=0.0, projection_moved=4.0 * T * d_model)

    def step_flops(self, T: int, S: int) -> Flops:
        """The same as at any position."""
        return self.flops(1, 1)

    def _alone(self, x: Tensor) -> Tensor:
        y: Tensor = self.W_o(self.W_v(x))
        return y


def _shown(v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Values (B, S, d_model), 0 where hidden, and (B, S, 1), 1 where shown; at least float32, for long sums."""
    v = at_least_float32(v)
    real = v.new_ones(*v.shape[:2], 1) if key_mask is None else key_mask[:, :, None].to(v.dtype)
    return v if key_mask is None else v.masked_fill(real == 0, 0.0), real


def _whole(v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The sum (B, d_model) and the number (B, 1) of all keys."""
    v, real = _shown(v, key_mask)
    return v.sum(1), real.sum(1)


def _running(v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums (B, T, d_model) and numbers (B, T, 1) of the keys up to each position."""
    v, real = _shown(v, key_mask)
    return v.cumsum(1), real.cumsum(1)

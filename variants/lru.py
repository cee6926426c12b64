"""Linear recurrent unit (`lru`). Orvieto et al. 2023, arXiv 2303.06349 ("Resurrecting RNNs for long sequences").

    h_t = lambda h_{t-1} + gamma (B x_t);  y_t = Re(C h_t) + D x_t;  lambda = exp(-exp(nu) + i exp(theta)), elementwise
    at the start |lambda| is uniform on the ring from r_min to r_max, its phase on [0, max_phase], and
    gamma = sqrt(1 - |lambda|^2), so that h keeps the size of its inputs

    lambda    nu, theta   eigenvalues, complex, n_state of them; logarithms of decay and phase are learned
    gamma     gamma       its logarithm
    B, C      B, C        complex maps (n_state, d_model) and (d_model, n_state), as real ones: real and imaginary parts
                          of a state stand side by side, so that h is a view; imaginary ones of C with a minus
    D         D           skip, one number a channel

How it runs: both maps are real matrix products over all positions, between them a complex `diagonal_scan`.

Departures: n_state is d_model unless given. Bidirectional, as in S5 (Smith et al. 2023, arXiv 2208.04933): the same
recurrence runs both ways, and C reads both states. The layer is the unit alone, without norm, dropout and GLU. States
are float32 for half-precision inputs. Recurrent numbers learn at half the rate of the others, and they do not decay.
"""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn

from attnbench.kernels import (
    at_least_float32,
    both_ways,
    check_no_padding,
    diagonal_scan,
    padding_reason,
    recurrence_reason,
)
from attnbench.mixer import Claim, Flops, Mixer, Spec, State, Use, check_count


class LRU(Mixer):
    """A diagonal linear recurrence with complex states."""

    claim = Claim(time="T d^2 + T d n_state", memory="T d + T n_state", sequential="T", path="T")
    positions = "none"
    lr_scale = MappingProxyType({"nu": 0.5, "theta": 0.5, "gamma": 0.5})

    def __init__(
        self,
        spec: Spec,
        *,
        n_state: Annotated[int, Ge(1)] | None = None,
        r_min: Annotated[float, Ge(0), Le(1)] = 0.0,
        r_max: Annotated[float, Ge(0), Le(1)] = 1.0,
        max_phase: Annotated[float, Gt(0)] = 6.28,
    ) -> None:
        super().__init__(spec)
        N = self.n_state = spec.d_model if n_state is None else n_state
        check_count("n_state", N)
        if reason := _misfit(spec, r_min, r_max, max_phase):
            raise ValueError(reason)
        n_ways, d_model = 2 if spec.role == "bidirectional" else 1, spec.d_model
        size = torch.rand(N) * (r_max**2 - r_min**2) + r_min**2  # |lambda|^2
        size = size.clamp(1e-6, 1 - 1e-6)
        self.nu = nn.Parameter((-0.5 * size.log()).log())
        self.theta = nn.Parameter((max_phase * torch.rand(N).clamp(min=1e-6)).log())
        self.gamma = nn.Parameter(0.5 * (1 - size).log())
        self.B = nn.Parameter(torch.randn(2 * N, d_model) / math.sqrt(2 * d_model))
        self.C = nn.Parameter(torch.randn(d_model, 2 * N * n_ways) / math.sqrt(N * n_ways))
        self.D = nn.Parameter(torch.randn(d_model))

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: no cross role, no ring inside out, no padding but on the right of whole sequences."""
        ring = (options.get("r_min", 0.0), options.get("r_max", 1.0), options.get("max_phase", 6.28))
        reason = super().unsupported(spec, use, **options) or _misfit(spec, *ring)
        return reason or padding_reason(use.mask, use.decodes)

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`. Raises ValueError when key_mask hides more than padding on the right."""
        self._check_inputs(x, context, key_mask)
        u = self._inputs(x)
        return self._read(both_ways(self._scan, self._scan if self._two else None, u, key_mask), x)

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Every pair (t, s) by the power of lambda between them: what is behind t, and in two directions ahead too."""
        T, log_size, phase = x.shape[1], -self.nu.exp(), self.theta.exp()
        u = _complex(self._inputs(x if key_mask is None else x * key_mask[..., None]))
        ways = []
        for sign in (1, -1) if self._two else (1,):
            at = torch.arange(T, device=x.device)
            n = (sign * (at[:, None] - at))[..., None]  # (T, T, 1) steps from s to t
            powers = torch.polar((n.clamp(min=0) * log_size).exp(), n * phase) * (n >= 0)
            ways.append(torch.einsum("tsn,bsn->btn", powers, u))
        h = torch.cat(ways, dim=-1)  # (B, T, n_ways N)
        return (h @ _complex(self.C).conj().mT).real + self.D * x

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Read the prompt; the state is h (B, 2 n_state), real and imaginary parts in turn. Takes no key_mask."""
        self._check_inputs(x, context, key_mask)
        check_no_padding(key_mask)
        h = self._scan(self._inputs(x))
        last = h[:, -1] if x.shape[1] else h.new_zeros(x.shape[0], 2 * self.n_state)
        return self._read(h, x), {"h": last}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of the recurrence. No state is written to."""
        h = self._scan(self._inputs(x[:, None]), state["h"])
        return self._read(h, x[:, None])[:, 0], {"h": h[:, 0]}

    def flops(self, T: int, S: int) -> Flops:
        """The scan is the core, 8 for a complex multiply-add, which no counter sees; B and C are the projection."""
        n_ways = 2 if self._two else 1
        maps = 2.0 * T * (self.B.numel() + self.C.numel())
        n_in, n_out, d_model = 2 * self.n_state, 2 * self.n_state * n_ways, self.spec.d_model
        return Flops(
            8.0 * T * self.n_state * n_ways,
            maps,
            core_executed=0.0,
            core_moved=float(T * (3 * n_in + n_out)),  # B x in; gamma B x out and in; h out
            projection_moved=float(T * (n_in + n_out + 4 * d_model)),  # x in, B x out, h in; C h out and in; y out
        )

    def step_flops(self, T: int, S: int) -> Flops:
        """One step of the recurrence."""
        return self.flops(1, 1)

    @property
    def _two(self) -> bool:
        return self.spec.role == "bidirectional"

    def _inputs(self, x: Tensor) -> Tensor:
        """gamma B x, (B, T, 2 N), at least float32."""
        u = at_least_float32(F.linear(x, self.B))
        return u * self.gamma.to(u.dtype).exp().repeat_interleave(2)

    def _scan(self, u: Tensor, h: Tensor | None = None) -> Tensor:
        """States (B, T, 2 N) of inputs u (B, T, 2 N), from h (B, 2 N)."""
        nu, theta = (part.to(u.dtype) for part in (self.nu, self.theta))
        lambdas = torch.polar((-nu.exp()).exp(), theta.exp())
        start = None if h is None else _complex(h)
        return torch.view_as_real(diagonal_scan(lambdas[None, None], _complex(u), start)).flatten(-2)

    def _read(self, h: Tensor, x: Tensor) -> Tensor:
        """Re(C h) + D x."""
        return torch.addcmul(F.linear(h.to(x.dtype), self.C), x, self.D)


def _complex(u: Tensor) -> Tensor:
    """(..., 2 N) -> complex (..., N), a view where u is dense."""
    return torch.view_as_complex(u.reshape(*u.shape[:-1], u.shape[-1] // 2, 2).contiguous())


def _misfit(spec: Spec, r_min: float, r_max: float, max_phase: float) -> str | None:
    if not 0 <= r_min <= r_max <= 1:
        return f"the ring needs 0 <= r_min <= r_max <= 1, got {r_min} and {r_max}"
    if max_phase <= 0:
        return f"max_phase must be positive, got {max_phase}"
    return recurrence_reason(spec.role)

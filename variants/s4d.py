"""Diagonal state space (`s4d`). Gu, Gupta, Goel and Ré 2022, arXiv 2206.11893, sections 3 and 4.

    h_t = w h_{t-1} + (w - 1) / A x_t,  w = exp(dt A);  s_t = 2 Re(C h_t) + D x_t;  y = GLU(W_o gelu(s))
    every channel has N / 2 states of its own; the other N / 2 are their conjugates, hence 2 Re
    lin    A_n = -1/2 + i pi n        inv    A_n = -1/2 + i N / pi (N / (2 n + 1) - 1);        n < N / 2

    N         d_state              states of a channel, conjugates counted
    A         log_A_re, A_im       (d_model, N / 2); real part -exp(log_A_re)
    dt        log_dt               (d_model,) steps, log-uniform between 0.001 and 0.1 at first
    C         C                    (1, d_model, N / 2, 2), real and imaginary parts; two of them in both directions
    D         D                    (d_model,) what passes by
    W_o       W_o                  (d_model, 2 d_model): half of it gates the other half
    K         kernel               K_l = 2 Re(sum_n C_n (w_n - 1) / A_n w_n^l), D added at lag 0

How it runs: as a convolution with K by Fourier transforms. Lag l = i R + j with R near sqrt(T), so that K is one matrix
product of w^(i R) and w^j: sqrt(T) exponentials per state and not T. The prompt's last state comes about likewise, and
one step is the recurrence.

Departures: no bias, so that a position that sees nothing gives 0; no dropout. Kernels, states and transforms are at
least float32. Step sizes and A learn at a tenth of the rate (0.001 where the rest has 0.01 in the authors' code). A
hidden position counts as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt, log, pi
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from attnbench.kernels import at_least_float32, fft_convolution, fft_convolution_flops, fft_convolution_moved
from attnbench.mixer import Claim, Flops, Mixer, Spec, State, Use, check_count, check_name

NO_CROSS = "a state space reads one sequence, so there is no cross role"
SMALLEST_DT, LARGEST_DT = 1e-3, 1e-1


class S4D(Mixer):
    """A linear recurrence with a diagonal state per channel, run as a long convolution."""

    claim = Claim(time="T d^2 + T d log T + T d d_state", memory="T d + T^0.5 d d_state", sequential="log T", path="1")
    positions = "none"
    no_decay = ("log_dt", "log_A_re", "A_im")
    lr_scale: ClassVar[Mapping[str, float]] = {"log_dt": 0.1, "log_A_re": 0.1, "A_im": 0.1}

    def __init__(self, spec: Spec, *, d_state: Annotated[int, Ge(1)] = 64, init: Literal["lin", "inv"] = "lin") -> None:
        super().__init__(spec)
        check_count("d_state", d_state)
        check_name("init", init, ("lin", "inv"))
        if reason := _misfit(spec, d_state):
            raise ValueError(reason)
        n_pairs, D = d_state // 2, spec.d_model
        n_directions = 2 if spec.role == "bidirectional" else 1
        self.n_pairs = n_pairs
        self.log_dt = nn.Parameter(torch.empty(D).uniform_(log(SMALLEST_DT), log(LARGEST_DT)))
        self.log_A_re = nn.Parameter(torch.full((D, n_pairs), log(0.5)))
        self.A_im = nn.Parameter(_frequencies(n_pairs, init).repeat(D, 1))
        self.C = nn.Parameter(torch.randn(n_directions, D, n_pairs, 2) * 0.5**0.5)
        self.D = nn.Parameter(torch.randn(D))
        self.W_o = nn.Linear(D, 2 * D, bias=False)

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: no cross role; states come in pairs."""
        return super().unsupported(spec, use, **options) or _misfit(spec, options.get("d_state", 64))

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`; a hidden position counts as 0."""
        self._check_inputs(x, context, key_mask)
        return self._out(self._convolved(_shown(x, key_mask)), x.dtype)

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """The recurrence, position by position; in the other direction from the end, one position ahead."""
        u = _shown(x, key_mask)
        A = torch.complex(-self.log_A_re.to(u).exp(), self.A_im.to(u))
        w = (self.log_dt.to(u).exp()[:, None] * A).exp()
        s = self.D.to(u) * u
        for direction, C in enumerate(torch.view_as_complex(self.C.to(u))):
            h, rows = torch.zeros_like(u[:, 0, :, None] * w), []
            for u_t in (u.flip(1) if direction else u).unbind(1):
                after = w * h + (w - 1) / A * u_t[..., None]
                rows.append(2 * (C * (h if direction else after)).sum(-1).real)
                h = after
            s = s + (torch.stack(rows, 1).flip(1) if direction else torch.stack(rows, 1))
        return self._out(s, x.dtype)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Read the prompt; the state is sum over t of w^(T - 1 - t) x_t, complex (B, d_model, N / 2)."""
        self._check_inputs(x, context, key_mask)
        u = _shown(x, key_mask)
        y = self._out(self._convolved(u), x.dtype) if x.shape[1] else x
        return y, {"h": self._last_state(u)}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of the recurrence. No state is written to."""
        u = _shown(x, None)
        z, c = self._poles_and_gains(u)
        h = z.exp() * state["h"] + u[..., None]
        s = (c[0] * h).real.sum(-1) + self.D.to(u) * u
        return self._out(s, x.dtype), {"h": h}

    def flops(self, T: int, S: int) -> Flops:
        """Transforms by formula, and the kernel's product; executed, with the lags that pad the last stretch of R."""
        n_directions, d_model = len(self.C), self.spec.d_model
        per_lag = 4.0 * n_directions * d_model * self.n_pairs
        R, n_stretches = _stretches(T)
        transforms = d_model * fft_convolution_flops(T)
        return Flops(
            transforms + per_lag * T,
            4.0 * T * d_model**2,
            core_executed=transforms + per_lag * R * n_stretches,
            core_moved=d_model * (fft_convolution_moved(T) + 5.0 * T),  # GELU: s in, one out; GLU: two in, y out
            projection_moved=3.0 * T * d_model,
        )

    def step_flops(self, T: int, S: int) -> Flops:
        """By formula: six multiply-adds per pair of states (w h, Re(C h)), elementwise; one for what passes by."""
        d_model = self.spec.d_model
        return Flops(
            12.0 * d_model * self.n_pairs + 2.0 * d_model,
            4.0 * d_model**2,
            core_moved=d_model * (12.0 * self.n_pairs + 8.0),  # h in and out, w h and C h out and in; x to y
            projection_moved=3.0 * d_model,
        )

    def kernels(self, T: int) -> Tensor:
        """K for lags 0 to T - 1, of the past and, in both directions, of the future from lag 1: (1 or 2, T, d_model).

        What passes by, D, is not in it. At least float32.
        """
        z, c = self._poles_and_gains(self.D)
        R, n_stretches = _stretches(T)
        near, far = _powers(z, R), _powers(z * R, n_stretches)  # (2, d_model, n_pairs, R or n_stretches)
        c_re, c_im = c.real[..., None], c.imag[..., None]  # (directions, d_model, n_pairs, 1)
        weighted = torch.cat((c_re * far[0] - c_im * far[1], -c_re * far[1] - c_im * far[0]), dim=2)
        rows = weighted.transpose(0, 1).transpose(2, 3).flatten(1, 2)  # (d_model, directions n_stretches, 2 n_pairs)
        lags = rows @ near.transpose(0, 1).flatten(1, 2)  # (d_model, directions n_stretches, R)
        return lags.view(len(lags), len(c), R * n_stretches)[..., :T].permute(1, 2, 0)

    def _convolved(self, u: Tensor) -> Tensor:
        """s (B, T, d_model) before the map out."""
        kernel, *reverse = self.kernels(u.shape[1])
        passed = F.pad(self.D.to(u)[None], (0, 0, 0, len(kernel) - 1))
        return fft_convolution(u, kernel + passed, *reverse)

    def _last_state(self, u: Tensor) -> Tensor:
        z, _ = self._poles_and_gains(u)
        R, n_stretches = _stretches(u.shape[1])
        near, far = _powers(z, R), torch.complex(*_powers(z * R, n_stretches))
        lags = F.pad(u.mT.flip(2), (0, R * n_stretches - u.shape[1]))
        lags = lags.view(*lags.shape[:2], n_stretches, R)
        inner = torch.einsum("bdir,cdnr->cbdni", lags, near)
        return (torch.complex(inner[0], inner[1]) * far).sum(-1)

    def _poles_and_gains(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """z = dt A (d_model, n_pairs), and 2 C (w - 1) / A (directions, d_model, n_pairs); complex, float32 or more."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        A = torch.complex(-self.log_A_re.to(dtype).exp(), self.A_im.to(dtype))
        z = self.log_dt.to(dtype).exp()[:, None] * A
        return z, 2 * torch.view_as_complex(self.C.to(dtype)) * (torch.expm1(z) / A)

    def _out(self, s: Tensor, dtype: torch.dtype) -> Tensor:
        return F.glu(self.W_o(F.gelu(s).to(dtype)), dim=-1)


def _frequencies(n_pairs: int, init: str) -> Tensor:
    n = torch.arange(n_pairs, dtype=torch.float32)
    N = 2 * n_pairs
    return pi * n if init == "lin" else N / pi * (N / (2 * n + 1) - 1)


def _stretches(T: int) -> tuple[int, int]:
    """R near sqrt(T), and how many stretches of R lags hold T of them."""
    R = isqrt(max(T, 1) - 1) + 1
    return R, -(-T // R)


def _powers(z: Tensor, n: int) -> Tensor:
    """Real and imaginary parts of exp(z l) for l < n: complex (d_model, n_pairs) -> (2, d_model, n_pairs, n)."""
    lags = torch.arange(n, device=z.device, dtype=z.real.dtype)
    size, angle = (z.real[..., None] * lags).exp(), z.imag[..., None] * lags
    return torch.stack((size * angle.cos(), size * angle.sin()))


def _shown(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """x (B, T, d_model), at least float32, 0 where hidden."""
    x = at_least_float32(x)
    return x if key_mask is None else x.masked_fill(~key_mask[..., None], 0.0)


def _misfit(spec: Spec, d_state: int) -> str | None:
    if spec.role == "cross":
        return NO_CROSS
    return f"states come in conjugate pairs: d_state must be even, got {d_state}" if d_state % 2 else None

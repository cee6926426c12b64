"""Based. Arora et al. 2024, arXiv 2402.18668, section 4.1: softmax's exponential by its Taylor series of second order.

    y_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = 1 + s + s^2 / 2,   s = q_i k_j / sqrt(f)
    w_ij = phi(q_i) phi(k_j),   phi(x) = [1, x, products of two channels of x], up to factors

    f         d_k      width of queries and keys, 16: features are of order f^2
    phi       phi      1 + f + f (f + 1) / 2 features; for an even f, f / 2 more (161 for 16)
    S, z      sums     (m, d_v + 1) per head; z is the last column

How it runs: products of channels are x_a x_b with b - a = 0, 1, ... f / 2 around a circle, which is each pair once, and
twice at f / 2; their factors stand with the queries. Inside a chunk, and for short sequences altogether, weights are
made from s, without phi: T S (f + d_v + 1) products against (T + S) m (d_v + 1), whichever are fewer.

Departures: m is 161 and not 273, by symmetry; the paper's model also has layers of a small window and of short
convolutions, which are variants of their own here. A query that sees no key gives 0.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels import FeatureAttention, at_least_float32
from attnbench.mixer import Claim, Flops, Spec, State, visible_pairs


class Based(FeatureAttention):
    """The kernel 1 + s + s^2 / 2; `d_k` is 16 unless given."""

    claim = Claim(
        time="T d^2 + T d d_k^2 + T d chunk",
        memory="T d + H T d_k^2 + H T chunk + T d d_k^2 / chunk",
        sequential="T / chunk",
        path="1",
    )

    def __init__(self, spec: Spec, *, d_k: Annotated[int, Ge(1)] = 16, **options: Any) -> None:
        super().__init__(spec, d_k=d_k, **options)

    @property
    def n_features(self) -> int:
        """1, the channels, and their products."""
        return 1 + self.d_k + self.d_k * (self.d_k // 2 + 1)

    @property
    def pair_width(self) -> int:
        """Weights inside a chunk are made from s."""
        return self.d_k

    def phi(self, x: Tensor, which: str, start: int) -> Tensor:
        """Factors stand with the queries: 1 / sqrt(f), and 1 / 2 for what comes twice."""
        f, n_shifts = self.d_k, self.d_k // 2 + 1
        x = x * f**-0.5 if which == "q" else x
        around = torch.cat((x, x[..., : n_shifts - 1]), dim=-1).unfold(-1, f, 1)  # (..., n_shifts, f)
        left = x[..., None, :]
        if which == "q":
            factor = x.new_ones(n_shifts, 1)
            factor[0] = 0.5
            if f % 2 == 0:
                factor[-1] = 0.5
            left = left * factor
        products = (left * around).flatten(-2)
        return torch.cat((x.new_ones(*x.shape[:-1], 1), x, products), dim=-1)

    def slow_weights(self, q: Tensor, k: Tensor, start: int) -> Tensor:
        """From the dot product."""
        s: Tensor = torch.einsum("bhid,bhjd->bhij", q, k) / self.d_k**0.5
        return 1 + s + s.square() / 2

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`; pair by pair where that is cheaper."""
        if not self._few_pairs(q.shape[2], k.shape[2]):
            return super().attend(q, k, v, *extra, key_mask=key_mask)
        weights = _weights(at_least_float32(q) * self.d_k**-0.5, at_least_float32(k))
        if self.spec.role == "causal":
            weights = weights.tril(k.shape[2] - q.shape[2])
        if key_mask is not None:
            weights = weights.masked_fill(~key_mask[:, None, None], 0.0)
        return self._finished(weights @ self._values(v), v.dtype)

    def flops(self, T: int, S: int) -> Flops:
        """Of the cheaper form; moved: without what stands between the products."""
        if not self._few_pairs(T, S):
            return super().flops(T, S)
        pair = 2.0 * self.spec.n_heads * (self.d_k + self._width)
        return Flops(
            pair * visible_pairs(T, S, self.spec.role),
            self.projection_flops(T, S),
            core_executed=pair * T * S,
            core_moved=self.core_moved(T, S),
            projection_moved=self.projection_moved(T, S),
        )

    def _few_pairs(self, T: int, S: int) -> bool:
        return T * S * (self.d_k + self._width) < (T + S) * self.n_features * self._width

    def _mixed(self, qkv: tuple[Tensor, ...], at: int, key_mask: Tensor | None, state: State) -> tuple[Tensor, State]:
        """In chunks of one size: weights from s inside of them, sums between them."""
        q, k, values = qkv
        B, H, T, _ = q.shape
        phi_q, phi_k = self._features(q, "q", at), self._features(k, "k", at, key_mask)
        q, k = (x.to(values.dtype) for x in (q * self.d_k**-0.5, k))
        size = min(self.chunk, T)
        n = T // size
        parts = (q, k, values, phi_q, phi_k)
        q, k, values, phi_q, phi_k = (x.reshape(B * H * n, size, x.shape[-1]) for x in parts)
        weights = _weights(q, k).tril_()
        if key_mask is not None:
            seen = key_mask.view(B, 1, n, 1, size).expand(-1, H, -1, -1, -1).reshape(B * H * n, 1, size)
            weights = weights.masked_fill(~seen, 0.0)
        gains = (phi_k.mT @ values).view(B, H, n, self.n_features, -1)
        states = torch.cat((state["sums"][:, :, None], gains), dim=2).cumsum(2)
        y = torch.baddbmm(weights @ values, phi_q, states[:, :, :n].flatten(0, 2))
        return y.view(B, H, T, -1), {"sums": states[:, :, n]}


def _weights(q: Tensor, k: Tensor) -> Tensor:
    """1 + s + s^2 / 2 of every pair; q carries the scale."""
    s = q @ k.mT
    return torch.addcmul(s + 1, s, s, value=0.5)

"""Nyströmformer (`nystrom`). Xiong et al. 2021, arXiv 2102.03902, sections 3 and 4.

    y = F Z (M V) + conv(V);  F = softmax(Q K'^T / sqrt(d_k)), A = softmax(Q' K'^T / sqrt(d_k)),
    M = softmax(Q' K^T / sqrt(d_k)); Z is nearly the pseudo-inverse of A, by
    Z <- Z / 4 (13 I - A Z (15 I - A Z (7 I - A Z))) from Z = A^T / (|A|_1 |A|_inf)

    Q', K'    landmarks    means of queries and of keys over segments
    m         landmarks    how many there are; n_landmarks: those that a sequence really has
    Z         inverse      (m, m) per head
    conv      taps         (n_heads, kernel), one filter over time for all channels of a head

How it runs: F and M by fused attention, the convolution by matrix products of blocks with their neighbourhood.

Departures: projections have no bias. Segments are of unequal length where m does not divide T: the first T mod m of
them hold one position more, and nothing is padded or shifted. A sequence shorter than m has one landmark per position.
Segments are cut from the keys that a mask leaves, so that padding changes nothing. Norms of A are those of each head,
so that no row of a batch knows another (packages nystrom-attention and transformers: of all rows and heads at once).
Six iterations, as in the paper: more come closer to the pseudo-inverse and farther from softmax attention, when m < T.
The filter is as in the authors' code of 33 taps (65 in a later one). Weights sum to 1 only as far as Z is an inverse.
Landmarks are means of the future too: there is no causal role; nor a cross role.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from attnbench.kernels import at_least_float32, masked_attention, overlapping_blocks
from attnbench.mixer import Attention, Claim, Flops, Spec, Use, check_count

NO_CAUSAL = "landmarks are means over the future too, so there is no causal role"
NO_CROSS = "landmarks are taken of one sequence, so there is no cross role"
BLOCK = 32  # positions that the convolution makes in one product


class Nystrom(Attention):
    """Softmax attention through landmarks, and a short convolution of the values."""

    claim = Claim(
        time="T d^2 + T d landmarks + T d kernel + landmarks^2 d + H landmarks^3 iterations",
        memory="T d + landmarks d + H landmarks^2 iterations",
        sequential="iterations",
        path="1",
    )
    normalised = False

    def __init__(
        self,
        spec: Spec,
        *,
        landmarks: Annotated[int, Ge(1)] = 64,
        iterations: Annotated[int, Ge(1)] = 6,
        kernel: Annotated[int, Ge(1)] = 33,
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        for name, value in (("landmarks", landmarks), ("iterations", iterations), ("kernel", kernel)):
            check_count(name, value)
        if reason := _misfit(spec):
            raise ValueError(reason)
        self.landmarks, self.iterations, self.kernel = landmarks, iterations, kernel
        self.taps = nn.Parameter(torch.empty(spec.n_heads, kernel).uniform_(-(kernel**-0.5), kernel**-0.5))

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: only the bidirectional role, and as many keys as queries."""
        reason = _misfit(spec) or super().unsupported(spec, use, **options)
        return reason or (None if use.T == use.S else _unequal(use.T, use.S))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`. Raises ValueError unless T = S."""
        if q.shape[2] != k.shape[2]:
            raise ValueError(_unequal(q.shape[2], k.shape[2]))
        if key_mask is None:
            n = min(self.landmarks, q.shape[2])
            few_q, few_k = _segment_means(q, n), _segment_means(k, n)
            summary = self._inverse(few_q, few_k, None) @ at_least_float32(F.scaled_dot_product_attention(few_q, k, v))
            y = F.scaled_dot_product_attention(q, few_k, summary.to(v.dtype))
        else:
            v = v.masked_fill(~key_mask[:, None, :, None], 0.0)
            means, real = self._masked_segments(key_mask, q.dtype)  # (B, 1, m, T), (B, m)
            hidden = ~key_mask[:, None, :, None]
            few_q, few_k = (means @ x.masked_fill(hidden, 0.0) for x in (q, k))
            seen = masked_attention(few_q, k, v, key_mask[:, None, None, :])
            summary = self._inverse(few_q, few_k, real) @ at_least_float32(seen)
            y = masked_attention(q, few_k, summary.to(v.dtype), real[:, None, None, :])
        mixed: Tensor = y + self._convolved(v)
        return mixed

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Row by row, keys and landmarks of the real positions alone; then the filter, tap by tap."""
        rows, (T, scale) = [], (q.shape[2], q.shape[-1] ** -0.5)
        for b in range(len(q)):
            real = torch.arange(T, device=q.device) if key_mask is None else key_mask[b].nonzero()[:, 0]
            if len(real) == 0:
                rows.append(0 * v[b])
                continue
            n = min(self.landmarks, len(real))
            few_q, few_k = (torch.stack([s.mean(1) for s in x[b][:, real].tensor_split(n, 1)], 1) for x in (q, k))
            A = (few_q @ few_k.mT * scale).softmax(-1)
            Z = A.mT / (A.sum(-1).amax(-1) * A.sum(-2).amax(-1))[:, None, None]
            one = torch.eye(n, dtype=Z.dtype, device=Z.device)
            for _ in range(self.iterations):
                Z = Z @ (13 * one - A @ Z @ (15 * one - A @ Z @ (7 * one - A @ Z))) / 4
            mixed = (few_q @ k[b][:, real].mT * scale).softmax(-1) @ v[b][:, real]
            rows.append((q[b] @ few_k.mT * scale).softmax(-1) @ Z @ mixed)
        y = torch.stack(rows)
        v = v if key_mask is None else v * key_mask[:, None, :, None]
        padded = F.pad(v, (0, 0, self.kernel // 2, self.kernel))
        for i in range(self.kernel):
            y = y + self.taps[:, i, None, None] * padded[:, :, i : i + T]
        return y

    def flops(self, T: int, S: int) -> Flops:
        """F, M, A and Z, four products an iteration; the filter's taps, executed in blocks with what surrounds them."""
        H, n = self.spec.n_heads, min(self.landmarks, T)
        mixing = 2 * self.pair_flops(T * n) + self.pair_flops(n**2) + 8.0 * self.iterations * H * n**3
        taps, n_blocks = 2.0 * H * self.d_v, -(-T // BLOCK)
        return Flops(
            mixing + taps * T * self.kernel,
            self.projection_flops(T, S),
            core_executed=mixing + taps * n_blocks * BLOCK * (BLOCK + self.kernel - 1),
            core_moved=self.core_moved(T, S) + 2.0 * H * self._left_behind(T, n),
            projection_moved=self.projection_moved(T, S),
        )

    def _left_behind(self, T: int, n: int) -> int:
        """What a head leaves to its next operation: landmarks, A and Z, sums, values padded and mixed."""
        maps = 3 + 4 * self.iterations  # scores, A, the first Z; four products an iteration
        written_out = 0 if self.d_k == self.d_v else 4 * T * n  # scores and weights of F and of M
        return n * (2 * self.d_k + 2 * self.d_v) + maps * n**2 + 3 * T * self.d_v + written_out

    def _inverse(self, few_q: Tensor, few_k: Tensor, real: Tensor | None) -> Tensor:
        """Z (B, H, m, m) from landmarks (B, H, m, d_k), 0 for those that `real` (B, m) hides; at least float32."""
        scores = at_least_float32(few_q) @ at_least_float32(few_k).mT * few_q.shape[-1] ** -0.5
        if real is None:
            A = scores.softmax(-1)
        else:
            blind = ~real.any(-1, keepdim=True)  # a row without landmarks: 0 at the end
            shown = (real | blind)[:, None, None, :]
            both = real[:, None, :, None] & real[:, None, None, :]
            A = scores.masked_fill(~shown, -torch.inf).softmax(-1).masked_fill(~both, 0.0)
        norms = A.sum(-1).amax(-1) * A.sum(-2).amax(-1)  # (B, H)
        Z: Tensor = A.mT / norms.clamp(min=torch.finfo(A.dtype).tiny)[..., None, None]
        Z = _Iterated.apply(A.flatten(0, 1), Z.flatten(0, 1), self.iterations)  # type: ignore[no-untyped-call]  # torch's is
        return Z.view(scores.shape)

    def _masked_segments(self, key_mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A matrix that takes means over segments of real positions (B, 1, m, T), and which segments there are."""
        n = min(self.landmarks, key_mask.shape[1])
        n_real = key_mask.sum(1, keepdim=True)  # (B, 1)
        n_each = n_real.clamp(max=n)  # segments of a row
        size, n_long = n_real // n_each.clamp(min=1), n_real % n_each.clamp(min=1)
        place = key_mask.cumsum(1) - 1  # among the real ones
        rest = place - n_long * (size + 1)
        segment = torch.where(rest < 0, place // (size + 1), n_long + rest.clamp(min=0) // size.clamp(min=1))
        index = torch.arange(n, device=key_mask.device)
        inside = (segment[:, None, :] == index[:, None]) & key_mask[:, None, :]  # (B, m, T)
        means = inside.to(dtype) / inside.sum(-1, keepdim=True).clamp(min=1)
        return means[:, None], index < n_each

    def _convolved(self, v: Tensor) -> Tensor:
        """The filter over v (B, H, T, d_v), 0 around it; an even one has one tap more in the past."""
        T, size = v.shape[2], BLOCK + self.kernel - 1
        back, n_blocks = self.kernel // 2, -(-T // BLOCK)
        padded = F.pad(v, (0, 0, back, n_blocks * BLOCK + self.kernel - 1 - back - T))
        blocks = overlapping_blocks(padded, size, BLOCK)  # (B, H, n_blocks, size, d_v)
        lag = torch.arange(size, device=v.device) - torch.arange(BLOCK, device=v.device)[:, None]  # (BLOCK, size)
        inside = (lag >= 0) & (lag < self.kernel)
        band = self.taps[:, lag.clamp(0, self.kernel - 1)].masked_fill(~inside, 0.0)  # (H, BLOCK, size)
        return (band[:, None] @ blocks).flatten(2, 3)[:, :, :T]


class _Iterated(torch.autograd.Function):
    """Z (N, m, m) after some iterations, from A and the first Z, with a backward pass of hardly more than products."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, Z: Tensor, iterations: int) -> Tensor:
        kept = []
        for _ in range(iterations):
            AZ = torch.bmm(A, Z)
            inner = torch.baddbmm(AZ, AZ, AZ, beta=7, alpha=-1)  # A Z (7 I - A Z)
            outer = torch.baddbmm(AZ, AZ, inner, beta=15, alpha=-1)  # A Z (15 I - A Z (7 I - A Z))
            kept += [Z, AZ, inner, outer]
            Z = torch.baddbmm(Z, Z, outer, beta=13 / 4, alpha=-1 / 4)
        ctx.save_for_backward(A, *kept)
        return Z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dZ,), (A, *kept) = grads, ctx.saved_tensors
        dA = torch.zeros_like(A)
        for at in range(len(kept) - 4, -1, -4):
            Z, AZ, inner, outer = kept[at : at + 4]
            d_outer = torch.bmm(Z.mT, dZ)  # times -4
            d_inner = torch.bmm(AZ.mT, d_outer)  # times 4
            dAZ = torch.baddbmm(d_outer, d_outer, inner.mT, beta=15, alpha=-1)  # times -4, as all that follow
            dAZ.baddbmm_(d_inner, AZ.mT).baddbmm_(AZ.mT, d_inner).sub_(d_inner, alpha=7)
            dZ = torch.baddbmm(dZ, dZ, outer.mT, beta=13 / 4, alpha=-1 / 4).baddbmm_(A.mT, dAZ, alpha=-1 / 4)
            dA.baddbmm_(dAZ, Z.mT, alpha=-1 / 4)
        return dA, dZ, None


def _segment_means(x: Tensor, n: int) -> Tensor:
    """Means over n segments of time, the first T mod n of which are longer by one: (B, H, T, D) -> (B, H, n, D)."""
    size, n_long = divmod(x.shape[2], n)
    at = n_long * (size + 1)
    B, H, _, D = x.shape
    few = x[:, :, at:].reshape(B, H, n - n_long, size, D).mean(3)
    return torch.cat((x[:, :, :at].reshape(B, H, n_long, size + 1, D).mean(3), few), dim=2) if n_long else few


def _unequal(T: int, S: int) -> str:
    return f"queries and keys have their landmarks at the same places, so T must be S, got T = {T} and S = {S}"


def _misfit(spec: Spec) -> str | None:
    return {"causal": NO_CAUSAL, "cross": NO_CROSS}.get(spec.role)

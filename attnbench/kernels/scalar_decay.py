"""A matrix-state recurrence with one decay per head and step, in chunks: RetNet, and SSD (Dao and Gu 2024, 2405.21060).

Decays inside a chunk are exp of differences of sums, hidden pairs at -inf before exp; the sums are float64, for a
difference of long float32 sums would lose the small decays. The backward pass recomputes all but the states between
chunks, a run of chunks at a time, so that what lies between the products stays in a core's cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.kernels.chunks import hand_back, hand_on, pieces, sum_from_the_end


def scalar_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """S_t = exp(log_decay_t) S_{t-1} + k_t^T v_t and y_t = q_t S_t, from S_0 = state.

    q, k: (B, G, T, d_k), each shared by H / G consecutive heads. v: (B, H, T, d_v). log_decay: (B, H, T), at most 0.
    state: (B, H, d_k, d_v). All of one dtype. Returns y (B, H, T, d_v) and the last state.
    """
    found: tuple[Tensor, Tensor] = _ScalarDecay.apply(q, k, v, log_decay, state, chunk)  # type: ignore[no-untyped-call]  # torch's is
    return found


class _Run:
    """A run of n chunks of q, k, v with their decays: N = B G n blocks, R heads in each."""

    def __init__(self, given: tuple[Tensor, ...], here: slice, size: int) -> None:
        q, k, v, log_decay = (x[:, :, here] for x in given)
        B, G, T, _ = q.shape
        self.B, self.G, self.R, self.n, self.size = B, G, v.shape[1] // G, T // size, size
        self.N = B * G * self.n
        self.q, self.k = (x.reshape(self.N, size, x.shape[-1]) for x in (q, k))
        self.v = self.beside(v)
        sums = log_decay.reshape(B, G, self.R, self.n, size).transpose(2, 3).flatten(0, 2)  # (N, R, size)
        sums = sums.cumsum(-1, dtype=torch.float64)
        gaps = (sums[..., :, None] - sums[..., None, :]).to(v.dtype)  # (N, R, size, size)
        hidden = torch.ones(size, size, dtype=torch.bool, device=v.device).triu_(1)
        self.weight = gaps.masked_fill_(hidden, -torch.inf).exp_()
        self.since_start = sums.mT.to(v.dtype).exp()[..., None]  # (N, size, R, 1)
        self.until_end = (sums[..., -1:] - sums).mT.to(v.dtype).exp_()[..., None]
        self.whole = self.since_start[:, -1].view(B * G, self.n, 1, self.R, 1)

    def beside(self, x: Tensor) -> Tensor:
        """The heads of a block side by side: (B, H, T, D) -> (N, size, R, D)."""
        return x.reshape(self.B, self.G, self.R, self.n, self.size, -1).permute(0, 1, 3, 4, 2, 5).flatten(0, 2)

    def apart(self, x: Tensor) -> Tensor:
        """Each head alone: (N, size, R, D) -> (N R, size, D)."""
        return x.transpose(1, 2).flatten(0, 1)

    def back(self, x: Tensor) -> Tensor:
        """The inverse of `beside`: (N, size, R, D) -> (B, G, R, n, size, D)."""
        return x.view(self.B, self.G, self.n, self.size, self.R, -1).permute(0, 1, 4, 2, 3, 5)

    def pairs(self) -> Tensor:
        """Weighted scores (N R, size, size)."""
        return (torch.bmm(self.q, self.k.mT)[:, None] * self.weight).flatten(0, 1)

    def joined(self, x: Tensor) -> Tensor:
        """(N R, size, D) -> (N, size, R, D)."""
        return x.view(self.N, self.R, self.size, -1).transpose(1, 2)


class _ScalarDecay(torch.autograd.Function):
    """States are (B G, d_k, R, d_v) inside, so that one product serves all heads of a group."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        (B, G, T, d_k), (_, H, _, d_v) = q.shape, v.shape
        ctx.pieces = pieces(T, chunk, B * H * max(d_k, d_v), q.device)
        befores, y = [], v.new_empty(B, H, T, d_v)
        last = state.view(B * G, H // G, d_k, d_v).transpose(1, 2)  # (B G, d_k, R, d_v)
        for start, stop, size in ctx.pieces:
            run = _Run((q, k, v, log_decay), slice(start, stop), size)
            before = v.new_empty(B * G, run.n, d_k, run.R, d_v)
            gains = torch.bmm(run.k.mT, (run.v * run.until_end).flatten(2)).view_as(before)
            last = hand_on(last, run.whole, gains, before)
            far = torch.bmm(run.q, before.view(run.N, d_k, -1)).view_as(run.v) * run.since_start
            near = run.joined(torch.bmm(run.pairs(), run.apart(run.v)))
            y[:, :, start:stop].view(B, G, run.R, run.n, size, d_v).copy_(run.back(far.add_(near)))
            befores.append(before)
        last = last.transpose(1, 2).reshape(B, H, d_k, d_v)
        ctx.save_for_backward(q, k, v, log_decay, y, last, *befores)
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dy, d_last = grads
        q, k, v, log_decay, y, last, *befores = ctx.saved_tensors
        (B, G, _, d_k), (_, H, _, d_v) = q.shape, v.shape
        dq, dk, dv, dg = (torch.empty_like(x) for x in (q, k, v, log_decay))
        d_state, last = (x.reshape(B * G, H // G, d_k, d_v).transpose(1, 2) for x in (d_last, last))
        for (start, stop, size), before in zip(reversed(ctx.pieces), reversed(befores), strict=True):
            here = slice(start, stop)
            run = _Run((q, k, v, log_decay), here, size)
            out = run.beside(dy[:, :, here])
            d_state, grad_last = _backward_run(run, out, d_state, before, last, (dq, dk, dv), here)
            last = before[:, 0]
            each = (dy[:, :, here] * y[:, :, here]).sum(-1) - (v[:, :, here] * dv[:, :, here]).sum(-1)
            each = each.view(B, G, run.R, run.n, size)
            each[..., -1] += grad_last
            dg[:, :, here] = sum_from_the_end(each, -1).view(B, H, -1)
        return dq, dk, dv, dg, d_state.transpose(1, 2).reshape(B, H, d_k, d_v), None


def _backward_run(
    run: _Run, dy: Tensor, d_state: Tensor, before: Tensor, last: Tensor, into: tuple[Tensor, ...], here: slice
) -> tuple[Tensor, Tensor]:
    """Gradients of one run, written `into` dq, dk and dv.

    Returns the gradient of the state before it, and that of each chunk's last decay sum by its state (B, G, R, n).
    """
    dq, dk, dv = into
    after = torch.empty_like(before)
    far = (dy * run.since_start).flatten(2)  # (N, size, R d_v)
    d_gains = torch.bmm(run.q.mT, far).view_as(before)
    d_state = hand_back(d_state, run.whole, d_gains, after)
    states_after = torch.cat((before[:, 1:], last[:, None]), dim=1)
    grad_last = (after * states_after).sum((2, 4)).view(run.B, run.G, run.n, run.R).transpose(2, 3)
    before, after = (x.view(run.N, x.shape[2], -1) for x in (before, after))  # (N, d_k, R d_v)
    near = run.apart(dy)
    pairs = torch.bmm(near, run.apart(run.v).mT).view_as(run.weight).mul_(run.weight).sum(1)  # (N, size, size)
    dq_run = torch.baddbmm(torch.bmm(pairs, run.k), far, before.mT)
    kept = (run.v * run.until_end).flatten(2)
    dk_run = torch.baddbmm(torch.bmm(pairs.mT, run.q), kept, after.mT)
    dv_run = torch.bmm(run.k, after).view_as(run.v) * run.until_end
    dv_run += run.joined(torch.bmm(run.pairs().mT, near))
    for whole, part in ((dq, dq_run), (dk, dk_run)):
        whole[:, :, here] = part.view_as(whole[:, :, here])
    dv[:, :, here].view(run.B, run.G, run.R, run.n, run.size, -1).copy_(run.back(dv_run))
    return d_state, grad_last

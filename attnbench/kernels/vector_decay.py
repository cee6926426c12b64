"""A matrix-state recurrence with a decay per key channel and step, in chunks: GLA (Yang et al. 2024, 2312.06635), RWKV.

exp(G_i - G_j) inside a chunk, with G the running sum of log decays, is split into a factor of the query and one of the
key, so that all pairs are one product. Where a chunk forgets so much that a factor would overflow, the chunk is halved:
pairs across the middle are split at the middle, where both exponents are at most 0, and each half is treated alike. A
block of one position has nothing to split, so this ends for any decay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnbench.kernels.chunks import hand_back, hand_on, pieces, sum_from_the_end

LIMIT = 40.0  # exp of it, squared, leaves float32 room for the numbers that it multiplies


def vector_recurrence(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor]:
    """S_t = diag(exp(log_decay_t)) S_{t-1} + k_t^T v_t and y_t = q_t S_t, from S_0 = state.

    q, k, log_decay: (B, H, T, d_k), log_decay at most 0. v: (B, H, T, d_v). state: (B, H, d_k, d_v). All of one dtype.
    Returns y (B, H, T, d_v) and the last state.
    """
    found: tuple[Tensor, Tensor] = _VectorDecay.apply(q, k, v, log_decay, state, chunk)  # type: ignore[no-untyped-call]  # torch's is
    return found


class _Pairs(NamedTuple):
    """Pairs whose scores are one product per block: of the rows' queries and the columns' keys, decayed to one point.

    A block is `size` positions, m to a chunk; rows and columns are those of a block.
    """

    size: int
    rows: slice
    columns: slice
    since: Tensor  # (N m, rows, d_k): decay from the point to each query
    until: Tensor  # (N m, columns, d_k): decay from each key to the point

    def of(self, scores: Tensor) -> Tensor:
        """A view of these pairs in scores (N, C, C): (N, m, rows, columns)."""
        m = scores.shape[-1] // self.size
        blocks = scores.view(-1, m, self.size, m, self.size).diagonal(0, 1, 3).permute(0, 3, 1, 2)
        return blocks[:, :, self.rows, self.columns]

    def block(self, x: Tensor) -> Tensor:
        """(N, C, d_k) -> (N m, size, d_k), a view."""
        return x.view(-1, self.size, x.shape[-1])


class _Run:
    """A run of n chunks: N = B H n blocks of `size` positions."""

    def __init__(self, given: tuple[Tensor, ...], here: slice, size: int) -> None:
        q, k, v, log_decay = (x[:, :, here] for x in given)
        self.q, self.k, self.v, g = (x.reshape(-1, size, x.shape[-1]) for x in (q, k, v, log_decay))
        self.n, self.size = q.shape[2] // size, size
        sums = g.cumsum(1)  # (N, size, d_k)
        self.mild = bool(sums[:, -1].amin() >= -LIMIT)
        if not self.mild:  # sums grow long, and their small differences count
            sums = g.cumsum(1, dtype=torch.float64)
        self.sums = sums
        self.since_start = sums.to(g.dtype).exp()
        self.until_end = (sums[:, -1:] - sums).to(g.dtype).exp_()
        self.whole = self.since_start[:, -1].view(q.shape[0] * q.shape[1], self.n, -1, 1)  # (B H, n, d_k, 1)

    def pairs(self) -> Iterator[_Pairs]:
        """All pairs of a chunk, each once; those of the last ones with key after query are to be left out."""
        everything = slice(None)
        if self.mild:
            yield _Pairs(self.size, everything, everything, self.since_start, self.sums.neg().exp_())
            return
        sums, size = _padded(self.sums, self.size), _power(self.size)
        while True:
            block = sums.view(-1, size, sums.shape[-1])
            first = block[:, :1]
            if size == 1 or (first - block[:, -1:]).amax() <= LIMIT:  # a NaN goes down to 1
                yield _Pairs(size, everything, everything, self._exp(block - first), self._exp(first - block))
                return
            half = size // 2
            middle, rows, columns = block[:, half - 1 : half], slice(half, None), slice(half)
            yield _Pairs(size, rows, columns, self._exp(block[:, rows] - middle), self._exp(middle - block[:, columns]))
            size = half

    def scores(self) -> Tensor:
        """q_i exp(G_i - G_j) k_j for i >= j, else 0: (N, size, size)."""
        C = self.size if self.mild else _power(self.size)
        scores = self.q.new_zeros(len(self.q), C, C)
        q, k = (x if self.mild else _padded(x, self.size) for x in (self.q, self.k))
        for pairs in self.pairs():
            queries, keys = pairs.block(q)[:, pairs.rows] * pairs.since, pairs.block(k)[:, pairs.columns] * pairs.until
            part = pairs.of(scores)
            part.copy_(torch.bmm(queries, keys.mT).view_as(part))
        return scores.tril_()[:, : self.size, : self.size]

    def backward(self, d_scores: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of q and k (N, size, d_k) from those of scores (N, size, size), 0 where key is after query."""
        q, k = (x if self.mild else _padded(x, self.size) for x in (self.q, self.k))
        if not self.mild:
            n_more = q.shape[1] - self.size
            d_scores = F.pad(d_scores, (0, n_more, 0, n_more))
        dq, dk = torch.zeros_like(q), torch.zeros_like(k)
        for pairs in self.pairs():
            part = pairs.of(d_scores).flatten(0, 1)
            queries, keys = pairs.block(q)[:, pairs.rows] * pairs.since, pairs.block(k)[:, pairs.columns] * pairs.until
            pairs.block(dq)[:, pairs.rows] += torch.bmm(part, keys).mul_(pairs.since)
            pairs.block(dk)[:, pairs.columns] += torch.bmm(part.mT, queries).mul_(pairs.until)
        return dq[:, : self.size], dk[:, : self.size]

    def _exp(self, x: Tensor) -> Tensor:
        return x.to(self.q.dtype).exp_()


class _VectorDecay(torch.autograd.Function):
    """A run of chunks at a time; the backward pass recomputes all but the states between chunks."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor, chunk: int
    ) -> tuple[Tensor, Tensor]:
        (B, H, T, d_k), d_v = q.shape, v.shape[-1]
        ctx.pieces = pieces(T, chunk, B * H * max(d_k, d_v), q.device)
        befores, y, last = [], torch.empty_like(v, memory_format=torch.contiguous_format), state.flatten(0, 1)
        for start, stop, size in ctx.pieces:
            run = _Run((q, k, v, log_decay), slice(start, stop), size)
            before = v.new_empty(B * H, run.n, d_k, d_v)
            gains = torch.bmm((run.k * run.until_end).mT, run.v).view_as(before)
            last = hand_on(last, run.whole, gains, before)
            near = torch.bmm(run.scores(), run.v)
            part = torch.baddbmm(near, run.q * run.since_start, before.flatten(0, 1))
            y[:, :, start:stop] = part.view(B, H, -1, d_v)
            befores.append(before)
        last = last.view(B, H, d_k, d_v).clone()
        ctx.save_for_backward(q, k, v, log_decay, last, *befores)
        return y, last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dy, d_last = grads
        q, k, v, log_decay, last, *befores = ctx.saved_tensors
        B, H = q.shape[:2]
        dq, dk, dv, dg = (torch.empty_like(x) for x in (q, k, v, log_decay))
        d_state, last = d_last.flatten(0, 1), last.flatten(0, 1)
        for (start, stop, size), before in zip(reversed(ctx.pieces), reversed(befores), strict=True):
            here = slice(start, stop)
            run = _Run((q, k, v, log_decay), here, size)
            d_state, *found = _backward_run(run, dy[:, :, here].reshape(run.v.shape), d_state, before, last)
            for whole, part in zip((dq, dk, dv, dg), found, strict=True):
                whole[:, :, here] = part.reshape(B, H, stop - start, -1)
            last = before[:, 0]
        return dq, dk, dv, dg, d_state.view(B, H, *last.shape[-2:]), None


def _backward_run(run: _Run, dy: Tensor, d_state: Tensor, before: Tensor, last: Tensor) -> tuple[Tensor, ...]:
    """Gradients of the state before the run, and of q, k, v and log decays in it, (N, size, .)."""
    after = torch.empty_like(before)
    d_gains = torch.bmm((run.q * run.since_start).mT, dy).view_as(before)
    d_state = hand_back(d_state, run.whole, d_gains, after)
    states_after = torch.cat((before[:, 1:], last[:, None]), dim=1)
    d_whole = (after * states_after).sum(-1).flatten(0, 1)  # (N, d_k): by the sum over the whole chunk
    before, after = before.flatten(0, 1), after.flatten(0, 1)  # (N, d_k, d_v)
    dq, dk = run.backward(torch.bmm(dy, run.v.mT).tril_())
    dq += torch.bmm(dy, before.mT).mul_(run.since_start)
    dk += torch.bmm(run.v, after.mT).mul_(run.until_end)
    dv = torch.baddbmm(torch.bmm(run.scores().mT, dy), run.k * run.until_end, after)
    d_sums = run.q * dq - run.k * dk  # G enters with q as exp(G), with k as exp(-G)
    d_sums[:, -1] += d_whole
    return d_state, dq, dk, dv, sum_from_the_end(d_sums, 1)


def _power(size: int) -> int:
    """The first power of 2 that is not below `size`."""
    return 1 << (size - 1).bit_length()


def _padded(x: Tensor, size: int) -> Tensor:
    """Zeros behind each chunk up to a power of 2 positions; sums go on as they end: (N, size, d_k)."""
    n_more = _power(size) - size
    return torch.cat((x, x[:, -1:].expand(-1, n_more, -1)), dim=1) if n_more else x.contiguous()

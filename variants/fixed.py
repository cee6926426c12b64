"""Fixed sparse attention. Child et al. 2019, arXiv 1904.10509 (Sparse Transformer), section 4.3, both parts in a head.

    y_i = sum over j in A_i of a_ij v_j,  a_i = softmax over these j of q_i k_j / sqrt(d_k)
    A_i = {j <= i: floor(j / l) = floor(i / l)}  and  {j <= i: j mod l >= l - c};    bidirectional: without j <= i
    A block's last c positions are seen by all that follow: two steps join any two positions by way of them.

    l         stride      width of a block; default: the root of max_T, rounded down
    c         n_summary   positions at a block's end that stand for it; default: 8, at most l
    A_i       -           the keys that query i sees
    q, k, v   q, k, v     queries, keys and values of one head
    d_k       d_k         width of queries and keys

How it runs: the queries of some blocks at a time meet, in one fused call, their own block and the summaries of all
blocks before, which are copied for each block: 1 / l of the work. The masks of a call hold T (l + c T / l) entries.

Departures: the paper trains with l = 128 and c = 8 to 32; each head sees both parts (its "merged" form), where the
paper prefers a sub-block of c positions for each head; the bidirectional form is ours; no dropout; projections have no
bias; a query that sees no key gives 0.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels import masked_attention, plain_attention
from attnbench.mixer import Attention, Claim, Flops, Spec, Use, check_count

NO_CROSS = "fixed blocks need queries and keys that stand on one line, so there is no cross role"
N_SUMMARY = 8
N_GROUPS = 8  # calls for a whole sequence: with more of them fewer hidden summaries are multiplied


class Fixed(Attention):
    """Softmax attention to the own block, and to the last positions of every other one."""

    claim = Claim(time="T d^2 + T^1.5 d", memory="T d + T^1.5", sequential="1", path="2")

    def __init__(
        self,
        spec: Spec,
        *,
        stride: Annotated[int, Ge(1)] | None = None,
        n_summary: Annotated[int, Ge(1)] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        if spec.role == "cross":
            raise ValueError(NO_CROSS)
        for name, value in (("stride", stride), ("n_summary", n_summary)):
            if value is not None:
                check_count(name, value)
        if reason := too_many(spec, stride, n_summary):
            raise ValueError(reason)
        self.stride = stride or math.isqrt(spec.max_T)
        self.n_summary = n_summary or min(N_SUMMARY, self.stride)

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: no cross role, as many keys as queries in both directions, and no more summaries than positions."""
        if spec.role == "cross":
            return NO_CROSS
        if reason := too_many(spec, options.get("stride"), options.get("n_summary")):
            return reason
        if spec.role == "bidirectional" and use.T != use.S:
            return f"both directions need as many keys as queries, got T = {use.T} and S = {use.S}"
        return super().unsupported(spec, use, **options)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`; bidirectional needs T = S."""
        T, S = q.shape[2], k.shape[2]
        if self.spec.role == "bidirectional" and T != S:
            raise ValueError(f"fixed blocks in both directions need as many keys as queries, got T = {T} and S = {S}")
        if T > S:  # bottom-right: the first T - S queries stand before every key
            return F.pad(self.attend(q[:, :, T - S :], k, v, key_mask=key_mask), (0, 0, T - S, 0))
        if T == 1 and self.spec.role == "causal":
            return self._attend_last(q, k, v, key_mask)
        skipped, before = divmod(S - T, self.stride)  # whole blocks before the first query, then positions
        q = F.pad(q, (0, 0, before, 0)) if before else q
        mask = None if key_mask is None else key_mask[:, None, :, None]  # (B, 1, S, 1): time where k and v have it
        far = [None if x is None else self._summaries(x) for x in (k, v, mask)]
        ys = []
        for start, stop in self._groups(skipped, S):
            n_far, at = self._n_far(stop, S), start - skipped * self.stride
            near = [None if x is None else x[:, :, start:stop] for x in (k, v, mask)]
            seen = [None if x is None else x[:, :, :n_far] for x in far]
            ys.append(self._attend_blocks(q[:, :, at : at + stop - start], near, seen, start // self.stride))
        return torch.cat(ys, dim=2)[:, :, before:]

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Every pair, under the mask of the definition."""
        T, S = q.shape[2], k.shape[2]
        i, j = torch.arange(S - T, S, device=q.device)[:, None], torch.arange(S, device=q.device)
        seen = (i // self.stride == j // self.stride) | (j % self.stride >= self.stride - self.n_summary)
        seen = seen & (j <= i) if self.spec.role == "causal" else seen
        return plain_attention(q, k, v, seen if key_mask is None else seen & key_mask[:, None, None])

    def flops(self, T: int, S: int) -> Flops:
        """Pairs of the definition; executed, every query of a call with every key of that call."""
        fused, executed, H = self.d_k == self.d_v, self._executed_pairs(T, S), self.spec.n_heads
        copied = 2.0 * H * self._n_copied(T, S) * (self.d_k + self.d_v)
        return Flops(
            self.pair_flops(self._seen_pairs(T, S)),
            self.projection_flops(T, S),
            self.pair_flops(executed),
            backward=2.5 if fused else 2.0,
            core_moved=self.core_moved(T, 0 if T == 1 else S) + copied + (0.0 if fused else 4.0 * H * executed),
            projection_moved=self.projection_moved(T, S),
        )

    def _seen_pairs(self, T: int, S: int) -> int:
        width, c = self.stride, self.n_summary
        whole, rest = divmod(S, width)
        if self.spec.role == "causal":
            return sum(at // width * c + at % width + 1 for at in range(max(0, S - T), S))
        n_late = max(0, rest - (width - c))  # summaries of a block that is not full
        return whole * width * (width + (whole - 1) * c + n_late) + rest * (rest + whole * c)

    def _executed_pairs(self, T: int, S: int) -> int:
        T = min(T, S)
        if T == 1 and self.spec.role == "causal":
            return (S - 1) // self.stride * self.n_summary + (S - 1) % self.stride + 1
        groups = self._groups((S - T) // self.stride, S)
        return sum((stop - start) * (min(self.stride, stop - start) + self._n_far(stop, S)) for start, stop in groups)

    def _n_copied(self, T: int, S: int) -> int:
        """Keys that stand beside each other for the calls: for each block its own, and the summaries it is shown."""
        if min(T, S) == 1:
            return self._executed_pairs(T, S)
        return sum(
            (stop - start) + max(1, (stop - start) // self.stride) * self._n_far(stop, S)
            for start, stop in self._groups((S - min(T, S)) // self.stride, S)
        )

    def _groups(self, skipped: int, S: int) -> list[tuple[int, int]]:
        """Ranges of positions from block `skipped` to S, one for each call: whole blocks, then what is left."""
        whole = S // self.stride
        step = max(1, -(-(whole - skipped) // N_GROUPS))
        starts = range(skipped, whole, step)
        groups = [(start * self.stride, min(start + step, whole) * self.stride) for start in starts]
        return groups + ([(whole * self.stride, S)] if S % self.stride else [])

    def _n_far(self, stop: int, S: int) -> int:
        """Summaries that a call for positions up to `stop` is shown: those before its last block, or all."""
        seen = (stop - 1) // self.stride * self.stride if self.spec.role == "causal" else S
        return seen // self.stride * self.n_summary + max(0, seen % self.stride - (self.stride - self.n_summary))

    def _summaries(self, x: Tensor) -> Tensor:
        """The last `n_summary` positions of each block, also of one that is not full: (B, H, S, D) -> (B, H, m, D)."""
        whole = x.shape[2] // self.stride * self.stride
        first = self.stride - self.n_summary
        blocks = x[:, :, :whole].view(*x.shape[:2], -1, self.stride, x.shape[3])[:, :, :, first:].flatten(2, 3)
        return torch.cat((blocks, x[:, :, whole + first :]), dim=2)

    def _attend_last(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """A single query, at the last key: a decoding step reads its own block and the summaries before it alone."""
        first = (k.shape[2] - 1) // self.stride * self.stride

        def read(x: Tensor) -> Tensor:
            return torch.cat((self._summaries(x[:, :, :first]), x[:, :, first:]), dim=2)

        if key_mask is None:
            return F.scaled_dot_product_attention(q, read(k), read(v))
        return masked_attention(q, read(k), read(v), read(key_mask[:, None, :, None]).transpose(2, 3))

    def _attend_blocks(self, q: Tensor, near: list[Tensor | None], far: list[Tensor | None], first: int) -> Tensor:
        """Blocks from number `first` on, whole ones or a single one that is not: q (B, H, T, d_k) -> (B, H, T, d_v).

        near, far: keys (B, H, T or n_far, d_k), values, and the key mask (B, 1, T or n_far, 1) or None.
        """
        B, T = len(q), q.shape[2]
        width = min(T, self.stride)
        n = T // width

        def blocks(x: Tensor) -> Tensor:  # (B, n, H, width, d)
            return x.reshape(B, x.shape[1], n, width, -1).transpose(1, 2)

        def both(summaries: Tensor, own: Tensor) -> Tensor:  # (B n, H, n_far + width, d)
            shared = summaries[:, None].expand(-1, n, -1, -1, -1)
            return torch.cat((shared, blocks(own)), dim=3).flatten(0, 1)

        k, v, mask = (None if x is None or y is None else both(x, y) for x, y in zip(far, near, strict=True))
        assert k is not None
        assert v is not None
        queries = blocks(q).flatten(0, 1)  # (B n, H, width, d_k)
        visible = self._visible(first, n, k.shape[2] - width, width, q.device)  # (n, 1, width, n_far + width)
        visible = visible.expand(B, -1, -1, -1, -1).flatten(0, 1) if n > 1 else visible
        if mask is None:
            y = F.scaled_dot_product_attention(queries, k, v, attn_mask=visible)
        else:
            y = masked_attention(queries, k, v, visible & mask.transpose(2, 3))
        return y.view(B, n, *y.shape[1:]).transpose(1, 2).flatten(2, 3)

    def _visible(self, first: int, n: int, n_far: int, width: int, device: torch.device) -> Tensor:
        """Which summaries, and which keys of their own block, the queries of n blocks see."""
        block = torch.arange(first, first + n, device=device).view(n, 1, 1, 1)
        of_block = torch.arange(n_far, device=device) // self.n_summary
        own = torch.ones(width, width, dtype=torch.bool, device=device)
        if self.spec.role == "causal":
            others, own = of_block < block, own.tril()
        else:
            others = of_block != block  # those of its own block are among its own keys
        return torch.cat((others.expand(n, 1, width, n_far), own.expand(n, 1, width, width)), dim=3)


def too_many(spec: Spec, stride: int | None, n_summary: int | None) -> str | None:
    """Why a block cannot have so many summaries, or None."""
    width = stride or math.isqrt(spec.max_T)
    if n_summary is not None and n_summary > width:
        return f"n_summary must be at most the stride, {width}, got {n_summary}"
    return None

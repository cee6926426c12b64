"""Block-sparse attention. Zaheer et al. 2020, arXiv 2007.14062 (BigBird), section 2 and appendix D; the ITC form.

    y_i = sum over j in A_i of a_ij v_j,  a_i = softmax over these j of q_i k_j / sqrt(d_k)
    positions stand in n = ceil(T / b) blocks; a query of block m sees the blocks
    m in {0, n - 1}: all      else: 0, n - 1, m - 1, m, m + 1, and r random others, or all that are left

    b         block      positions in a block; the last block may hold fewer
    r         n_random   random blocks that a block of queries sees, other ones in each head
    n         n_blocks   blocks of a sequence
    A_i       -          the keys that query i sees
    q, k, v   q, k, v    queries, keys and values of one head
    d_k       d_k        width of queries and keys

The random blocks are drawn once, from `seed` and the layer, and stored in the state as whole numbers `draws`
(H, max_T / b, r), from which each T takes its own: the j-th block of a row is the draw's remainder among what is left.
So they reach every block of any T, and no pass depends on another. The paper has b = 64 and r = 3; the defaults here,
16 and 2, leave something to skip at the lengths that a CPU is for.

How it runs: the keys of each block of queries, global, near and random, are gathered side by side and meet it in one
fused call; the first and the last block of queries see all keys in another; rows 1 and n - 2, whose windows touch a
global block, have one block less and a call of their own. Nothing is padded or masked unless there is a key_mask.
Up to n = 5 + r blocks, where rows see all blocks or all but one, the same definition is one dense call under its mask:
n alone decides.

Departures: the authors' code falls back to full attention at short T, where here the definition stays what it is; with
a key_mask a sequence ends at its last real key and has the blocks of its own length, so that padding changes nothing,
where theirs takes the padded length; queries behind that end give 0, as one does that sees no key; no dropout;
projections have no bias.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels import gather_blocks, masked_attention, plain_attention
from attnbench.mixer import Attention, Claim, Flops, Spec, Use, check_count

ONE_SEQUENCE = "random blocks look both ways along one sequence, so the only role is bidirectional"
NEAR = 5  # blocks beside the random ones: two global and three near


class BigBird(Attention):
    """Softmax attention to global, near and random blocks."""

    claim = Claim(time="T d^2 + T d block + T d block n_random", memory="T d", sequential="1", path="2")
    draws: Tensor

    def __init__(
        self,
        spec: Spec,
        *,
        block: Annotated[int, Ge(1)] = 16,
        n_random: Annotated[int, Ge(1)] = 2,
        seed: Annotated[int, Ge(0)] = 0,
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        check_count("block", block)
        check_count("n_random", n_random)
        check_count("seed", seed, at_least=0)
        if spec.role != "bidirectional":
            raise ValueError(ONE_SEQUENCE)
        self.block, self.n_random = block, n_random
        generator = torch.Generator().manual_seed(seed + 1_000_003 * spec.layer)
        size = (spec.n_heads, -(-spec.max_T // block), n_random)
        self.attention = self.kind(spec.max_T)  # what to expect; each call sets what it ran
        self.register_buffer("draws", torch.randint(2**31, size, generator=generator, device="cpu"))

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: the bidirectional role alone, as many keys as queries, and no more than max_T of them."""
        if spec.role != "bidirectional":
            return ONE_SEQUENCE
        if use.T != use.S:
            return f"needs as many keys as queries, got T = {use.T} and S = {use.S}"
        if spec.max_T < use.T:
            return f"random blocks are drawn for max_T = {spec.max_T} positions, got T = {use.T}"
        return super().unsupported(spec, use, **options)

    def random_blocks(self, n: int) -> Tensor:
        """Which random blocks of n the rows 1 to n - 2 see: (H, n - 2, r), distinct, none global or near.

        Where fewer than r are left, the row's own block stands in for those that are missing.
        """
        row = torch.arange(1, max(1, n - 1), device=self.draws.device).expand(len(self.draws), -1)  # (H, n - 2)
        taken = [torch.zeros_like(row), row - 1, row, row + 1, torch.full_like(row, n - 1)]
        taken[1] = torch.where(row == 1, n, row - 1)  # n: beyond all, where a near block is a global one
        taken[3] = torch.where(row == n - 2, n, row + 1)
        n_left = n - (torch.stack(taken) < n).sum(0)
        found = []
        for j in range(self.n_random):
            drawn = self.draws[:, 1 : n - 1, j] % (n_left - j).clamp(min=1)
            for one in torch.stack(taken).sort(0).values:  # count over the blocks that are taken
                drawn = drawn + (drawn >= one)
            found.append(torch.where(n_left > j, drawn, row))
            taken.append(torch.where(n_left > j, drawn, n))
        return torch.stack(found, dim=-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`; T = S, up to max_T."""
        T, S = q.shape[2], k.shape[2]
        if T != S or self.spec.max_T < T:
            raise ValueError(f"needs as many keys as queries, up to max_T = {self.spec.max_T}, got T = {T} and S = {S}")
        if self.attention != self.kind(T):
            self.attention = self.kind(T)
        if key_mask is None:
            return self._attend_alike(q, k, v, None)
        order, ys = [], []
        for length, rows in _ends(key_mask):  # rows of one length at a time
            index = torch.tensor(rows, device=q.device)
            q_, k_, v_ = (x.index_select(0, index)[:, :, :length] for x in (q, k, v))
            shown = key_mask[index, :length]
            y = self._attend_alike(q_, k_, v_, None if shown.all() else shown) if length else v_
            order += rows
            ys.append(F.pad(y, (0, 0, 0, T - length)))
        return torch.cat(ys)[torch.tensor(order, device=q.device).argsort()]

    def _attend_alike(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """Sequences that all end at their last position."""
        T, b = q.shape[2], self.block
        n = -(-T // b)
        if self.kind(T) == "dense":
            seen = self._seen(T)
            return masked_attention(q, k, v, seen if key_mask is None else seen & key_mask[:, None, None])
        keys = None if key_mask is None else key_mask[:, None, None]  # (B, 1, 1, S)
        near, middle = self._tables(n)
        ends = _mixed(torch.cat((q[:, :, :b], q[:, :, (n - 1) * b :]), dim=2), k, v, keys)
        beside = torch.cat((q[:, :, b : 2 * b], q[:, :, (n - 2) * b : (n - 1) * b]), dim=2)  # the global blocks
        beside = self._attend_rows(beside, k, v, key_mask, near)
        between = self._attend_rows(q[:, :, 2 * b : (n - 2) * b], k, v, key_mask, middle)
        return torch.cat((ends[:, :, :b], beside[:, :, :b], between, beside[:, :, b:], ends[:, :, b:]), dim=2)

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Every pair, under the mask of the definition."""
        T = q.shape[2]
        key_mask = torch.ones(len(q), T, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        seen = torch.zeros(len(q), self.spec.n_heads, T, T, dtype=torch.bool, device=q.device)
        for row, shown in enumerate(key_mask):
            length = max([at + 1 for at in range(T) if shown[at]], default=0)
            seen[row, :, :length, :length] = self._seen(length) & shown[:length]
        return plain_attention(q, k, v, seen)

    def flops(self, T: int, S: int) -> Flops:
        """Pairs of the definition, which are those that run; of the dense form, all."""
        n, b = -(-T // self.block), self.block
        last = T - (n - 1) * b
        pairs, copied = 0, 0
        for row in range(n):
            n_near = len({0, n - 1, row - 1, row, row + 1} & set(range(n)))
            n_blocks = n if row in (0, n - 1) else n_near + min(self.n_random, n - n_near)
            copied += 0 if row in (0, n - 1) else (n_blocks - 1) * b + last
            pairs += (last if row == n - 1 else b) * ((n_blocks - 1) * b + last)
        fused, dense, H = self.d_k == self.d_v, self.kind(T) == "dense", self.spec.n_heads
        executed = T * S if dense else pairs
        moved = 0.0 if dense else 2.0 * H * copied * (self.d_k + self.d_v)
        return Flops(
            self.pair_flops(pairs),
            self.projection_flops(T, S),
            self.pair_flops(executed),
            backward=2.5 if fused else 2.0,
            core_moved=self.core_moved(T, S) + moved + (0.0 if fused else 4.0 * H * executed),
            projection_moved=self.projection_moved(T, S),
        )

    def extra_record(self) -> dict[str, str]:
        """How the last call ran."""
        return {"attention": self.attention}

    def kind(self, T: int) -> str:
        """How T positions run: `dense` or `blocks`."""
        return "dense" if -(-T // self.block) <= NEAR + self.n_random else "blocks"

    def _seen(self, T: int) -> Tensor:
        """Which keys each query of each head sees, by the definition: (H, T, T)."""
        n, H = -(-T // self.block), self.spec.n_heads
        row = torch.arange(n, device=self.draws.device)
        ends = (row == 0) | (row == n - 1)
        seen = (ends | ends[:, None] | ((row - row[:, None]).abs() <= 1)).repeat(H, 1, 1)  # (H, n, n)
        if n > 2:
            seen[:, 1:-1].scatter_(2, self.random_blocks(n), True)
        of_position = torch.arange(T, device=row.device) // self.block
        return seen[:, of_position][:, :, of_position]

    def _tables(self, n: int) -> tuple[Tensor, Tensor]:
        """Blocks that rows 1 and n - 2, (H, 2, 4 + r), and those between, (H, n - 4, 5 + r), see, the last one last."""
        random = self.random_blocks(n)
        row = torch.arange(n, device=random.device)[:, None]
        near = torch.cat((row * 0, row - 1, row, row + 1), dim=1).expand(len(random), -1, -1)  # (H, n, 4)
        last = (row * 0 + n - 1).expand(len(random), -1, -1)
        first, second_last = near[:, 1:2, 1:], near[:, n - 2 : n - 1, :3]  # the near block that is global counts once
        beside = torch.cat((first, second_last), dim=1), random[:, [0, -1]], last[:, :2]
        middle = near[:, 2 : n - 2], random[:, 1:-1], last[:, 2 : n - 2]
        return torch.cat(beside, dim=2), torch.cat(middle, dim=2)

    def _attend_rows(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, table: Tensor) -> Tensor:
        """Each block of q (B, H, rows block, d_k) meets its row's blocks in `table`, the last of which may be cut."""
        (B, H, T, d_k), S, b = q.shape, k.shape[2], self.block
        missing = -S % b

        def read(x: Tensor) -> Tensor:  # (B H, rows, n_keys, d)
            whole = F.pad(x, (0, 0, 0, missing)) if missing else x
            gathered = gather_blocks(whole, table, b)
            return gathered[:, :, :, : gathered.shape[3] - missing].flatten(0, 1)

        shown = None if key_mask is None else read(key_mask[:, None, :, None].expand(-1, H, -1, -1)).mT
        y = _mixed(q.reshape(B * H, T // b, b, d_k), read(k), read(v), shown)
        return y.reshape(B, H, T, -1)


def _ends(key_mask: Tensor) -> list[tuple[int, list[int]]]:
    """Each place behind a last real key, and the rows of key_mask (B, S) that end there."""
    places = torch.arange(1, key_mask.shape[1] + 1, device=key_mask.device)
    lengths = (key_mask * places).amax(1).tolist()
    return [(length, [row for row, one in enumerate(lengths) if one == length]) for length in sorted(set(lengths))]


def _mixed(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v) if visible is None else masked_attention(q, k, v, visible)

"""FlexAttention: softmax under a named mask, compiled. Dong et al. 2024, arXiv 2412.05496; torch.nn.attention.

    y_i = sum over j in A_i of a_ij v_j,  a_i = softmax over these j of q_i k_j / sqrt(d_k);  j <= i in the causal role
    full      A_i = all
    window    A_i = {j: 0 <= i - j < w};                                     bidirectional: |i - j| <= floor(w / 2)
    strided   A_i = the window, and {j: (i - j) mod w = 0}
    fixed     A_i = {j: floor(j / w) = floor(i / w)}, and {j: j mod w = w - 1}

    w         size      width of the window, stride, width of a block; 64 unless given; `full` has none
    A_i       rule      the keys that query i sees
    q, k, v   q, k, v   queries, keys and values of one head
    d_k       d_k       width of queries and keys

How it runs: the map is cut into squares of 128 positions; those that the mask leaves empty are skipped, those that it
cuts ask it again for each pair. torch.compile writes the code on the first call, which takes 10 to 30 seconds and a
C++ compiler on a CPU, and again for another mask, dtype, or B = 1; T does not matter. Up to two squares a side there
is nothing to skip, and the mask goes whole through the fused kernel: the record says `backend = dense`, not `flex`.

Departures: on a CPU torch has no backward pass for it, and no float64; each head has all of a strided or fixed mask,
which Child et al. 2019 also split over heads; projections have no bias; a query that sees no key gives 0.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, get_args

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels import masked_attention, plain_attention
from attnbench.mixer import (
    Attention,
    Claim,
    Flops,
    Mixer,
    Role,
    Spec,
    State,
    Use,
    check_count,
    check_name,
    visible_pairs,
)

MaskName = Literal["full", "window", "strided", "fixed"]
Rule = Callable[[Tensor, Tensor, Tensor | int], Tensor]  # (i, j, w) -> whether query i sees key j
SQUARE = 128  # positions in a side of what is skipped or not
SIZE = 64
NO_DECODING = "squares of 128 queries save a single query nothing, so there is no decoding form"
NO_BACKWARD = "FlexAttention has no backward pass on a CPU, so the only phase there is forward"


class Flex(Attention):
    """Softmax attention by torch.nn.attention.flex_attention, under a mask chosen by name."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d", sequential="1", path="1")
    step = Mixer.step

    def __init__(
        self, spec: Spec, *, mask: MaskName = "full", size: Annotated[int, Ge(1)] | None = None, **options: Any
    ) -> None:
        super().__init__(spec, **options)
        check_name("mask", mask, get_args(MaskName))
        if size is not None:
            check_count("size", size)
        if reason := _misfit(spec.role, mask, size):
            raise ValueError(reason)
        self.mask, self.size, self.rule = mask, size or SIZE, RULES[mask, spec.role]
        self.backend = "flex" if spec.max_T > 2 * SQUARE else "dense"  # what to expect; each call sets what it ran
        self._squares: dict[tuple[int, int, torch.device], tuple[tuple[Tensor, Tensor], ...]] = {}

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: masks that fit the role, no decoding, and on a CPU no gradients, no float64, no lack of a compiler."""
        mask = options.get("mask", "full")
        if reason := _misfit(spec.role, mask, options.get("size")):
            return reason
        if use.decodes and spec.role != "bidirectional":
            return NO_DECODING
        if spec.role == "bidirectional" and mask != "full" and use.T != use.S:
            return f"mask {mask} in both directions needs as many keys as queries, got T = {use.T} and S = {use.S}"
        if reason := super().unsupported(spec, use, **options):
            return reason
        return _cpu_trouble(use) if use.device == "cpu" else None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`. On a CPU, where it is compiled, no gradient passes."""
        T, S = q.shape[2], k.shape[2]
        if T != S and self.spec.role == "bidirectional" and self.mask != "full":
            raise ValueError(f"mask {self.mask} needs as many keys as queries, got T = {T} and S = {S}")
        if self.spec.role == "causal" and T > S:  # bottom-right: the first T - S queries stand before every key
            return F.pad(self.attend(q[:, :, T - S :], k, v, key_mask=key_mask), (0, 0, T - S, 0))
        backend = "flex" if max(T, S) > 2 * SQUARE else "dense"
        if backend != self.backend:
            self.backend = backend
        if backend == "dense":
            return masked_attention(q, k, v, self._seen(T, S, key_mask, q.device))
        return self._attend_squares(q, k, v, key_mask)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """There is no decoding form: raises NotImplementedError."""
        self._check_inputs(x, context, key_mask)
        raise NotImplementedError(NO_DECODING)

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Every pair, under the mask of the definition."""
        return plain_attention(q, k, v, self._seen(q.shape[2], k.shape[2], key_mask, q.device))

    def flops(self, T: int, S: int) -> Flops:
        """Pairs of the definition; what whole squares multiply beyond them is not counted."""
        return Flops(
            self.pair_flops(self._pairs(T, S)),
            self.projection_flops(T, S),
            self.pair_flops(T * S) if max(T, S) <= 2 * SQUARE else None,
            backward=2.5,
            core_moved=self.core_moved(T, S),
            projection_moved=self.projection_moved(T, S),
        )

    def extra_record(self) -> dict[str, str]:
        """What the last call ran on."""
        return {"backend": self.backend}

    def _pairs(self, T: int, S: int) -> int:
        if self.mask == "full":
            return visible_pairs(T, S, self.spec.role)
        return sum(_n_seen(self.mask, self.size, at, S, self.spec.role) for at in range(max(0, S - T), S))

    def _seen(self, T: int, S: int, key_mask: Tensor | None, device: torch.device) -> Tensor:
        """Which keys each query sees: (T, S), or (B, 1, T, S) with a key_mask."""
        i, j = torch.arange(S - T, S, device=device)[:, None], torch.arange(S, device=device)
        seen = self.rule(i, j, self.size)
        return seen if key_mask is None else seen & key_mask[:, None, None]

    def _attend_squares(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        from torch.nn.attention.flex_attention import BlockMask

        T, S, rule = q.shape[2], k.shape[2], self.rule
        at = T, S, q.device
        if at not in self._squares:
            self._squares[at] = self._cut(*at)
        touched, cut, whole = self._squares[at]
        # numbers in tensors: a number of Python's own would be compiled in, or break the code that is written
        shift, size = torch.tensor(S - T, device=q.device), torch.tensor(self.size, device=q.device)

        def sees(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return rule(i + shift, j, size) if key_mask is None else rule(i + shift, j, size) & key_mask[b, j]

        partial, full = (cut, whole) if key_mask is None else (touched, (None, None))  # a key_mask leaves none whole
        (n, where), (n_full, full_where) = partial, full
        block_mask = BlockMask.from_kv_blocks(
            n, where, n_full, full_where, BLOCK_SIZE=SQUARE, mask_mod=sees, seq_lengths=(T, S)
        )
        if q.device.type != "cpu":
            return _run(q, k, v, block_mask)
        y: Tensor = _ForwardOnly.apply(q, k, v, block_mask)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
        return y

    def _cut(self, T: int, S: int, device: torch.device) -> tuple[tuple[Tensor, Tensor], ...]:
        """Which squares hold a visible pair, which of these hold a hidden one, and which hold none of those.

        Each as numbers (1, 1, rows), how many per row of squares, and (1, 1, rows, columns), which: they come first.
        """
        n_columns = -(-S // SQUARE)
        j = torch.arange(n_columns * SQUARE, device=device)
        some, every = [], []
        for start in range(0, T, SQUARE):  # a row of squares at a time: no map of T x S
            i = torch.arange(start, start + SQUARE, device=device)[:, None]
            seen = (self.rule(i + S - T, j, self.size) & (j < S)).expand(SQUARE, -1)
            seen = seen.view(SQUARE, n_columns, SQUARE)
            some.append(seen[: T - start].any(2).any(0))
            every.append(seen.all(2).all(0))
        touched, whole = torch.stack(some), torch.stack(every)
        if T % SQUARE:
            whole[-1] = False
        return tuple(_listed(squares) for squares in (touched, touched & ~whole, whole))


class _ForwardOnly(torch.autograd.Function):
    """The kernel where it has no backward pass: a gradient that is asked for is an error, and never 0."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, block_mask: Any) -> Tensor:
        return _run(q.detach(), k.detach(), v.detach(), block_mask)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError(NO_BACKWARD)


def _run(q: Tensor, k: Tensor, v: Tensor, block_mask: Any) -> Tensor:
    """The compiled kernel. Raises where torch would give up compiling and run it uncompiled."""
    with warnings.catch_warnings(), torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True):
        warnings.simplefilter("ignore")  # of torch's own code, while it compiles
        y: Tensor = _compiled()(q, k, v, block_mask=block_mask)
    return y


@cache
def _compiled() -> Callable[..., Any]:
    """One function for all mixers: code that is compiled once serves every length."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
    return compiled


def _listed(squares: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, columns) of True and False, as numbers and columns of the squares that are True."""
    columns = squares.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    return squares.sum(1, dtype=torch.int32)[None, None], columns.to(torch.int32)[None, None]


def _full(i: Tensor, j: Tensor, w: Tensor | int) -> Tensor:
    return (i >= j) | (i < j)


def _both(i: Tensor, j: Tensor, w: Tensor | int) -> Tensor:
    return (i - j).abs() <= w // 2


def _fixed(i: Tensor, j: Tensor, w: Tensor | int) -> Tensor:
    return (i // w == j // w) | (j % w == w - 1)


RULES: dict[tuple[str, str], Rule] = {
    ("full", "causal"): lambda i, j, w: i >= j,
    ("full", "bidirectional"): _full,
    ("full", "cross"): _full,
    ("window", "causal"): lambda i, j, w: (i >= j) & (i - j < w),
    ("window", "bidirectional"): _both,
    ("strided", "causal"): lambda i, j, w: (i >= j) & ((i - j < w) | ((i - j) % w == 0)),
    ("strided", "bidirectional"): lambda i, j, w: _both(i, j, w) | ((i - j) % w == 0),
    ("fixed", "causal"): lambda i, j, w: (i >= j) & _fixed(i, j, w),
    ("fixed", "bidirectional"): _fixed,
}


def _n_seen(mask: str, w: int, at: int, S: int, role: Role) -> int:
    """How many of S keys the query at position `at` sees under a mask other than `full`."""
    causal = role == "causal"
    end = at + 1 if causal else S
    if mask == "fixed":
        block = at // w * w
        n_ends = end // w - (not causal and block + w <= S) - (causal and end % w == 0)  # of other blocks
        return min(end, block + w) - block + n_ends
    back, ahead = (w - 1, 0) if causal else (w // 2, w // 2)
    near = min(S, at + ahead + 1) - max(0, at - back)
    n_far = at // w + (0 if causal else (S - 1 - at) // w) if mask == "strided" else 0
    return near + n_far


def _misfit(role: Role, mask: str, size: int | None) -> str | None:
    """Why the options do not go together, or with the role."""
    if mask == "full" and size is not None:
        return f"size must be left out with mask full, got {size}"
    if mask != "full" and role == "cross":
        return f"mask {mask} needs queries and keys that stand on one line, so there is no cross role"
    return None


def _cpu_trouble(use: Use) -> str | None:
    if use.phase != "forward":
        return NO_BACKWARD
    if max(use.T, use.S) <= 2 * SQUARE:
        return None
    if use.dtype == "float64":
        return f"FlexAttention has no float64 on a CPU, beyond {2 * SQUARE} positions"
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # as torch.compile chooses it
    if shutil.which(compiler) is None:
        return f"FlexAttention needs a C++ compiler, and there is no {compiler} (CXX names another)"
    return None

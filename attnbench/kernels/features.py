"""Attention whose weights are products of features: what linear attention and those that replace its features share.

    y_i = phi(q_i) S_i / (phi(q_i) z_i + eps),  S_i = sum_j phi(k_j)^T v_j,  z_i = sum_j phi(k_j)

Katharopoulos et al. 2020, arXiv 2006.16236. j runs over all keys, or causally over j <= i: then S and z are a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels.chunks import pieces
from attnbench.kernels.precision import at_least_float32
from attnbench.kernels.recurrence import matrix_recurrence
from attnbench.mixer import Attention, Claim, Flops, Spec, State, check_count

SMALLEST = 1e-30  # weights that sum to less are nothing: float32 cannot divide by much less


class FeatureAttention(Attention):
    """A subclass writes `phi` and, as its specification, `slow_weights`; all roles, masks and decoding follow.

    n_features: width m of phi(q) and phi(k). eps: what a query adds to the sum of weights that it divides by.
    positional: whether features depend on the position, which the state then holds.
    divided: whether weights are divided by their sum at all; where not, `finish` brings the sum of values to a size.

    Features and sums are float32 at least, since a sum over T overflows float16 and stalls in bfloat16. A query whose
    weights sum to nothing gives 0.
    """

    claim: ClassVar[Claim | None] = Claim(
        time="T d^2 + T d chunk",
        memory="T d + H T chunk + T d^2 / H / chunk",
        sequential="T / chunk",
        path="1",
    )
    equivariant = True
    eps: ClassVar[float] = 0.0
    positional: ClassVar[bool] = False

    def __init__(self, spec: Spec, *, chunk: Annotated[int, Ge(1)] = 64, **options: Any) -> None:
        super().__init__(spec, **options)
        check_count("chunk", chunk)
        self.chunk = chunk
        self.divided = True

    @property
    def n_features(self) -> int:
        """Width of the features: d_k unless a subclass says otherwise."""
        return self.d_k

    @property
    def pair_width(self) -> int:
        """Width of what is multiplied for one weight inside a chunk."""
        return self.n_features

    def phi(self, x: Tensor, which: str, start: int) -> Tensor:
        """Features of x (B, H, T, d_k), which is float32 at least: (B, H, T, m).

        which: "q" or "k". start: the position of the first.
        """
        raise NotImplementedError(f"{type(self).__name__} must define phi")

    def slow_weights(self, q: Tensor, k: Tensor, start: int) -> Tensor:
        """Weights (B, H, T, S) before their division, pair by pair; the first query stands at position `start`."""
        raise NotImplementedError(f"{type(self).__name__} has no slow form")

    def finish(self, y: Tensor) -> Tensor:
        """What becomes of sums of values (B, H, T, d_v) where nothing is divided."""
        return y

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`."""
        if self.spec.role != "causal":
            return self._read(self._features(q, "q", 0), self._summed(k, v, 0, key_mask)["sums"], v.dtype)
        blind = max(0, q.shape[2] - k.shape[2])  # bottom-right: the first T - S queries stand before every key
        y, _ = self._causal(q[:, :, blind:], k, v, key_mask)
        return F.pad(y, (0, 0, blind, 0)) if blind else y

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """All weights over the keys that each query sees, by their sum."""
        before = k.shape[2] - q.shape[2] if self.spec.role == "causal" else 0
        weights = self.slow_weights(q, k, before)
        if self.spec.role == "causal":
            weights = weights.tril(before)
        if key_mask is not None:
            weights = weights * key_mask[:, None, None]
        if not self.divided:
            return self.finish(torch.einsum("bhij,bhjd->bhid", weights, v))
        total = weights.sum(-1, keepdim=True)
        total = torch.where(total < SMALLEST, 1.0, total + self.eps)
        return torch.einsum("bhij,bhjd->bhid", weights / total, v)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Mix the prompt and keep the sums over its keys."""
        self._check_inputs(x, context, key_mask)
        y, state = self.begin(*self.project(x, x if context is None else context), key_mask=key_mask)
        return self.merge(y), state

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Add one key (causal) and read the sums. No state is written to."""
        context = x[:, None] if self.spec.role == "causal" else x.new_empty(x.shape[0], 0, self.spec.d_model)
        y, state = self.proceed(*self.project(x[:, None], context), state=state)
        return self.merge(y)[:, 0], state

    def begin(self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None) -> tuple[Tensor, State]:
        """What `prefill` does between the projections: y (B, H, T, d_v) and the state."""
        if self.spec.role == "causal":
            y, state = self._causal(q, k, v, key_mask)
        else:
            state = self._summed(k, v, 0, key_mask)
            y = self._read(self._features(q, "q", 0), state["sums"], v.dtype)
        state = {name: self._one_per_group(value).clone() for name, value in state.items()}
        return y, state | ({"length": torch.tensor(q.shape[2])} if self.positional else {})

    def proceed(self, q: Tensor, k: Tensor, v: Tensor, *, state: State) -> tuple[Tensor, State]:
        """What `step` does between the projections, with k and v of no position where none is added."""
        at = int(state["length"]) if self.positional else 0
        if k.shape[2]:
            state = state | self._added(k, v, at, state)
        y = self._read(self._features(q, "q", at), self._per_head(state["sums"]), v.dtype)
        return y, state | ({"length": state["length"] + 1} if self.positional else {})

    def flops(self, T: int, S: int) -> Flops:
        """The normaliser counts as one more value channel. Chunks multiply their hidden pairs too."""
        n_causal = min(T, S) if self.spec.role == "causal" else 0
        whole, rest = divmod(n_causal, self.chunk)
        seen = whole * self.chunk * (self.chunk + 1) // 2 + rest * (rest + 1) // 2
        executed = whole * self.chunk**2 + rest**2
        n_reads = n_causal or T
        pair = 2.0 * self.spec.n_heads * (self.pair_width + self._width)
        around = self._sums_flops(S, n_reads, self.spec.n_heads) + self.phi_flops(n_reads, S)
        return Flops(
            around + pair * seen,
            self.projection_flops(T, S),
            core_executed=around + pair * executed,
            core_moved=self.core_moved(T, S) + (0.0 if n_causal else self._features_moved(T, S)),
            projection_moved=self.projection_moved(T, S),
        )

    def step_flops(self, T: int, S: int) -> Flops:
        """Causal: a key's product with its value, added to the sums, and one read; else the read alone."""
        n_new, G = 1 if self.spec.role == "causal" else 0, self.n_kv_heads
        size = self.n_features * self._width
        return Flops(
            self._sums_flops(n_new, 0, G) + self._sums_flops(0, 1, self.spec.n_heads) + self.phi_flops(1, n_new),
            self.projection_flops(1, n_new),
            core_moved=self.core_moved(1, n_new) + (1 + 4 * n_new) * G * size,
            projection_moved=self.projection_moved(1, n_new),
        )

    def phi_flops(self, T: int, S: int) -> float:
        """Products that make the features of T queries and S keys: none unless a subclass has a map there."""
        return 0.0

    @property
    def _width(self) -> int:
        """Columns of the sums: those of the values, and the sum of features."""
        return self.d_v + 1 if self.divided else self.d_v

    def _sums_flops(self, n_written: int, n_read: int, n_heads: int) -> float:
        return 2.0 * n_heads * (n_written + n_read) * self.n_features * self._width

    def _features_moved(self, T: int, S: int) -> float:
        """Features, values with ones, and sums before the division: causal chunks keep them in a core's cache."""
        return 2.0 * self.spec.n_heads * (T + S) * (2 * self.n_features + self._width)

    def _features(self, x: Tensor, which: str, start: int, key_mask: Tensor | None = None) -> Tensor:
        """Features (B, H, T, m), 0 for hidden keys."""
        phi = self.phi(at_least_float32(x), which, start)
        return phi if key_mask is None else phi.masked_fill(~key_mask[:, None, :, None], 0.0)

    def _values(self, v: Tensor) -> Tensor:
        """Values with a column of ones where weights are divided: (B, H, S, width)."""
        return F.pad(at_least_float32(v), (0, 1), value=1.0) if self.divided else at_least_float32(v)

    def _summed(self, k: Tensor, v: Tensor, start: int, key_mask: Tensor | None) -> State:
        """The state behind all keys given: S and z in one, (B, H, m, width)."""
        return {"sums": self._features(k, "k", start, key_mask).transpose(2, 3) @ self._values(v)}

    def _added(self, k: Tensor, v: Tensor, at: int, state: State) -> State:
        """What one more key (B, H, 1, d_k) at position `at` changes of the state; its sums are (B, G, m, width)."""
        phi = self._one_per_group(self._features(k, "k", at))
        return {"sums": state["sums"] + phi.transpose(2, 3) @ self._values(self._one_per_group(v))}

    def _read(self, phi: Tensor, sums: Tensor, dtype: torch.dtype) -> Tensor:
        """Read the sums by the features of queries (B, H, T, m): (B, H, T, d_v)."""
        return self._finished(phi @ sums, dtype)

    def _finished(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, H, T, width) -> (B, H, T, d_v)."""
        if not self.divided:
            return self.finish(y).to(dtype)
        total = y[..., -1:]
        return (y[..., :-1] / (total + self.eps).masked_fill(total < SMALLEST, 1.0)).to(dtype)

    def _causal(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, State]:
        """All queries, the last of which sees the last key; returns y (B, H, T, d_v) and the state behind it."""
        (B, H, T, _), S = q.shape, k.shape[2]
        before = S - T  # keys that every query sees
        numbers = B * H * max(self.n_features, self.d_v)
        cuts = [stop - start for start, stop, _ in pieces(T, self.chunk, numbers, q.device)]
        masks: Sequence[Tensor | None] = (
            [None] * (1 + len(cuts)) if key_mask is None else torch.split(key_mask, [before, *cuts], dim=1)
        )
        (k_first, *ks), (v_first, *vs) = (torch.split(x, [before, *cuts], dim=2) for x in (k, v))
        state, ys = self._summed(k_first, v_first, 0, masks[0]), [v.new_empty(B, H, 0, v.shape[3])]
        at = before
        for q_part, k_part, v_part, hidden in zip(torch.split(q, cuts, dim=2), ks, vs, masks[1:], strict=True):
            y, state = self._mixed((q_part, k_part, self._values(v_part)), at, hidden, state)
            ys.append(self._finished(y, v.dtype))
            at += q_part.shape[2]
        return torch.cat(ys, dim=2), state

    def _mixed(self, qkv: tuple[Tensor, ...], at: int, key_mask: Tensor | None, state: State) -> tuple[Tensor, State]:
        """Sums (B, H, n, width) that n queries read behind `state`, the first at position `at`; and the next state."""
        q, k, values = qkv
        phi_q, phi_k = self._features(q, "q", at), self._features(k, "k", at, key_mask)
        y, sums = matrix_recurrence(phi_q, phi_k, values, state["sums"], chunk=self.chunk)
        return y, {"sums": sums}

"""Linear attention. Katharopoulos et al. 2020, arXiv 2006.16236 ("Transformers are RNNs"), section 3.

    y_i = phi(q_i) S_i / (phi(q_i) z_i + eps),  S_i = sum_j phi(k_j)^T v_j,  z_i = sum_j phi(k_j),  phi(x) = elu(x) + 1
    j runs over all keys, or causally over j <= i: then S_i = S_{i-1} + phi(k_i)^T v_i, a network with a state

    phi       features   positive features, d_k of them
    S, z      state      (d_k, d_v + 1) per head; z is the last column, since v carries a column of ones
    eps       EPS        1e-6, as in the authors' code
    q, k, v   q, k, v    queries, keys and values of one head

How it runs: causally in chunks by matrix products (`matrix_recurrence`), some chunks at a time so that what lies
between the products stays in a core's cache.

Departures: projections have no bias; features and sums are float32 for half-precision inputs, since a sum over T
overflows float16 and stalls in bfloat16; a query that sees no key gives 0.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels import matrix_recurrence
from attnbench.mixer import Attention, Claim, Flops, Spec, State, check_count

EPS = 1e-6
CACHED_NUMBERS = 2**17  # numbers per tensor that are worked on at a time on a CPU


class Linear(Attention):
    """Attention with the kernel phi(q) phi(k)^T in the place of exp(q k^T)."""

    claim = Claim(
        time="T d^2 + T d chunk",
        memory="T d + H T chunk + T d^2 / H / chunk",
        sequential="T / chunk",
        path="1",
    )

    def __init__(self, spec: Spec, *, chunk: Annotated[int, Ge(1)] = 64, **options: Any) -> None:
        super().__init__(spec, **options)
        check_count("chunk", chunk)
        self.chunk = chunk

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`."""
        k = hide(k, key_mask)
        if self.spec.role != "causal":
            return read(features(q), summed(k, v), v.dtype)
        blind = max(0, q.shape[2] - k.shape[2])  # bottom-right: the first T - S queries stand before every key
        y, _ = self._causal(q[:, :, blind:], k, v)
        return F.pad(y, (0, 0, blind, 0)) if blind else y

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Weights phi(q_i) phi(k_j) over the keys that each query sees, by their sum."""
        q, k = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q, k))
        weights = torch.einsum("bhid,bhjd->bhij", q, k)
        if self.spec.role == "causal":
            weights = weights.tril(k.shape[2] - q.shape[2])
        if key_mask is not None:
            weights = weights * key_mask[:, None, None]
        return torch.einsum("bhij,bhjd->bhid", weights / (weights.sum(-1, keepdim=True) + EPS), v)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Mix the prompt and keep the sums over its keys."""
        self._check_inputs(x, context, key_mask)
        q, k, v = self.project(x, x if context is None else context)
        k = hide(k, key_mask)
        if self.spec.role == "causal":
            y, sums = self._causal(q, k, v)
        else:
            sums = summed(k, v)
            y = read(features(q), sums, v.dtype)
        return self.merge(y), {"sums": self._one_per_group(sums).clone()}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Add one key (causal) and read the sums. No state is written to."""
        if self.spec.role == "causal":
            q, k, v = self.project(x[:, None], x[:, None])
            state = {"sums": state["sums"] + summed(self._one_per_group(k), self._one_per_group(v))}
        else:
            q = self.project(x[:, None], x.new_empty(x.shape[0], 0, self.spec.d_model))[0]
        return self.merge(read(features(q), self._per_head(state["sums"]), x.dtype))[:, 0], state

    def flops(self, T: int, S: int) -> Flops:
        """The normaliser counts as one more value channel. Chunks multiply their hidden pairs too."""
        n_causal = min(T, S) if self.spec.role == "causal" else 0
        whole, rest = divmod(n_causal, self.chunk)
        seen = whole * self.chunk * (self.chunk + 1) // 2 + rest * (rest + 1) // 2
        executed = whole * self.chunk**2 + rest**2
        n_reads = n_causal or T
        sums = 2.0 * self.spec.n_heads * (S + n_reads) * self.d_k * (self.d_v + 1)
        pair = 2.0 * self.spec.n_heads * (self.d_k + self.d_v + 1)
        return Flops(
            sums + pair * seen,
            self.projection_flops(T, S),
            core_executed=sums + pair * executed,
            core_moved=self.core_moved(T, S) + (0.0 if n_causal else self._features_moved(T, S)),
            projection_moved=self.projection_moved(T, S),
        )

    def step_flops(self, T: int, S: int) -> Flops:
        """Causal: a key's product with its value, added to the sums, and one read; else the read alone."""
        causal, G = self.spec.role == "causal", self.n_kv_heads
        n_new = 1 if causal else 0
        size = self.d_k * (self.d_v + 1)
        return Flops(
            2.0 * (self.spec.n_heads + n_new * G) * size,
            self.projection_flops(1, n_new),
            core_moved=self.core_moved(1, n_new) + (1 + 4 * n_new) * G * size,
            projection_moved=self.projection_moved(1, n_new),
        )

    def _features_moved(self, T: int, S: int) -> float:
        """Features, values with ones, and sums before the division: causal chunks keep them in a core's cache."""
        return 2.0 * self.spec.n_heads * (T + S) * (2 * self.d_k + self.d_v + 1)

    def _causal(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """All queries, the last of which sees the last key; returns y (B, H, T, d_v) and the last sums."""
        B, H, T, _ = q.shape
        before = k.shape[2] - T  # keys that every query sees
        sums = summed(k[:, :, :before], v[:, :, :before])
        k, v = k[:, :, before:], v[:, :, before:]
        size = self._group(B * H * max(self.d_k, self.d_v)) if q.device.type == "cpu" else T
        ys = []
        for q_part, k_part, v_part in zip(*(torch.split(x, max(1, size), dim=2) for x in (q, k, v)), strict=True):
            y, sums = matrix_recurrence(features(q_part), features(k_part), with_ones(v_part), sums, chunk=self.chunk)
            ys.append(divide(y, v.dtype))
        return torch.cat(ys, dim=2), sums

    def _group(self, numbers_per_position: int) -> int:
        """Positions to work on at a time: whole chunks, at least one."""
        return max(1, CACHED_NUMBERS // (numbers_per_position * self.chunk)) * self.chunk


def features(x: Tensor) -> Tensor:
    """phi(x) = elu(x) + 1, at least in float32."""
    return F.elu(x.to(torch.promote_types(x.dtype, torch.float32))).add_(1.0)


def hide(k: Tensor, key_mask: Tensor | None) -> Tensor:
    """Give hidden keys the features 0: phi(-inf) = 0."""
    return k if key_mask is None else k.masked_fill(~key_mask[:, None, :, None], -torch.inf)


def with_ones(v: Tensor) -> Tensor:
    """Append a column of ones: (B, H, S, d_v) -> (B, H, S, d_v + 1), at least in float32."""
    return F.pad(v.to(torch.promote_types(v.dtype, torch.float32)), (0, 1), value=1.0)


def summed(k: Tensor, v: Tensor) -> Tensor:
    """S and z over all keys given: (B, H, d_k, d_v + 1)."""
    return features(k).transpose(2, 3) @ with_ones(v)


def divide(y: Tensor, dtype: torch.dtype) -> Tensor:
    """Divide by the last column: (B, H, T, d_v + 1) -> (B, H, T, d_v)."""
    return (y[..., :-1] / (y[..., -1:] + EPS)).to(dtype)


def read(q: Tensor, sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Read the sums by features q (B, H, T, d_k): (B, H, T, d_v)."""
    return divide(q @ sums, dtype)

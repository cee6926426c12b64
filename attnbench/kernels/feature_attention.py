"""What attentions with a kernel of features share: roles, key masks, decoding, groups that stay in the cache, costs.

    y_i = sum_j phi(q_i) phi(k_j) v_j / sum_j phi(q_i) phi(k_j)

j runs over all keys, or causally over those up to i; then the two sums over j are a state. Causal sequences run on the
package fla on CUDA where `backend` lets them, with features in the dtype of the model; the rest is always ours.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, get_args

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels.backends import Backend, FlaKernel
from attnbench.kernels.features import causal_features, divide, feature_sums, in_float32, read_features
from attnbench.mixer import Attention, Claim, Flops, Spec, State, Use, check_count, check_name

CACHED_NUMBERS = 2**17  # numbers per tensor that are worked on at a time on a CPU


class FeatureAttention(Attention):
    """A subclass gives `n_features` (m of one head) and `features`, or one for queries and one for keys.

    eps: what is added to the sum of weights before the division; None where nothing is divided.
    counts: whether features depend on the position, which the state then counts.
    """

    claim = Claim(time="T d^2 + T d chunk", memory="T d + T d^2 / H / chunk", sequential="T / chunk", path="1")
    eps: float | None = 0.0
    counts: bool = False
    n_features: int
    fla: ClassVar[FlaKernel] = FlaKernel("simple_gla.chunk_simple_gla")

    def __init__(
        self, spec: Spec, *, chunk: Annotated[int, Ge(1)] = 64, backend: Backend = "auto", **options: Any
    ) -> None:
        super().__init__(spec, **options)
        check_count("chunk", chunk)
        check_name("backend", backend, get_args(Backend))
        if reason := _misfit(spec, backend):
            raise ValueError(reason)
        self.chunk, self.backend, self.ran = chunk, backend, "torch"

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, *, backend: Backend = "auto", **options: Any) -> str | None:
        """Adds: fla only where it has a kernel, and for causal order alone."""
        if reason := super().unsupported(spec, use, **options) or _misfit(spec, backend):
            return reason
        return cls.fla.refusal(backend, device=use.device, dtype=use.dtype, d_k=options.get("d_k") or spec.d_head)

    def features(self, x: Tensor, start: int) -> Tensor:
        """phi of queries or keys (B, H, T, d_k), the first of which stands at `start`: (B, H, T, m), float32 at least.

        None is negative in sum: weights that are products of features have to be at least 0 to be divided.
        """
        raise NotImplementedError(f"{type(self).__name__} must define features")

    def query_features(self, q: Tensor, start: int) -> Tensor:
        """phi of queries, where a factor of each query's own cancels; see `features`."""
        return self.features(q, start)

    def finish(self, y: Tensor) -> Tensor:
        """What follows the division, at float32 at least: (B, H, T, d_v) -> (B, H, T, d_v)."""
        return y

    def feature_flops(self) -> float:
        """Matrix products that phi of one query or key of one head takes."""
        return 0.0

    def project_prompt(self, x: Tensor, context: Tensor) -> tuple[tuple[Tensor, ...], State]:
        """q, k, v of a prompt, and what the projection of the next token needs."""
        return self.project(x, context), {}

    def project_token(self, x: Tensor, state: State) -> tuple[tuple[Tensor, ...], State]:
        """q, k, v of one token (B, 1, d_model), of which a cross role uses q alone; see `project_prompt`."""
        keys = x[:, :0] if self.spec.role == "cross" else x
        return self.project(x, keys), {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`."""
        T, S = q.shape[2], k.shape[2]
        if self.spec.role == "causal":
            blind = max(0, T - S)  # bottom-right: the first T - S queries stand before every key
            y, _ = self._causal(q[:, :, blind:], k, v, key_mask)
            return F.pad(y, (0, 0, blind, 0)) if blind else y
        return self._read(q, self._sums(k, v, key_mask), v.dtype, 0 if self.spec.role == "cross" else S - T)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Mix the prompt and keep the sums over its keys (B, n_kv_heads, m, d_v + 1)."""
        self._check_inputs(x, context, key_mask)
        (q, k, v), kept = self.project_prompt(x, x if context is None else context)
        if self.spec.role == "causal":
            y, sums = self._causal(q, k, v, key_mask)
        else:
            sums = self._sums(k, v, key_mask)
            y = self._read(q, sums, v.dtype, 0)
        length = {"length": torch.tensor(x.shape[1])} if self.counts else {}
        return self.merge(y), {"sums": self._one_per_group(sums).clone()} | length | kept

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Add one key (causal) and read the sums. No state is written to."""
        (q, k, v), kept = self.project_token(x[:, None], state)
        self.ran = "torch"
        at = int(state["length"]) if self.counts else 0
        sums = state["sums"]
        if self.spec.role == "causal":
            k, v = self._one_per_group(k), self._one_per_group(v)
            sums = sums + feature_sums(self.features(k, at), v)
        y = self.merge(self._read(q, self._per_head(sums), x.dtype, at))[:, 0]
        length = {"length": state["length"] + 1} if self.counts else {}
        return y, {"sums": sums} | length | kept

    def flops(self, T: int, S: int) -> Flops:
        """The normaliser counts as one more value channel. Chunks multiply their hidden pairs too.

        Executed, the normaliser of a chunk is a sum of what was multiplied already.
        """
        H, m, d_v, d_norm = self.spec.n_heads, self.n_features, self.d_v, 0 if self.eps is None else 1
        n_causal = min(T, S) if self.spec.role == "causal" else 0
        whole, rest = divmod(n_causal, self.chunk)
        seen = whole * self.chunk * (self.chunk + 1) // 2 + rest * (rest + 1) // 2
        n_reads = n_causal or T
        features = H * (S + n_reads) * self.feature_flops()
        pairs = whole * self.chunk**2 + rest**2
        executed = n_reads * m * (d_v + d_norm) + n_causal * m * d_v + (S - n_causal) * m * (d_v + 1)
        return Flops(
            features + 2.0 * H * ((S + n_reads) * m * (d_v + d_norm) + seen * (m + d_v + d_norm)),
            self.projection_flops(T, S),
            core_executed=features + 2.0 * H * (executed + pairs * (m + d_v)) if self.ran == "torch" else None,
            backward=2.5 if n_causal else 2.0,  # pairs and states are multiplied again
            core_moved=self.core_moved(T, S) + (0.0 if n_causal else self._features_moved(T, S)),
            projection_moved=self.projection_moved(T, S),
        )

    def step_flops(self, T: int, S: int) -> Flops:
        """Causal: a key's product with its value, added to the sums, and one read; else the read alone."""
        H, G, n_new = self.spec.n_heads, self.n_kv_heads, 1 if self.spec.role == "causal" else 0
        size = self.n_features * (self.d_v + 1)
        n_read = self.n_features * (self.d_v + (0 if self.eps is None else 1))
        return Flops(
            (H + n_new * G) * self.feature_flops() + 2.0 * (H * n_read + n_new * G * size),
            self.projection_flops(1, n_new),
            core_moved=self.core_moved(1, n_new) + (1 + 4 * n_new) * G * size,
            projection_moved=self.projection_moved(1, n_new),
        )

    def extra_record(self) -> dict[str, str]:
        """The backend that the last call ran on."""
        return {"backend": self.ran}

    def _features_moved(self, T: int, S: int) -> float:
        """Features, values with ones, and sums before the division: causal chunks keep them in a core's cache."""
        return 2.0 * self.spec.n_heads * (T + S) * (self.n_features + self.d_v + 1)

    def _key_features(self, k: Tensor, start: int, key_mask: Tensor | None) -> Tensor:
        """Hidden keys have the features 0."""
        phi = self.features(k, start)
        return phi if key_mask is None else phi.masked_fill(~key_mask[:, None, :, None], 0.0)

    def _sums(self, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return feature_sums(self._key_features(k, 0, key_mask), v)

    def _read(self, q: Tensor, sums: Tensor, dtype: torch.dtype, start: int) -> Tensor:
        return self.finish(read_features(self.query_features(q, start), sums, eps=self.eps)).to(dtype)

    def _causal(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """All queries, the last of which sees the last key; returns y (B, H, T, d_v) and the last sums."""
        B, H, T, _ = q.shape
        before = k.shape[2] - T  # keys that every query sees
        sums = self._sums(k[:, :, :before], v[:, :, :before], None if key_mask is None else key_mask[:, :before])
        self.ran = self.fla.chosen(self.backend, q, v.dtype) if T > 1 else "torch"
        if self.ran == "fla":
            mask = None if key_mask is None else key_mask[:, before:]
            phi_q, phi_k = self.query_features(q, before), self._key_features(k[:, :, before:], before, mask)
            y, sums = self._on_fla(phi_q, phi_k, v[:, :, before:], sums)
            return self.finish(y).to(v.dtype), sums
        size = self._group(B * H * max(self.n_features, self.d_v)) if q.device.type == "cpu" else max(1, T)
        ys = []
        for at in range(0, max(1, T), size):  # one empty part of an empty prompt
            here = slice(before + at, before + min(at + size, T))
            mask = None if key_mask is None else key_mask[:, here]
            phi_q = self.query_features(q[:, :, at : at + size], before + at)
            phi_k = self._key_features(k[:, :, here], before + at, mask)
            y, sums = causal_features(phi_q, phi_k, v[:, :, here], sums, chunk=self.chunk, eps=self.eps)
            ys.append(self.finish(y).to(v.dtype))
        return ys[0] if len(ys) == 1 else torch.cat(ys, dim=2), sums

    def _on_fla(self, phi_q: Tensor, phi_k: Tensor, v: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """As `causal_features`; the normaliser is summed here, in float32, of the features as they are rounded."""
        phi_q, phi_k = phi_q.to(v.dtype), phi_k.to(v.dtype)
        y, last = self.fla(phi_q, phi_k, v, state=sums[..., :-1].contiguous())
        norms = sums[..., None, :, -1] + in_float32(phi_k).cumsum(2)  # (B, H, T, m)
        if self.eps is not None:
            y = divide(in_float32(y), (in_float32(phi_q) * norms).sum(-1, keepdim=True), self.eps)
        return y, torch.cat((last, norms[:, :, -1, :, None]), dim=-1)

    def _group(self, numbers_per_position: int) -> int:
        """Positions to work on at a time: whole chunks, at least one."""
        return max(1, CACHED_NUMBERS // (numbers_per_position * self.chunk)) * self.chunk


def _misfit(spec: Spec, backend: str) -> str | None:
    if backend == "fla" and spec.role != "causal":
        return f"backend 'fla' has a kernel for the causal role alone, not for {spec.role}"
    return None

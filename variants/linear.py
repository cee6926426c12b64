"""Linear attention. Katharopoulos et al. 2020, arXiv 2006.16236 ("Transformers are RNNs"), section 3.

    y_i = phi(q_i) S_i / (phi(q_i) z_i + eps),  S_i = sum_j phi(k_j)^T v_j,  z_i = sum_j phi(k_j),  phi(x) = elu(x) + 1
    j runs over all keys, or causally over j <= i: then S_i = S_{i-1} + phi(k_i)^T v_i, a network with a state

    phi       phi        elu(x) + 1, relu(x) or x itself, d_k of them
    S, z      sums       (d_k, d_v + 1) per head; z is the last column, since v carries a column of ones
    eps       eps        1e-6, as in the authors' code
    q, k, v   q, k, v    queries, keys and values of one head

How it runs: causally in chunks by matrix products (`matrix_recurrence`), some chunks at a time so that what lies
between the products stays in a core's cache.

Departures: projections have no bias; features and sums are float32 for half-precision inputs, since a sum over T
overflows float16 and stalls in bfloat16; a query that sees no key gives 0. Options that are not the paper's:
`norm = "rms"` divides each head's output by its root mean square and not by the sum of weights (Qin et al. 2022,
arXiv 2210.10340), which features of either sign (`identity`) need; `conv` puts a short convolution and SiLU behind
W_q, W_k and W_v (its products are not counted). On CUDA the package fla reads causal sequences where `backend` lets it,
with features in the dtype of the model; the record says which ran last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels import (
    FeatureAttention,
    FlaKernel,
    ShortConvolutions,
    WithBackend,
    check_no_padding,
    check_right_padding,
    padding_reason,
    split_heads,
)
from attnbench.mixer import Flops, Spec, State, Use, check_count, check_name

RMS_EPS = 1e-3  # a smaller one lets gradients at 0 leave float16
FEATURES = ("elu", "relu", "identity")
NORMS = ("sum", "rms")


class Linear(WithBackend, FeatureAttention):
    """Attention with the kernel phi(q) phi(k)^T in the place of exp(q k^T)."""

    eps = 1e-6
    fla: ClassVar[FlaKernel] = FlaKernel("simple_gla.chunk_simple_gla")

    def __init__(
        self,
        spec: Spec,
        *,
        features: Literal["elu", "relu", "identity"] = "elu",
        norm: Literal["sum", "rms"] = "sum",
        conv: Annotated[int, Ge(0)] = 0,
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        check_name("features", features, FEATURES)
        check_name("norm", norm, NORMS)
        check_count("conv", conv, at_least=0)
        if reason := _misfit(spec, features, norm, conv, self.backend):
            raise ValueError(reason)
        self.kind, self.conv = features, conv
        self.divided = norm == "sum"
        self.normalised = self.divided and features == "elu"  # of relu, a query may share no feature with any key
        self.equivariant = conv == 0
        self.convolutions = ShortConvolutions({"q": self.W_q, "k": self.W_k, "v": self.W_v}, conv)

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: options that do not go together; with a convolution, no padding but on the right of whole sequences."""
        conv, backend = options.get("conv", 0), options.get("backend", "auto")
        if reason := _misfit(spec, options.get("features", "elu"), options.get("norm", "sum"), conv, backend):
            return reason
        reason = padding_reason(use.mask, use.decodes, "a convolution") if conv else None
        return reason or super().unsupported(spec, use, **options)

    def phi(self, x: Tensor, which: str, start: int) -> Tensor:
        """The same for queries and keys, at any position."""
        if self.kind == "elu":
            return F.elu(x).add_(1.0)
        return F.relu(x) if self.kind == "relu" else x

    def slow_weights(self, q: Tensor, k: Tensor, start: int) -> Tensor:
        """phi(q_i) phi(k_j), phi written out."""
        if self.kind == "elu":
            q, k = (torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q, k))
        if self.kind == "relu":
            q, k = (x.clamp(min=0) for x in (q, k))
        return torch.einsum("bhid,bhjd->bhij", q, k)

    def finish(self, y: Tensor) -> Tensor:
        """By the root mean square of a head's channels."""
        return F.rms_norm(y, (self.d_v,), eps=RMS_EPS)

    def project(self, x: Tensor, context: Tensor) -> tuple[Tensor, ...]:
        """Shapes as in `Attention.project`; with a convolution, x and context are the same."""
        return self._behind(x, self.convolutions.nothing(x))[0] if self.conv else super().project(x, context)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`."""
        if self.conv and key_mask is not None:
            check_right_padding(key_mask, "a convolution")
        return super().attend(q, k, v, *extra, key_mask=key_mask)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """The sums over the prompt's keys and, with a convolution, its last inputs: then it takes no key_mask."""
        if not self.conv:
            return super().prefill(x, context=context, key_mask=key_mask)
        self._check_inputs(x, context, key_mask)
        check_no_padding(key_mask)
        parts, after = self._behind(x, self.convolutions.nothing(x))
        y, state = self.begin(*parts, key_mask=None)
        return self.merge(y), state | after

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Add one key (causal) and read the sums. No state is written to."""
        if not self.conv:
            return super().step(x, state)
        parts, after = self._behind(x[:, None], state)
        y, state = self.proceed(*parts, state=state)
        return self.merge(y)[:, 0], state | after

    def proceed(self, q: Tensor, k: Tensor, v: Tensor, *, state: State) -> tuple[Tensor, State]:
        """Shapes as in `FeatureAttention.proceed`; a token alone is always ours."""
        self.ran = "torch"
        return super().proceed(q, k, v, state=state)

    def flops(self, T: int, S: int) -> Flops:
        """What fla executes is not known."""
        found = super().flops(T, S)
        return found if self.ran == "torch" else replace(found, core_executed=None)

    def _causal(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, State]:
        """On the backend that serves."""
        if self.choose(q, v.dtype) == "torch":
            return super()._causal(q, k, v, key_mask)
        before = k.shape[2] - q.shape[2]  # keys that every query sees
        mask = None if key_mask is None else key_mask[:, before:]
        sums = self._summed(k[:, :, :before], v[:, :, :before], 0, None if key_mask is None else key_mask[:, :before])
        phi_q = self._features(q, "q", before).to(v.dtype)
        phi_k = self._features(k[:, :, before:], "k", before, mask).to(v.dtype)
        y, last = self.fla(phi_q, phi_k, v[:, :, before:], state=sums["sums"][..., : self.d_v].contiguous())
        if not self.divided:
            return self._finished(y, v.dtype), {"sums": last}
        # The sum of weights is ours, in float32, of the features as they are rounded.
        z = sums["sums"][..., None, :, -1] + torch.cumsum(phi_k.to(last.dtype), 2)  # (B, H, T, m)
        total = (phi_q.to(last.dtype) * z).sum(-1, keepdim=True)
        together = torch.cat((y.to(last.dtype), total), dim=-1)
        return self._finished(together, v.dtype), {"sums": torch.cat((last, z[:, :, -1, :, None]), dim=-1)}

    def _behind(self, x: Tensor, past: State) -> tuple[tuple[Tensor, ...], State]:
        """q, k, v of x behind `past`, convolved, and the last inputs of each convolution (B, conv - 1, channels)."""
        maps, after = self.convolutions((self.W_q(x), self.W_k(x), self.W_v(x)), past)
        widths = self.d_k, self.d_k, self.d_v
        q, k, v = (split_heads(F.silu(y), width) for y, width in zip(maps, widths, strict=True))  # (B, H or G, T, .)
        return (q, self._per_head(k), self._per_head(v)), after


def _misfit(spec: Spec, features: str, norm: str, conv: int, backend: str) -> str | None:
    """Why these options do not go together, in a few words."""
    if features == "identity" and norm == "sum":
        return (
            'features = "identity" have either sign, so that their sum divides nothing: norm must be "rms", got "sum"'
        )
    if backend == "fla" and spec.role != "causal":
        return f"backend 'fla' has a kernel for the causal role alone, not for {spec.role}"
    if conv and spec.role != "causal":
        return f"a convolution looks back in one sequence: with conv = {conv} the role must be causal"
    return None

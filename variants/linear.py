"""Linear attention. Katharopoulos et al. 2020, arXiv 2006.16236 ("Transformers are RNNs"), section 3.

    y_i = phi(q_i) S_i / (phi(q_i) z_i + eps),  S_i = sum_j phi(k_j)^T v_j,  z_i = sum_j phi(k_j)
    j runs over all keys, or causally over j <= i: then S_i = S_{i-1} + phi(k_i)^T v_i, a network with a state

    phi       features   elu(x) + 1, as in the paper; or relu(x), or x itself; d_k of them
    S, z      sums       state (d_k, d_v + 1) per head; z is the last column, since v carries a column of ones
    eps       EPS        1e-6, as in the authors' code
    q, k, v   q, k, v    queries, keys and values of one head

How it runs: causally in chunks by matrix products (`causal_features`), some chunks at a time so that what lies between
the products stays in a core's cache.

Departures: projections have no bias; features and sums are float32 for half-precision inputs, since a sum over T
overflows float16 and stalls in bfloat16; a query that sees no key, or none that shares a feature of relu, gives 0.
norm = "rms" is the other way to a bounded output (Qin et al. 2022, arXiv 2210.10340): nothing is divided, and an RMS
norm without weights follows in each head. `conv` puts a short causal convolution behind W_q, W_k and W_v; hidden
positions are 0 to it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from attnbench.kernels import FeatureAttention, ShortConvolution, in_float32, short_convolution, visible_keys
from attnbench.mixer import Spec, State, Use, check_count, check_name

EPS = 1e-6
Features = Literal["elu", "relu", "identity"]
Norm = Literal["sum", "rms"]
MAY_CANCEL = 'weights of features = "identity" may sum to 0: norm must be "rms", got "sum"'


class Linear(FeatureAttention):
    """Attention with the kernel phi(q) phi(k)^T in the place of exp(q k^T)."""

    def __init__(
        self,
        spec: Spec,
        *,
        features: Features = "elu",
        norm: Norm = "sum",
        conv: Annotated[int, Ge(0)] = 0,
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        check_name("features", features, get_args(Features))
        check_name("norm", norm, get_args(Norm))
        check_count("conv", conv, at_least=0)
        if reason := _misfit(features, norm):
            raise ValueError(reason)
        self.kind, self.norm, self.conv = features, norm, conv
        self.eps = EPS if norm == "sum" else None
        self.normalised = norm == "sum" and features == "elu"  # of relu, a query may share no feature with any key
        self.equivariant = conv == 0
        self.n_features = self.d_k
        maps = {"q": self.W_q, "k": self.W_k, "v": self.W_v} if conv else {}
        self.convolutions = nn.ModuleDict({name: ShortConvolution(m.out_features, conv) for name, m in maps.items()})

    @classmethod
    def unsupported(
        cls, spec: Spec, use: Use, *, features: Features = "elu", norm: Norm = "sum", **options: Any
    ) -> str | None:
        """Adds: features that may be negative are not divided by their sum."""
        return super().unsupported(spec, use, **options) or _misfit(features, norm)

    def features(self, x: Tensor, start: int) -> Tensor:
        """phi(x), wherever x stands."""
        x = in_float32(x)
        return x if self.kind == "identity" else x.relu() if self.kind == "relu" else F.elu(x).add_(1.0)

    def finish(self, y: Tensor) -> Tensor:
        """The norm of each head, where nothing was divided."""
        return y if self.norm == "sum" else F.rms_norm(y, y.shape[-1:], eps=EPS)

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Weights phi(q_i) phi(k_j) over the keys that each query sees, by their sum or under a norm."""
        if self.kind != "identity":
            q, k = (
                x.relu() if self.kind == "relu" else torch.where(x > 0, x + 1, x.clamp(max=0).exp()) for x in (q, k)
            )
        weights = torch.einsum("bhid,bhjd->bhij", q, k)
        seen = visible_keys(*weights.shape[2:], causal=self.spec.role == "causal", key_mask=key_mask, device=q.device)
        weights = weights if seen is None else weights.where(seen, 0.0)
        if self.norm == "sum":
            weights = weights / (weights.sum(-1, keepdim=True) + EPS)
        y = torch.einsum("bhij,bhjd->bhid", weights, v)
        return y if self.norm == "sum" else y * (y.square().mean(-1, keepdim=True) + EPS).rsqrt()

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`."""
        x, context = self._seen(x, context, key_mask)
        return super().forward(x, context=context, key_mask=key_mask)

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Project, attend slowly, merge."""
        x, context = self._seen(x, context, key_mask)
        return super().slow_forward(x, context=context, key_mask=key_mask)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Mix the prompt and keep the sums over its keys; with `conv`, also the last inputs of the convolutions."""
        x, context = self._seen(x, context, key_mask)
        return super().prefill(x, context=context, key_mask=key_mask)

    def project(self, x: Tensor, context: Tensor) -> tuple[Tensor, ...]:
        """Shapes as in `Attention.project`."""
        return self.project_prompt(x, context)[0]

    def project_prompt(self, x: Tensor, context: Tensor) -> tuple[tuple[Tensor, ...], State]:
        """Also the last inputs of each convolution (B, conv - 1, width)."""
        return self._convolved(x, context, {}) if self.conv else (super().project(x, context), {})

    def project_token(self, x: Tensor, state: State) -> tuple[tuple[Tensor, ...], State]:
        """One more position of the convolutions; those of a context stay where they are."""
        if not self.conv:
            return super().project_token(x, state)
        return self._convolved(x, x[:, :0] if self.spec.role == "cross" else x, state)

    def _convolved(self, x: Tensor, context: Tensor, state: State) -> tuple[tuple[Tensor, ...], State]:
        """q, k and v behind what the state holds, 0 if nothing, and the state after them."""
        heads, after = [], {}
        for name, mapped in (("q", self.W_q(x)), ("k", self.W_k(context)), ("v", self.W_v(context))):
            weight, T = self.convolutions[name].get_parameter("weight"), mapped.shape[1]
            before = state.get(name, mapped.new_zeros(len(mapped), self.conv - 1, len(weight)))
            after[name] = torch.cat((before, mapped), dim=1)[:, T:].clone()
            width = self.d_v if name == "v" else self.d_k
            y = short_convolution(mapped, weight, before)
            heads.append(y.view(len(y), T, -1, width).transpose(1, 2))  # (B, H or G, T, width)
        return (heads[0], *map(self._per_head, heads[1:])), after

    def _seen(self, x: Tensor, context: Tensor | None, key_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Inputs of which a convolution may see every position: hidden ones are 0."""
        self._check_inputs(x, context, key_mask)
        if not self.conv or key_mask is None:
            return x, context
        if context is not None:
            return x, context.masked_fill(~key_mask[..., None], 0.0)
        return x.masked_fill(~key_mask[..., None], 0.0), None


def _misfit(features: str, norm: str) -> str | None:
    return MAY_CANCEL if (features, norm) == ("identity", "sum") else None

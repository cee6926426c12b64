"""Performer, attention by random features (FAVOR+). Choromanski et al. 2020, arXiv 2009.14794, sections 2.3 and 2.4.

    y_i = sum_j (phi(q_i) phi(k_j)) v_j / sum_j phi(q_i) phi(k_j);   E[phi(q) phi(k)] = exp(q k / sqrt(d_k))
    phi(x) = exp(W x' - |x'|^2 / 2), x' = x / d_k^(1/4)     "softmax": positive features
    phi(x) = the same with W above -W                       "hyperbolic": twice as many, of less variance
    phi(x) = relu(W x') + 0.001                             "relu": no softmax, but the paper's best in training

    W           projection    (n_features, d_k); rows orthogonal in blocks of d_k, each of a Gaussian vector's length
    phi         phi           m = n_features features, or twice as many
    S, z        sums          (m, d_v + 1) per head, the keys' sums; z is the last column
    max         scale         largest exponent among the keys so far, by which the sums are divided

How it runs: causally, keys' features are exp(u - scale), where scale is the largest exponent of the keys *so far*: it
grows as keys come, the sums shrink by as much, and no key is scaled by one behind it. That is a recurrence whose decay
is the scale's growth (`matrix_recurrence`), and what it reads is divided by its own sum, in which the scale cancels.
Queries are scaled by their own largest exponent; |q'|^2 and a factor m^(-1/2) cancel, and are left out. Where all keys
are read, exponentials are softmax attention through the rows of W (`attention_through`).

Departures: no epsilon beside the exponentials (authors' code: 1e-6, package performer-pytorch: 1e-4), since it would
not cancel with the scale; a query whose every weight underflows gives 0. All heads of a layer share W, which is drawn
from `seed` and the layer, kept in state_dict, and drawn anew only in training, every `redraw_every` passes, if at all.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels import FeatureAttention, at_least_float32, attention_through, matrix_recurrence, pieces
from attnbench.mixer import Claim, Flops, Spec, State, check_count, check_name

KINDS = ("softmax", "hyperbolic", "relu")
RELU_FLOOR = 1e-3
NO_KEY = -1e30  # the scale before any key
FORGOTTEN = -1e3  # log of a decay that leaves nothing


class Performer(FeatureAttention):
    """Softmax attention's kernel, estimated by the product of random features."""

    claim = Claim(
        time="T d^2 + T d n_features + H T n_features chunk + T d chunk",
        memory="T d + H T n_features + H T chunk + T d n_features / chunk",
        sequential="T / chunk",
        path="1",
    )
    projection: Tensor
    n_passes: Tensor

    def __init__(
        self,
        spec: Spec,
        *,
        n_features: Annotated[int, Ge(1)] = 256,
        kind: Literal["softmax", "hyperbolic", "relu"] = "softmax",
        redraw_every: Annotated[int, Ge(1)] | None = None,
        seed: Annotated[int, Ge(0)] = 0,
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        check_count("n_features", n_features)
        check_name("kind", kind, KINDS)
        if redraw_every is not None:
            check_count("redraw_every", redraw_every)
        check_count("seed", seed, at_least=0)
        self.n_rows, self.kind, self.redraw_every, self.seed = n_features, kind, redraw_every, seed
        self.register_buffer("projection", self._drawn(0).to(torch.get_default_dtype()))
        self.register_buffer("n_passes", torch.tensor(0))

    @property
    def n_features(self) -> int:
        """Width of phi."""
        return 2 * self.n_rows if self.kind == "hyperbolic" else self.n_rows

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Mixer.forward`. In training, every `redraw_every` passes have a projection of their own."""
        if self.training and self.redraw_every is not None:
            self.n_passes = self.n_passes + 1
            n_drawn, rest = divmod(int(self.n_passes), self.redraw_every)
            if not rest:
                self.projection = self._drawn(n_drawn).to(self.projection)
        return super().forward(x, context=context, key_mask=key_mask)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`."""
        if not self._through_rows or 0 in (q.shape[2], k.shape[2]):
            return super().attend(q, k, v, *extra, key_mask=key_mask)
        dtype, exact = v.dtype, torch.promote_types(v.dtype, torch.float32)
        q, k, v = (x.to(exact) for x in (q, k, v))
        rows, far = self._rows(exact), self._far(k)
        if key_mask is None:
            return attention_through(rows, q, k, v, -far).to(dtype)
        blind = ~key_mask.any(-1)[:, None, None, None]
        far = far.masked_fill(~(key_mask[:, None, :, None] | blind), torch.inf)
        return attention_through(rows, q, k, v, -far).masked_fill(blind, 0.0).to(dtype)

    def phi(self, x: Tensor, which: str, start: int) -> Tensor:
        """Features; of exponentials those of queries alone, each by their sum, which is one pass over them."""
        if self.kind == "relu":
            return F.relu(self._projected(x)) + RELU_FLOOR
        return self._exponents(x).softmax(-1)

    def slow_weights(self, q: Tensor, k: Tensor, start: int) -> Tensor:
        """phi(q_i) phi(k_j), feature by feature."""
        total = q.new_zeros(*q.shape[:3], k.shape[2])
        for w in self.projection.to(q.dtype) * self.d_k**-0.25:
            left, right = ((x * w).sum(-1) for x in (q, k))  # (B, H, T) and (B, H, S)
            if self.kind == "relu":
                total = total + (left.clamp(min=0) + 1e-3)[..., None] * (right.clamp(min=0) + 1e-3)[..., None, :]
                continue
            far_q, far_k = (x.square().sum(-1) / (2 * self.d_k**0.5) for x in (q, k))
            for sign in (1, -1) if self.kind == "hyperbolic" else (1,):
                total = total + (sign * left - far_q).exp()[..., None] * (sign * right - far_k).exp()[..., None, :]
        return total

    def flops(self, T: int, S: int) -> Flops:
        """Through the rows of W, both signs of a row are products of their own."""
        found = super().flops(T, S)
        if not self._through_rows:
            return found
        twice = 2.0 * self.spec.n_heads * (T + S) * (self.n_features - self.n_rows) * self.d_k
        return replace(found, core=found.core + twice, core_executed=found.executed + twice)

    def phi_flops(self, T: int, S: int) -> float:
        """Products of queries and keys with W."""
        return 2.0 * self.spec.n_heads * (T + S) * self.n_rows * self.d_k

    def _drawn(self, n: int) -> Tensor:
        """The n-th projection (n_features, d_k), float64, by a generator of its own."""
        generator = torch.Generator().manual_seed(random.Random(f"{self.seed} {self.spec.layer} {n}").getrandbits(62))
        d, n_blocks = self.d_k, -(-self.n_rows // self.d_k)

        def noise() -> Tensor:
            return torch.randn(n_blocks, d, d, generator=generator, dtype=torch.float64, device="cpu")

        Q, R = torch.linalg.qr(noise())
        blocks = (Q * R.diagonal(dim1=1, dim2=2).sign()[:, None]).mT  # signs as they come lean to one side
        rows: Tensor = (blocks * noise().norm(dim=-1, keepdim=True)).flatten(0, 1)[: self.n_rows]
        return rows

    @property
    def _through_rows(self) -> bool:
        return self.spec.role != "causal" and self.kind != "relu"

    def _features_moved(self, T: int, S: int) -> float:
        """Exponents and weights, and queries and keys beside a column of their own."""
        if not self._through_rows:
            return super()._features_moved(T, S)
        return 2.0 * self.spec.n_heads * (T + S) * (2 * self.n_features + self.d_k + 1)

    def _scaled(self, dtype: torch.dtype) -> Tensor:
        """W by d_k^(1/4), so that its products are W x'."""
        W: Tensor = self.projection.to(dtype) * self.d_k**-0.25
        return W

    def _rows(self, dtype: torch.dtype) -> Tensor:
        """What x is multiplied with for the exponents of all m features: (m, d_k)."""
        W = self._scaled(dtype)
        return torch.cat((W, -W)) if self.kind == "hyperbolic" else W

    def _far(self, x: Tensor) -> Tensor:
        """|x'|^2 / 2: (B, H, T, 1)."""
        far: Tensor = x.square().sum(-1, keepdim=True) / (2 * self.d_k**0.5)
        return far

    def _projected(self, x: Tensor) -> Tensor:
        """W x' for all heads: (B, H, T, n_features)."""
        return x @ self._scaled(x.dtype).T

    def _exponents(self, x: Tensor) -> Tensor:
        """Logarithms of the features (B, H, T, m), but for |x'|^2 / 2."""
        u = self._projected(x)
        return torch.cat((u, -u), dim=-1) if self.kind == "hyperbolic" else u

    def _key_exponents(self, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """u (B, H, S, m), what is to be taken off (B, H, S, 1), inf for hidden keys, and the largest difference
        (B, H, S) of each key, NO_KEY at least."""
        k = at_least_float32(k)
        u, off = self._exponents(k), self._far(k)
        if key_mask is not None:
            off = off.masked_fill(~key_mask[:, None, :, None], torch.inf)
        return u, off, (u.detach().amax(-1) - off.detach()[..., 0]).clamp(min=NO_KEY)

    def _summed(self, k: Tensor, v: Tensor, start: int, key_mask: Tensor | None) -> State:
        """Sums (B, H, m, width) and scale (B, H, 1, 1) of all keys, some at a time so that they stay in a cache."""
        if self.kind == "relu":
            return super()._summed(k, v, start, key_mask)
        (B, H, S, _), values = k.shape, self._values(v)
        sums = values.new_zeros(B, H, self.n_features, values.shape[-1])
        state = {"sums": sums, "scale": sums.new_full((B, H, 1, 1), NO_KEY)}
        cuts = [stop - first for first, stop, _ in pieces(S, self.chunk, B * H * self.n_features // 4, k.device)]
        masks = [None] * len(cuts) if key_mask is None else torch.split(key_mask, cuts, dim=1)
        for k_part, v_part, hidden in zip(torch.split(k, cuts, 2), torch.split(values, cuts, 2), masks, strict=True):
            state = _onto(state, *self._key_exponents(k_part, hidden), v_part)
        return state

    def _added(self, k: Tensor, v: Tensor, at: int, state: State) -> State:
        if self.kind == "relu":
            return super()._added(k, v, at, state)
        u, off, largest = (self._one_per_group(one) for one in self._key_exponents(k, None))
        return _onto(state, u, off, largest, self._values(self._one_per_group(v)))

    def _mixed(self, qkv: tuple[Tensor, ...], at: int, key_mask: Tensor | None, state: State) -> tuple[Tensor, State]:
        if self.kind == "relu":
            return super()._mixed(qkv, at, key_mask, state)
        q, k, values = qkv
        u, off, largest = self._key_exponents(k, key_mask)
        scale = torch.maximum(largest.cummax(-1).values, state["scale"][..., 0])  # (B, H, n)
        decay = (torch.cat((state["scale"][..., 0], scale[..., :-1]), dim=-1) - scale).clamp(min=FORGOTTEN)
        phi_q, phi_k = self._features(q, "q", at), _by_scale(u, off, scale[..., None])
        y, sums = matrix_recurrence(phi_q, phi_k, values, state["sums"], chunk=self.chunk, log_decay=decay)
        return y, {"sums": sums, "scale": scale[..., -1:, None]}


def _onto(state: State, u: Tensor, off: Tensor, largest: Tensor, values: Tensor) -> State:
    """Add keys of exponents u - off (B, H, n, m), n at least 1, to sums that are brought to their scale."""
    scale = torch.maximum(state["scale"], largest.amax(-1)[..., None, None])
    sums = state["sums"] * (state["scale"] - scale).exp() + _by_scale(u, off, scale).mT @ values
    return {"sums": sums, "scale": scale}


def _by_scale(u: Tensor, off: Tensor, scale: Tensor) -> Tensor:
    """exp(u - off - scale), in the place of u (B, H, n, m), which is large."""
    return u.sub_(off + scale).exp_()

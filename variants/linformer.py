"""Linformer (`linformer`). Wang, Li, Khabsa, Fang and Ma 2020, arXiv 2006.04768, section 4.

    y = softmax(Q (E K)^T / sqrt(d_k)) (F V)

    E, F      E, F       (rank, max_T) each, learned, shared by the heads; for S keys, their first S columns
    k         rank       projected keys, whatever S is
    Q, K, V   q, k, v    queries, keys and values of one head

How it runs: E and F meet the keys and values of all heads in one product each, then fused attention.

Departures: projections have no bias. sharing "kv" lets F be E. Where rank is more than S, there are more projected
keys than keys. Hidden keys are 0 before E and F, so that they are as good as absent. Weights over projected values sum
to 1, those over the values themselves do not. E and F would have to be known for every length of a prefix, or would mix
the future in: there is no causal role; and none of queries that read another sequence, whose length is its own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor, nn

from attnbench.mixer import Attention, Claim, Flops, Spec, Use, check_count, check_name

NO_CAUSAL = "projected keys mix all positions, the future too, so there is no causal role"
NO_CROSS = "the projection is of positions up to max_T of one sequence, so there is no cross role"


class Linformer(Attention):
    """Softmax attention to `rank` learned mixtures of the keys."""

    claim = Claim(time="T d^2 + T d rank", memory="T d + d rank", sequential="1", path="1")
    normalised = False

    def __init__(
        self,
        spec: Spec,
        *,
        rank: Annotated[int, Ge(1)] = 256,
        sharing: Literal["heads", "kv"] = "heads",
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        check_count("rank", rank)
        check_name("sharing", sharing, ("heads", "kv"))
        if reason := _misfit(spec):
            raise ValueError(reason)
        self.rank = rank
        self.E = nn.Parameter(0.02 * torch.randn(rank, spec.max_T))
        self.F = self.E if sharing == "kv" else nn.Parameter(0.02 * torch.randn(rank, spec.max_T))

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: only the bidirectional role."""
        return _misfit(spec) or super().unsupported(spec, use, **options)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`. Raises ValueError for more keys than max_T."""
        k, v = self._shown(k, key_mask), self._shown(v, key_mask)
        k, v = self._projected(self.E, k), self._projected(self.F, v)
        return F.scaled_dot_product_attention(q, self._per_head(k), self._per_head(v))

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Projected, weighed, summed, head by head."""
        real = k.new_ones(len(k), k.shape[2]) if key_mask is None else key_mask.to(k)
        S = k.shape[2]
        keys = torch.einsum("rs,bhsd,bs->bhrd", self.E[:, :S], k, real)
        values = torch.einsum("rs,bhsd,bs->bhrd", self.F[:, :S], v, real)
        weights = (torch.einsum("bhtd,bhrd->bhtr", q, keys) / q.shape[-1] ** 0.5).exp()
        return torch.einsum("bhtr,bhrd->bhtd", weights / weights.sum(-1, keepdim=True), values)

    def flops(self, T: int, S: int) -> Flops:
        """Keys and values are projected once per group, then T queries meet `rank` keys.

        Numbers moved are known where E and F are read whole: parameters are counted elsewhere, all of them.
        """
        onto = 2.0 * S * self.rank * self.n_kv_heads * (self.d_k + self.d_v)
        return Flops(
            onto + self.pair_flops(T * self.rank),
            self.projection_flops(T, S),
            core_moved=self.core_moved(T, S) if self.spec.max_T == S else None,
            projection_moved=self.projection_moved(T, S),
        )

    def core_moved(self, T: int, S: int) -> float:
        """Numbers of q and y, of each group's keys and values, of these projected, of scores that a kernel writes."""
        H, written_out = self.spec.n_heads, 0 if self.d_k == self.d_v else 4 * T * self.rank
        return float((H * T + self.n_kv_heads * (S + 2 * self.rank)) * (self.d_k + self.d_v) + H * written_out)

    def _shown(self, kv: Tensor, key_mask: Tensor | None) -> Tensor:
        """One head per group (B, G, S, D), 0 where hidden."""
        kv = self._one_per_group(kv)
        return kv if key_mask is None else kv.masked_fill(~key_mask[:, None, :, None], 0.0)

    def _projected(self, matrix: Tensor, kv: Tensor) -> Tensor:
        """(rank, max_T) and (B, G, S, D) -> (B, G, rank, D)."""
        _, G, S, D = kv.shape
        if self.spec.max_T < S:
            raise ValueError(f"S = {S} keys do not fit max_T = {self.spec.max_T}")
        joined = kv.transpose(1, 2).flatten(2)  # (B, S, G D)
        return (matrix[:, :S] @ joined).view(-1, self.rank, G, D).transpose(1, 2)


def _misfit(spec: Spec) -> str | None:
    return {"causal": NO_CAUSAL, "cross": NO_CROSS}.get(spec.role)

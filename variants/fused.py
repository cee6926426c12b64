"""Fused attention: full attention through torch's kernel. Dao et al. 2022, arXiv 2205.14135 (FlashAttention).

    y = softmax(Q K^T / sqrt(d_k) + M) V, a tile of keys at a time: the (T, S) map never stands in memory

    Q, K, V   q, k, v    queries, keys and values of one head
    d_k       d_k        width of queries and keys
    M         visible    True where the query may see the key; none is built where the kernel knows the pattern itself

Departures: no attention dropout; projections have no bias; torch chooses the kernel (its name is in the record as
`backend`): on a CPU flash, or the written-out form where d_k and d_v differ. A query that sees no key gives 0.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.kernels import masked_attention, plain_attention, plainly_visible, visible_keys
from attnbench.mixer import Attention, Claim, Flops, Spec, visible_pairs

BACKENDS = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}  # numbers of torch's SDPBackend


class Fused(Attention):
    """Softmax attention by F.scaled_dot_product_attention."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d", sequential="1", path="1")
    equivariant = True

    def __init__(self, spec: Spec, **options: Any) -> None:
        super().__init__(spec, **options)
        self.backend = "flash" if self.d_k == self.d_v else "math"  # what to expect; each call sets what it got

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`."""
        T, S, causal = q.shape[2], k.shape[2], self.spec.role == "causal"
        is_causal = causal and T == S and key_mask is None  # torch's flag aligns top-left, so only the square is ours
        visible = None
        if not is_causal:
            visible = visible_keys(T, S, causal=causal, key_mask=key_mask, device=q.device)
        backend = BACKENDS[torch._fused_sdp_choice(q, k, v, visible, 0.0, is_causal)]  # what the call itself will ask
        if backend != self.backend:
            self.backend = backend
        if visible is not None and (key_mask is not None or T > S):  # a query may see no key
            return masked_attention(q, k, v, visible)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=is_causal)

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Softmax over the keys that each query sees; 0 where there is none."""
        T, S, causal = q.shape[2], k.shape[2], self.spec.role == "causal"
        seen = plainly_visible(T, S, causal=causal, key_mask=key_mask, device=q.device)
        return plain_attention(q, k, v, seen)

    def flops(self, T: int, S: int) -> Flops:
        """Without a key mask. Flash kernels compute the scores again in the backward pass."""
        pairs = visible_pairs(T, S, self.spec.role)
        executed = self._executed_pairs(T, S)
        written_out = self.backend == "math"
        return Flops(
            self.pair_flops(pairs),
            self.projection_flops(T, S),
            self.pair_flops(executed),
            backward=2.0 if written_out else 2.5,
            core_moved=self.core_moved(T, S) + (4.0 * self.spec.n_heads * T * S if written_out else 0.0),
            projection_moved=self.projection_moved(T, S),
        )

    def extra_record(self) -> dict[str, str]:
        """The kernel that the last call ran on."""
        return {"backend": self.backend}

    def _executed_pairs(self, T: int, S: int) -> int:
        if self.spec.role != "causal" or T != S or self.backend == "math":
            return T * S  # a mask hides results, it saves no work
        if self.W_q.weight.device.type == "cpu":
            return cpu_flash_pairs(T)
        return visible_pairs(T, S, "causal")


def cpu_flash_pairs(T: int) -> int:
    """Pairs that torch's CPU kernel multiplies for causal T x T (FlashAttentionKernel.cpp, torch 2.11 to 2.13).

    A tile of 32, 64 or 256 queries meets whole tiles of 512 keys, up to the one that holds its diagonal: up to
    T = 512 a causal mask saves nothing.
    """
    tile = 256 if T >= 768 else 64 if T >= 192 else 32
    starts = range(0, T, tile)
    ends = [min(start + tile, T) for start in starts]
    return sum((end - start) * min(-(-end // 512) * 512, T) for start, end in zip(starts, ends, strict=True))

"""Memory-efficient attention of xformers. Rabe and Staats 2021, arXiv 2112.05682; Lefaudeux et al. 2022, the package.

    y = softmax(Q K^T / sqrt(d_k) + M) V, a tile of keys at a time: the (T, S) map never stands in memory

    Q, K, V   q, k, v      queries, keys and values of one head; the package has time before heads, (B, T, H, D)
    d_k       d_k          width of queries and keys
    M         attn_bias    none, or causal and aligned bottom-right

How it runs: xformers.ops.memory_efficient_attention, which chooses its own kernel. The package is optional, has kernels
for CUDA alone, and is imported when it is first needed.

Departures: no dropout; projections have no bias; there are no key masks, since the package takes them only as a dense
(T, S) bias, the very map that it is there to avoid; a query that sees no key gives 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from attnbench.kernels import imported, plain_attention, plainly_visible
from attnbench.mixer import Attention, Claim, Flops, Spec, Use, visible_pairs

ALIGNMENT = {"float32": 4, "float16": 8, "bfloat16": 8}  # widths of heads that the kernels take are multiples of these


class XFormers(Attention):
    """Softmax attention by xformers.ops.memory_efficient_attention."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d", sequential="1", path="1")
    equivariant = True

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: CUDA, float32 and below, no key masks, aligned widths, and a package that can be imported."""
        if reason := super().unsupported(spec, use, **options):
            return reason
        if not use.device.startswith("cuda"):
            return f"xformers has kernels for CUDA alone, not for {use.device}"
        if use.dtype not in ALIGNMENT:
            return f"xformers takes {', '.join(ALIGNMENT)}, not {use.dtype}"
        if use.mask != "none":
            return "xformers takes a key mask only as a dense (T, S) bias"
        step = ALIGNMENT[use.dtype]
        widths = [options.get(name) or spec.d_head for name in ("d_k", "d_v")]
        if any(width % step for width in widths):
            return (
                f"xformers needs heads of a width divisible by {step} in {use.dtype}, got {widths[0]} and {widths[1]}"
            )
        found = imported(_kernel, "xformers", "pip install xformers, built for this torch")
        return found if isinstance(found, str) else None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`. Raises ValueError for a key_mask, RuntimeError where no kernel serves."""
        memory_efficient_attention, bottom_right = _kernel()
        if key_mask is not None:
            raise ValueError("xformers takes a key mask only as a dense (T, S) bias: give no key_mask")
        T, S, causal = q.shape[2], k.shape[2], self.spec.role == "causal"
        blind = max(0, T - S) if causal else 0  # bottom-right: the first T - S queries stand before every key
        bias = bottom_right() if causal else None
        q, k, v = (x.transpose(1, 2) for x in (q[:, :, blind:], k, v))  # (B, T or S, H, D)
        try:
            y: Tensor = memory_efficient_attention(q, k, v, attn_bias=bias)
        except NotImplementedError as error:
            why = str(error).partition("\n")[0]
            raise RuntimeError(f"xformers has no kernel here; `python -m xformers.info` lists them: {why}") from error
        y = y.transpose(1, 2)  # (B, H, T, d_v)
        return F.pad(y, (0, 0, blind, 0)) if blind else y

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Softmax over the keys that each query sees; 0 where there is none."""
        T, S, causal = q.shape[2], k.shape[2], self.spec.role == "causal"
        seen = plainly_visible(T, S, causal=causal, key_mask=key_mask, device=q.device)
        return plain_attention(q, k, v, seen)

    def flops(self, T: int, S: int) -> Flops:
        """The kernels skip what a causal order hides, and compute the scores again in the backward pass."""
        core = self.pair_flops(visible_pairs(T, S, self.spec.role))
        moved = {"core_moved": self.core_moved(T, S), "projection_moved": self.projection_moved(T, S)}
        return Flops(core, self.projection_flops(T, S), backward=2.5, **moved)


def _kernel() -> tuple[Callable[..., Tensor], Callable[[], Any]]:
    """The package's attention and its causal mask, aligned bottom-right."""
    from xformers.ops import memory_efficient_attention
    from xformers.ops.fmha.attn_bias import LowerTriangularFromBottomRightMask

    return memory_efficient_attention, LowerTriangularFromBottomRightMask

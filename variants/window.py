"""Sliding-window attention. Beltagy et al. 2020, arXiv 2004.05150 (Longformer), section 3.1, without global tokens.

    y_i = sum_j a_ij v_j,  a_i = softmax over visible j of q_i k_j / sqrt(d_k)
    causal: 0 <= i - j < w (a token counts itself);  bidirectional: |i - j| <= floor(w / 2)

    w         window        positions that a causal query sees
    i - j     back, ahead   how far a query looks back, and ahead
    q, k, v   q, k, v       queries, keys and values of one head
    d_k       d_k           width of queries and keys

How it runs: queries stand in blocks of about w / 2, and each block meets the keys that its windows touch through fused
attention, all blocks in one call. These keys are overlapping views (copied, three times over, only where B > 1), so
memory is linear in T. The queries at both ends, whose windows stick out, are two small calls: nothing is padded.

Departures: no global tokens, no dilation, no dropout; projections have no bias; a query that sees no key gives 0.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
import torch.nn.functional as F
from annotated_types import Ge
from torch import Tensor

from attnbench.kernels import band, overlapping_blocks
from attnbench.mixer import Attention, Claim, Flops, Spec, State, Use, visible_pairs

SMALLEST_BLOCK = 32  # in smaller blocks the overhead outgrows the work
NO_CROSS = "a window needs queries and keys that stand on one line, so there is no cross role"


class SlidingWindow(Attention):
    """Softmax attention to the nearest positions only."""

    claim = Claim(time="T d^2 + T d window", memory="T d")

    def __init__(self, spec: Spec, *, window: Annotated[int, Ge(1)] = 64, **options: Any) -> None:
        super().__init__(spec, **options)
        if spec.role == "cross":
            raise ValueError(NO_CROSS)
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.window = window
        self.back, self.ahead = (window - 1, 0) if spec.role == "causal" else (window // 2, window // 2)
        self.block = max(SMALLEST_BLOCK, (self.back + self.ahead) // 2 + 1)

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: no cross role."""
        return super().unsupported(spec, use, **options) or (NO_CROSS if spec.role == "cross" else None)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Shapes as in `Attention.attend`; bidirectional needs T = S."""
        T, S = q.shape[2], k.shape[2]
        if self.spec.role == "bidirectional" and T != S:
            raise ValueError(f"a bidirectional window needs as many keys as queries, got T = {T} and S = {S}")
        if T > S:  # bottom-right: the first T - S queries stand before every key
            return F.pad(self.attend(q[:, :, T - S :], k, v, key_mask=key_mask), (0, 0, T - S, 0))
        pieces = []
        for start, stop, in_blocks in self._pieces(T, S):
            low, high = self._reach(start, stop, T, S)
            mask = None if key_mask is None else key_mask[:, low:high]
            mix = self._mix_blocks if in_blocks else self._mix_end
            pieces.append(mix(q[:, :, start:stop], k[:, :, low:high], v[:, :, low:high], mask, start + S - T - low))
        return torch.cat(pieces, dim=2)

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Attend over the prompt and keep keys and values of its last `window` positions."""
        self._check_context(context)
        q, k, v = self.project(x, x)
        y = x if x.shape[1] == 0 else self.merge(self.attend(q, k, v, key_mask=key_mask))
        state = {"k": self._one_per_group(k), "v": self._one_per_group(v)}
        if key_mask is not None:
            state["key_mask"] = key_mask[:, None, :, None]  # (B, 1, S, 1): time stands where k and v have it
        return y, {name: past[:, :, -self.window :].clone() for name, past in state.items()}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Attend from one token to the last `window` positions, itself among them. No state is written to."""
        q, k, v = self.project(x[:, None], x[:, None])
        new = {"k": self._one_per_group(k), "v": self._one_per_group(v), "key_mask": x.new_ones(x.shape[0], 1, 1, 1)}
        both = {name: torch.cat((past, new[name].to(past.dtype)), dim=2) for name, past in state.items()}
        state = {name: kept[:, :, -self.window :] for name, kept in both.items()}
        mask = state["key_mask"].transpose(2, 3) if "key_mask" in state else None  # (B, 1, 1, S)
        y = F.scaled_dot_product_attention(q, self._per_head(state["k"]), self._per_head(state["v"]), attn_mask=mask)
        return self.merge(y)[:, 0], state

    def flops(self, T: int, S: int) -> Flops:
        """Pairs inside the window; executed, every query of a call with every key of that call."""
        n_sides, n_queries = (1 if self.spec.role == "causal" else 2), min(T, S)
        beyond = n_sides * visible_pairs(T, max(0, S - self.back - 1), "causal")
        executed = 0
        for start, stop, in_blocks in self._pieces(n_queries, S):
            low, high = self._reach(start, stop, n_queries, S)
            executed += (stop - start) * (self._block_keys if in_blocks else high - low)
        seen = visible_pairs(T, S, self.spec.role) - beyond
        backward = 2.5 if self.d_k == self.d_v else 2.0  # fused attention runs written out where the widths differ
        return Flops(self.pair_flops(seen), self.projection_flops(T, S), self.pair_flops(executed), backward)

    @property
    def _block_keys(self) -> int:
        return self.back + self.block + self.ahead

    def _pieces(self, T: int, S: int) -> list[tuple[int, int, bool]]:
        """Ranges of queries, and whether they are whole blocks with all their windows inside the sequence."""
        first = -(-max(0, self.back - (S - T)) // self.block) * self.block
        last = (T - self.ahead) // self.block * self.block
        if last <= first:
            return [(0, T, False)]
        pieces = [(0, first, False), (first, last, True), (last, T, False)]
        return [piece for piece in pieces if piece[0] < piece[1]]

    def _reach(self, start: int, stop: int, T: int, S: int) -> tuple[int, int]:
        """The range of keys that queries start to stop may see."""
        return max(0, start + S - T - self.back), min(S, stop + S - T + self.ahead)

    def _mix_end(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, offset: int) -> Tensor:
        """One dense call; q's first position is k's position `offset`."""
        visible = band(q.shape[2], k.shape[2], back=self.back, ahead=self.ahead, offset=offset, device=q.device)
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :]  # (B, 1, T, S)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)

    def _mix_blocks(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, offset: int) -> Tensor:
        """Whole blocks in one call: (B, H, n block, d_k) meets (B, H, back + n block + ahead, d_k)."""
        B, H, T, d_k = q.shape
        n, size = T // self.block, self._block_keys
        q = q.view(B, H, n, self.block, d_k)
        k, v = (overlapping_blocks(x, size, self.block) for x in (k, v))  # (B, H, n, size, d_k or d_v)
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))  # (B n, H, block or size, d_k or d_v)
        visible = band(self.block, size, back=self.back, ahead=self.ahead, offset=offset, device=q.device)
        if key_mask is not None:
            keys = key_mask.unfold(1, size, self.block).flatten(0, 1)  # (B n, size)
            visible = visible & keys[:, None, None, :]  # (B n, 1, block, size)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)  # (B n, H, block, d_v)
        return y.view(B, n, H, self.block, -1).transpose(1, 2).flatten(2, 3)  # (B, H, n block, d_v)

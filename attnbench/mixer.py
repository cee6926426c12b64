"""The interface: what a way of mixing a sequence is to attnbench, and all that a plugin needs.

A new attention subclasses `Attention` and writes one method, `attend`. Anything without queries and keys (an RNN, a
state-space model, a convolution) subclasses `Mixer`. Conventions that hold for every variant:

* causal masks are aligned bottom-right: the last query sees the last key, also when T != S (decoding needs it);
* `key_mask` is (B, S), True where a key is real; a query that sees no key at all gives 0, so projections have no bias;
* a position that is padding may hold anything finite in the output, and never changes a real position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from attnbench.settings import ROLES, PositionKind, Role

__all__ = [
    "Attention",
    "Claim",
    "Flops",
    "Mask",
    "Mixer",
    "PositionKind",
    "Role",
    "Spec",
    "State",
    "Use",
    "check_count",
    "check_name",
    "visible_pairs",
]

Mask = Literal["none", "right", "any"]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Spec:
    """What a model tells a mixer about the place it will fill. New fields have defaults and break no plugin."""

    d_model: int
    n_heads: int
    max_T: int
    role: Role = "causal"
    layer: int = 0

    def __post_init__(self) -> None:
        for field in ("d_model", "n_heads", "max_T"):
            check_count(field, getattr(self, field))
        check_name("role", self.role, ROLES)
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model must be divisible by n_heads, got {self.d_model} and {self.n_heads}")

    @property
    def d_head(self) -> int:
        """Width of one head, d_model / n_heads."""
        return self.d_model // self.n_heads


@dataclass(frozen=True)
class Use:
    """One intended use of a mixer, put to `Mixer.unsupported`: where it runs, at which sizes, with which masks.

    mask: `none`, `right` (padding on the right only) or `any` (any subset of the keys may be hidden).
    phase: `prefill` and `decode` ask for decoding; every other phase runs whole sequences.
    """

    T: int
    S: int
    device: str = "cpu"
    dtype: str = "float32"
    mask: Mask = "none"
    phase: str = "forward"

    @property
    def decodes(self) -> bool:
        """Whether this use needs `prefill` and `step`."""
        return self.phase in ("prefill", "decode")


@dataclass(frozen=True)
class Claim:
    """A variant's claimed asymptotic cost, as sums of terms in T, S, d, H and its own options.

    Example: `Claim(time="T d^2 + T^2 d", memory="T d + H T^2")`. Memory is what a training step keeps.

    sequential: operations that must follow one another in a layer. path: the most layers, or steps within one, between
    two positions. Both as in table 1 of Vaswani et al. 2017, arXiv 1706.03762, and in the same letters.
    """

    time: str
    memory: str
    sequential: str | None = None
    path: str | None = None


@dataclass(frozen=True)
class Flops:
    """Forward cost of one sequence (B = 1) in floating-point operations; a multiply-add counts 2.

    Matrix products only: softmax and other elementwise work is not counted, for any variant.

    core: mixing alone, visible pairs only (a causal mask halves it).
    projection: the maps around it (W_q, W_k, W_v, W_o and their like).
    core_executed: what the implementation really multiplies; equals `core` unless given.
    backward: executed core work of the backward pass in units of the forward's (flash kernels recompute: 2.5).
    core_moved, projection_moved: numbers (not bytes) that both parts read from memory and write to it, at the least:
    what comes in and goes out once, what one operation leaves to the next once written and once read, no parameters.
    What stays in a core's cache does not count. None: not known.
    """

    core: float
    projection: float = 0.0
    core_executed: float | None = None
    backward: float = 2.0
    core_moved: float | None = None
    projection_moved: float | None = None

    @property
    def executed(self) -> float:
        """Core operations that really run in a forward pass."""
        return self.core if self.core_executed is None else self.core_executed


class Mixer(nn.Module):
    """Mix a sequence along time: (B, T, d_model) -> (B, T, d_model).

    Options of a variant are keyword-only arguments after `spec`, their limits in the annotations, for example
    `window: Annotated[int, Ge(1)] = 64`. A subclass that also takes `**options` passes them on to its base class.

    claim: the asymptotic cost; without one there is no verdict.
    positions: the position embedding that a model adds when nobody says otherwise.
    equivariant: whether, in the bidirectional role, outputs move along when the positions are permuted.
    continuous: whether rounding moves outputs by little; not so where scores that nearly tie decide which keys count.
    no_decay: names of parameters that take no weight decay; lr_scale: factors on the learning rate, by name.
    """

    claim: ClassVar[Claim | None] = None
    positions: ClassVar[PositionKind] = "learned"
    continuous: ClassVar[bool] = True
    equivariant: bool = False
    no_decay: ClassVar[tuple[str, ...]] = ()
    lr_scale: ClassVar[Mapping[str, float]] = {}

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Mix whole sequences.

        x: (B, T, d_model). context: (B, S, d_model) in the cross role, else None. key_mask: (B, S), True where real.
        Returns (B, T, d_model).
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward")

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """What `forward` computes, written as plainly as possible: every pair, every step. The specification.

        Shapes as in `forward`; speed and memory do not matter. Raises NotImplementedError where there is none: then
        nothing vouches for the fast form.
        """
        raise NotImplementedError(f"{type(self).__name__} has no slow form")

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Read a prompt x (B, T, d_model), T = 0 included; returns the outputs and the state for `step`."""
        raise NotImplementedError(f"{type(self).__name__} has no decoding form")

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Mix one more token x (B, d_model); stepping one state again with the same x gives the same output."""
        raise NotImplementedError(f"{type(self).__name__} has no decoding form")

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Why this variant cannot serve `use` in the place `spec`, in a few words; None when it can."""
        if use.decodes and spec.role == "bidirectional":
            return "decoding needs a causal or cross role"
        if use.decodes and cls.prefill is Mixer.prefill:
            return "no decoding form"
        return None

    def flops(self, T: int, S: int) -> Flops | None:
        """Forward cost of one sequence by formula, or None when the variant gives none."""
        return None

    def step_flops(self, T: int, S: int) -> Flops | None:
        """Cost of one `step` after T tokens, in the cross role over S keys, by formula; None when there is none."""
        return None

    def extra_record(self) -> dict[str, str]:
        """Facts about what really ran (a kernel's backend) that belong in the record; names are free."""
        return {}

    def _check_inputs(self, x: Tensor, context: Tensor | None, key_mask: Tensor | None) -> None:
        """Raise ValueError unless shapes are those of `forward`: nothing is broadcast, and nothing ignored."""
        self._check_context(context)
        keys, d_model = x if context is None else context, self.spec.d_model
        for name, T, given in (("x", "T", x), ("context", "S", keys)):
            if given.ndim != 3 or given.shape[-1] != d_model:
                raise ValueError(f"{name} must be (B, {T}, d_model = {d_model}), got {tuple(given.shape)}")
        if keys.shape[0] != x.shape[0]:
            raise ValueError(f"x and context must have one B, got {x.shape[0]} and {keys.shape[0]}")
        if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != keys.shape[:2]):
            got = f"{str(key_mask.dtype).removeprefix('torch.')} {tuple(key_mask.shape)}"
            raise ValueError(f"key_mask must be bool {tuple(keys.shape[:2])}, True where a key is real, got {got}")

    def _check_context(self, context: Tensor | None) -> None:
        if (context is None) == (self.spec.role == "cross"):
            wanted = "needs a context" if context is None else "takes no context"
            raise ValueError(f"{type(self).__name__} in the {self.spec.role} role {wanted}")


class Attention(Mixer):
    """A mixer with queries, keys and values: a subclass writes `attend` and has all roles, key masks and decoding.

    n_kv_heads: heads that keys and values have (grouped-query attention, Ainslie et al. 2023); default n_heads.
    d_k, d_v: width of a head's queries and keys, and of its values; default d_model / n_heads.
    normalised: whether each query's weights sum to 1, so that constant values come out unchanged. A mechanism that
    only weighs (RetNet without norm, the delta rule) says False, and is not held to it.
    """

    normalised: bool = True

    def __init__(
        self,
        spec: Spec,
        *,
        n_kv_heads: Annotated[int, Ge(1)] | None = None,
        d_k: Annotated[int, Ge(1)] | None = None,
        d_v: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        super().__init__(spec)
        H, d_model = spec.n_heads, spec.d_model
        for name, value in (("n_kv_heads", n_kv_heads), ("d_k", d_k), ("d_v", d_v)):
            if value is not None:
                check_count(name, value)
        self.n_kv_heads = n_kv_heads or H
        if H % self.n_kv_heads:
            raise ValueError(f"n_heads must be divisible by n_kv_heads, got {H} and {self.n_kv_heads}")
        self.d_k = d_k or spec.d_head
        self.d_v = d_v or spec.d_head
        self.W_q = nn.Linear(d_model, H * self.d_k, bias=False)
        self.W_k = nn.Linear(d_model, self.n_kv_heads * self.d_k, bias=False)
        self.W_v = nn.Linear(d_model, self.n_kv_heads * self.d_v, bias=False)
        self.W_o = nn.Linear(H * self.d_v, d_model, bias=False)

    def project(self, x: Tensor, context: Tensor) -> tuple[Tensor, ...]:
        """Queries of x (B, T, d_model), keys and values of context (B, S, d_model), per head.

        Returns q (B, H, T, d_k), k (B, H, S, d_k), v (B, H, S, d_v); a mechanism with gates returns them behind these.
        """
        q = self.W_q(x).unflatten(-1, (self.spec.n_heads, self.d_k)).transpose(1, 2)  # (B, H, T, d_k)
        k = self.W_k(context).unflatten(-1, (self.n_kv_heads, self.d_k)).transpose(1, 2)  # (B, G, S, d_k)
        v = self.W_v(context).unflatten(-1, (self.n_kv_heads, self.d_v)).transpose(1, 2)  # (B, G, S, d_v)
        return q, self._per_head(k), self._per_head(v)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Mix values: q (B, H, T, d_k), k (B, H, S, d_k), v (B, H, S, d_v) -> (B, H, T, d_v). Level `core`."""
        raise NotImplementedError(f"{type(self).__name__} must define attend")

    def slow_attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """What `attend` computes, written as plainly as possible; see `Mixer.slow_forward`. Shapes as in `attend`."""
        raise NotImplementedError(f"{type(self).__name__} has no slow form")

    def merge(self, y: Tensor) -> Tensor:
        """Join the heads and project out: (B, H, T, d_v) -> (B, T, d_model)."""
        merged: Tensor = self.W_o(y.transpose(1, 2).flatten(2))
        return merged

    def forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Project, attend, merge. Shapes as in `Mixer.forward`."""
        self._check_inputs(x, context, key_mask)
        q, k, v, *extra = self.project(x, x if context is None else context)
        return self.merge(self.attend(q, k, v, *extra, key_mask=key_mask))

    def slow_forward(self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None) -> Tensor:
        """Project, attend slowly, merge."""
        q, k, v, *extra = self.project(x, x if context is None else context)
        return self.merge(self.slow_attend(q, k, v, *extra, key_mask=key_mask))

    def prefill(
        self, x: Tensor, *, context: Tensor | None = None, key_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Attend over the prompt and keep its keys and values in a cache preallocated to max_T."""
        self._check_inputs(x, context, key_mask)
        q, k, v, *extra = self.project(x, x if context is None else context)
        if extra:
            raise NotImplementedError(f"{type(self).__name__} projects more than q, k, v: it must define prefill, step")
        y = x if x.shape[1] == 0 else self.merge(self.attend(q, k, v, key_mask=key_mask))
        if self.spec.role == "cross":
            return y, {"k": k, "v": v} | ({} if key_mask is None else {"key_mask": key_mask})
        return y, self._new_cache(k, v, key_mask)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Attend from one token to the cache and itself; the cache is written in place, its length is not."""
        if self.spec.role == "cross":
            q = self.project(x[:, None], x.new_empty(x.shape[0], 0, self.spec.d_model))[0]
            y = self.attend(q, state["k"], state["v"], key_mask=state.get("key_mask"))
            return self.merge(y)[:, 0], state
        q, k, v = self.project(x[:, None], x[:, None])
        at = int(state["length"])
        if at >= self.spec.max_T:
            raise ValueError(f"the key-value cache holds max_T = {self.spec.max_T} positions and is full")
        state["k"][:, :, at] = self._one_per_group(k)[:, :, 0]
        state["v"][:, :, at] = self._one_per_group(v)[:, :, 0]
        k, v = self._per_head(state["k"][:, :, : at + 1]), self._per_head(state["v"][:, :, : at + 1])
        key_mask = state["key_mask"][:, : at + 1] if "key_mask" in state else None
        return self.merge(self.attend(q, k, v, key_mask=key_mask))[:, 0], {**state, "length": state["length"] + 1}

    def step_flops(self, T: int, S: int) -> Flops | None:
        """One query and all keys, T + 1 with its own, by `flops`; None where a subclass steps in a way of its own."""
        if type(self).step is not Attention.step:
            return None
        cross = self.spec.role == "cross"
        n_new, n_keys = (0, S) if cross else (1, T + 1)
        one, flops, moved = self.flops(1, n_keys), self.projection_flops(1, n_new), self.projection_moved(1, n_new)
        return None if one is None else replace(one, projection=flops, projection_moved=moved)

    def core_peak_bytes(self, B: int, T: int, S: int, itemsize: int) -> int | None:
        """Most bytes that `attend` holds at one time beyond its inputs, without gradients; None when not known.

        itemsize: bytes of a number of the dtype.
        """
        return None

    def projection_flops(self, T: int, S: int) -> float:
        """Operations of W_q, W_k, W_v and W_o for T queries and S keys."""
        H, G, d_model = self.spec.n_heads, self.n_kv_heads, self.spec.d_model
        return 2.0 * d_model * (T * H * (self.d_k + self.d_v) + S * G * (self.d_k + self.d_v))

    def pair_flops(self, pairs: float) -> float:
        """Operations of scoring `pairs` query-key pairs and weighing their values, all heads together."""
        return 2.0 * pairs * self.spec.n_heads * (self.d_k + self.d_v)

    def core_moved(self, T: int, S: int) -> float:
        """Numbers of q, k, v and y, all heads together: what any `attend` has to read and to write."""
        return float(self.spec.n_heads * (T + S) * (self.d_k + self.d_v))

    def projection_moved(self, T: int, S: int) -> float:
        """Numbers that W_q, W_k, W_v and W_o read and write for T queries and S keys, parameters left out."""
        n_read = T if self.spec.role != "cross" else T + S
        kv = self.n_kv_heads * S * (self.d_k + self.d_v)
        return float((n_read + T) * self.spec.d_model + self.spec.n_heads * T * (self.d_k + self.d_v) + kv)

    def _new_cache(self, k: Tensor, v: Tensor, key_mask: Tensor | None) -> State:
        B, _, T, _ = k.shape
        if self.spec.max_T < T:
            raise ValueError(f"a prompt of T = {T} does not fit max_T = {self.spec.max_T}")
        state = {
            "k": k.new_zeros(B, self.n_kv_heads, self.spec.max_T, self.d_k),
            "v": v.new_zeros(B, self.n_kv_heads, self.spec.max_T, self.d_v),
            "length": torch.tensor(T),
        }
        state["k"][:, :, :T] = self._one_per_group(k)
        state["v"][:, :, :T] = self._one_per_group(v)
        if key_mask is not None:
            state["key_mask"] = key_mask.new_ones(B, self.spec.max_T)
            state["key_mask"][:, :T] = key_mask
        return state

    def _per_head(self, kv: Tensor) -> Tensor:
        """Let each query head see its group's keys: (B, G, S, D) -> (B, H, S, D), head h reads group floor(hG/H)."""
        H, G = self.spec.n_heads, self.n_kv_heads
        if G in (1, H):
            return kv.expand(-1, H, -1, -1)  # a view: no step of decoding copies the cache
        return kv.repeat_interleave(H // G, dim=1)

    def _one_per_group(self, kv: Tensor) -> Tensor:
        """The inverse of `_per_head`: (B, H, S, D) -> (B, G, S, D)."""
        return kv[:, :: self.spec.n_heads // self.n_kv_heads]


def check_count(name: str, value: float, at_least: int = 1) -> None:
    """Raise ValueError, with the name, unless `value` is a whole number of at least `at_least`."""
    if not hasattr(value, "__index__"):  # numpy's whole numbers have it too
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")


def check_name(name: str, value: object, known: tuple[str, ...]) -> None:
    """Raise ValueError, with what was expected, unless `value` is one of `known`."""
    if value not in known:
        raise ValueError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")


def visible_pairs(T: int, S: int, role: Role) -> int:
    """Number of (query, key) pairs that a role lets meet; causal is aligned bottom-right."""
    if role != "causal":
        return T * S
    hidden = T * (T - 1) // 2 if T <= S else S * (S - 1) // 2 + S * (T - S)
    return T * S - hidden

"""C10: equations that hold exactly, whatever the weights, tried in float64 on the variants themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.mixer import Attention, Mixer, Role
from attnbench.theory.mixers import build, installed, named
from attnbench.theory.rules import below, exactly
from attnbench.theory.statement import Finding, Shown, Statement

B, T, D_MODEL, N_HEADS = 2, 24, 32, 4
SIZES: dict[str, Any] = {"d_model": D_MODEL, "n_heads": N_HEADS}
LIMIT = 1e-9  # relative, in float64
DIVIDED = 1e-5  # where a denominator has 1e-6 added to it


def off(y: Tensor, wanted: Tensor) -> float:
    """Largest difference, by the largest number wanted."""
    return float((y - wanted).abs().max() / wanted.abs().max())


def mixer(name: str, role: Role = "causal", **options: Any) -> Mixer:
    """A variant with its weights drawn from one seed."""
    return build(named(name), T, role, **SIZES, **options)


def attention(name: str, role: Role = "causal", **options: Any) -> Attention:
    """The same for a variant with queries and keys."""
    found = mixer(name, role, **options)
    if not isinstance(found, Attention):
        raise TypeError(f"{name} has no queries and keys")
    return found


def _inputs() -> Tensor:
    return torch.randn(B, T, D_MODEL, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def _qkv(found: Attention) -> tuple[Tensor, ...]:
    return found.project(_inputs(), _inputs())


def weights(found: Attention) -> Tensor:
    """(B, H, T, T): each row read off by giving every key a value of its own."""
    q, k, _ = _qkv(found)
    return found.attend(q, k, torch.eye(T, dtype=q.dtype).expand(*q.shape[:2], -1, -1))


def _rows() -> list[Finding]:
    """Each variant's rows sum to 1 and weigh: outputs lie between the least and the largest value."""
    found = []
    for name, cls in installed(T, "causal", **SIZES).items():
        if not (issubclass(cls, Attention) and cls.normalised):
            continue
        rows = weights(attention(name))
        limit = DIVIDED if name == "linear" else LIMIT
        found.append(below(f"rows of weights sum to 1: {name}", limit, float((rows.sum(-1) - 1).abs().max())))
        found.append(
            exactly(
                f"no weight is negative, so that outputs are in the hull of v: {name}", True, bool((rows >= 0).all())
            )
        )
    return found


def _shift() -> list[Finding]:
    """k + c adds q·c to a whole row of logits."""
    found = []
    for name in ("full", "fused", "window", "strided"):
        one = attention(name)
        q, k, v = _qkv(one)
        found.append(
            below(
                f"one vector added to every key changes nothing: {name}",
                LIMIT,
                off(one.attend(q, k + 1.0, v), one.attend(q, k, v)),
            )
        )
    return found


def _equal_forms() -> list[Finding]:
    """Two variants, or one with two options, that are the same function of x."""
    x, full = _inputs(), mixer("full")
    pairs = {
        "fused = full": (mixer("fused"), full),
        "window of T = full": (mixer("window", window=T), full),
        "as many key-value heads as heads = full": (mixer("full", n_kv_heads=N_HEADS), full),
        "linear, chunks of 1 = one chunk": (mixer("linear", chunk=1), mixer("linear", chunk=T)),
    }
    return [below(name, LIMIT, off(one(x), other(x))) for name, (one, other) in pairs.items()]


def _equal_weights() -> list[Finding]:
    """Two variants that are the same once they share weights."""
    x = _inputs()
    grouped, heads = attention("full", n_kv_heads=2), attention("full")
    heads.load_state_dict(
        grouped.state_dict() | {name: _repeated(grouped, name) for name in ("W_k.weight", "W_v.weight")}
    )
    blind, mean = attention("full"), mixer("mean")
    blind.load_state_dict(blind.state_dict() | {"W_q.weight": torch.zeros(D_MODEL, D_MODEL)})
    mean.load_state_dict({name: blind.state_dict()[name] for name in mean.state_dict()})
    alone, none = attention("window", window=1), mixer("none")
    none.load_state_dict({name: alone.state_dict()[name] for name in none.state_dict()})
    return [
        below("two key-value heads = four, each given twice", LIMIT, off(grouped(x), heads(x))),
        below("queries of 0 = the mean", LIMIT, off(blind(x), mean(x))),
        below("window of 1 = no mixing", LIMIT, off(alone(x), none(x))),
    ]


def _repeated(grouped: Attention, name: str) -> Tensor:
    """(G d, d_model) -> (H d, d_model): each group's rows once for each of its heads."""
    rows = grouped.state_dict()[name].unflatten(0, (grouped.n_kv_heads, -1))
    repeated: Tensor = rows.repeat_interleave(N_HEADS // grouped.n_kv_heads, dim=0).flatten(0, 1)
    return repeated


def _linear() -> list[Finding]:
    """Linear attention by its equation, over all pairs."""
    one = attention("linear", chunk=8)
    q, k, v = _qkv(one)
    phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    pairs = (phi_q @ phi_k.mT).tril()  # (B, H, T, T)
    quadratic = pairs @ v / (pairs.sum(-1, keepdim=True) + 1e-6)
    return [below("linear: chunks = quadratic form", LIMIT, off(one.attend(q, k, v), quadratic))]


def _hopfield() -> list[Finding]:
    """One update of a continuous Hopfield network (Ramsauer et al. 2021): xi -> X softmax(beta X^T xi)."""
    one = attention("full", "bidirectional")
    q, k, _ = _qkv(one)
    beta = one.d_k**-0.5
    update = torch.stack(
        [
            torch.stack([x.T @ (beta * x @ xi).softmax(0) for xi in state])
            for x, state in zip(k.flatten(0, 1), q.flatten(0, 1), strict=True)
        ]
    )
    return [
        below(
            "attention over patterns = update of a Hopfield network",
            LIMIT,
            off(one.attend(q, k, k).flatten(0, 1), update),
        )
    ]


def _decoding() -> list[Finding]:
    """Token by token, with the state, as in one pass."""
    x, found = _inputs(), []
    for name in installed(T, "causal", phase="decode", **SIZES):
        one = mixer(name)
        _, state = one.prefill(x[:, :0])
        ys = []
        for t in range(T):
            y, state = one.step(x[:, t], state)
            ys.append(y)
        found.append(below(f"step by step = all at once: {name}", LIMIT, off(torch.stack(ys, dim=1), one(x))))
    return found


def _counts() -> list[Finding]:
    """Heads cost no parameters, and bound the rank of the logits."""
    one, several = (build(named("full"), T, "causal", d_model=D_MODEL, n_heads=n) for n in (1, N_HEADS))
    q, k, _ = _qkv(attention("full"))
    rank = int(torch.linalg.matrix_rank(q @ k.mT).max())
    return [
        exactly("parameters of four heads less those of one", 0, _n_params(several) - _n_params(one)),
        exactly(f"rank of the logits of a head, T = {T}: d_k", D_MODEL // N_HEADS, rank),
    ]


def _n_params(one: Mixer) -> int:
    return sum(parameter.numel() for parameter in one.parameters())


@torch.no_grad()
def show(quick: bool) -> Shown:
    """All of them; they are cheap."""
    parts = (_rows, _shift, _equal_forms, _equal_weights, _linear, _hopfield, _decoding, _counts)
    return Shown(tuple(finding for part in parts for finding in part()))


STATEMENT = Statement(
    "C10",
    "Identities",
    "What equations say of mechanisms holds of the code that runs them: rows of weights sum to 1, softmax does not see "
    "a shift, limits of one variant are another, and every form of one mechanism gives the same numbers.",
    show,
)

"""C4: without positions and without a causal mask, attention does not see order. Vaswani et al. 2017, section 3.5."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.mixer import Mixer, PositionKind, Role
from attnbench.positions import Positions
from attnbench.theory.mixers import build, installed, named
from attnbench.theory.rules import above, below
from attnbench.theory.statement import Finding, Shown, Statement
from attnbench.transformer import Block

T, D_MODEL, N_DRAWS = 32, 64, 5
HOLDS = (
    "full",
    "fused",
    "gqa",
    "flex",
    "topk",
    "linear",
    "mean",
    "none",
    "performer",
    "hedgehog",
    "based",
)  # order plays no part in the equation
FAILS = (
    "window",
    "strided",
    "fixed_sparse",
    "lstm",
    "gru",
    "rnn",
    "linformer",
    "nystrom",
    "tcn",
    "fnet",
    "bigbird",
    "cosformer",
    "mingru",
    "minlstm",
    "lru",
    "s4d",
    "hyena",
)
OPTIONS: dict[str, dict[str, Any]] = {"window": {"window": 8}, "bigbird": {"block": 2}}  # narrower than T
SAME, OTHER = 1e-6, 1e-2
LITTLE = {"linformer": 1e-3}  # maps drawn over many positions come near to their mean, of which order is no part
Layer = Callable[[Tensor], Tensor]


def encoder_layer(
    cls: type[Mixer], positions: PositionKind = "none", role: Role = "bidirectional", **options: Any
) -> Layer:
    """One block and a final LayerNorm behind a position embedding: (B, T, d_model) -> (B, T, d_model), float32."""
    mixer = build(cls, T, role, d_model=D_MODEL, dtype=torch.float32, **options)
    block, norm = Block(mixer, d_ff=4 * D_MODEL).eval(), nn.LayerNorm(D_MODEL)
    embedding = Positions(positions, T, D_MODEL)
    return lambda x: norm(block(embedding(x)))


@torch.no_grad()
def order_error(layer: Layer, n_draws: int = N_DRAWS) -> float:
    """Largest |f(P x) - P f(x)| / |f(x)| over draws of x and of a permutation P of its positions."""
    errors = []
    for seed in range(n_draws):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(1, T, D_MODEL, generator=generator)
        order = torch.randperm(T, generator=generator)
        y = layer(x)
        errors.append((layer(x[:, order]) - y[:, order]).norm() / y.norm())
    return float(max(errors))


@torch.no_grad()
def cue_error(layer: Layer) -> float:
    """How much the last output changes, relative to it, when the first two inputs change places."""
    x = torch.randn(1, T, D_MODEL, generator=torch.Generator().manual_seed(0))
    swapped = x[:, [1, 0, *range(2, T)]]
    y = layer(x)[:, -1]
    return float((layer(swapped)[:, -1] - y).norm() / y.norm())


def show(quick: bool) -> Shown:
    """Every installed variant of which theory knows; fused attention with positions, and with a causal mask."""
    classes = installed(T, "bidirectional", dtype="float32")
    known = {name: cls for name, cls in classes.items() if name in (*HOLDS, *FAILS)}
    errors = {name: order_error(encoder_layer(cls, **OPTIONS.get(name, {}))) for name, cls in known.items()}
    return Shown((*_by_variant(errors), *_by_position(named("fused"))))


def _by_variant(errors: dict[str, float]) -> list[Finding]:
    """Who keeps permutations, and who does not."""
    what = "f(P x) against P f(x), no positions:"
    return [
        *(below(f"{what} {name}", SAME, error) for name, error in errors.items() if name in HOLDS),
        *(above(f"{what} {name}", LITTLE.get(name, OTHER), error) for name, error in errors.items() if name in FAILS),
    ]


def _by_position(fused: type[Mixer]) -> list[Finding]:
    """What breaks the symmetry of fused attention: positions, a causal mask, and how deep a mask has to be."""
    kinds: tuple[PositionKind, ...] = ("learned", "sinusoidal")
    with_positions = [
        above(f"the same for fused with {kind} positions", OTHER, order_error(encoder_layer(fused, kind)))
        for kind in kinds
    ]
    causal = encoder_layer(fused, role="causal")
    return [
        *with_positions,
        above("the same for fused with a causal mask, no positions", OTHER, order_error(causal)),
        below(
            "which of two cues came first: change of the last output, no mask", SAME, cue_error(encoder_layer(fused))
        ),
        below("the same with a causal mask, one layer", SAME, cue_error(causal)),
        above("the same with a causal mask, two layers", 1e-4, cue_error(lambda x: causal(causal(x)))),
    ]


STATEMENT = Statement(
    "C4",
    "Attention does not see order by itself",
    "f(P x) = P f(x) for every permutation P where neither positions nor a mask tell one place from another; so no "
    "layer without them can tell which of two cues came first. A causal mask alone can, from the second layer on.",
    show,
)

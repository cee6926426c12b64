"""Operations of a cell by formula. torch's own counter sees no fused attention, LSTM or FFT on a CPU and reports 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.mixer import Flops, Mixer

PASSES = {  # forward and backward passes in one call of a phase
    "forward": (1, 0),
    "backward": (0, 1),
    "forward_backward": (1, 1),
    "train_step": (1, 1),
    "prefill": (1, 0),
    "decode": (1, 0),
}


@dataclass(frozen=True)
class Cost:
    """Floating-point operations of one call of a cell, a multiply-add counting 2, matrix products only.

    flops: visible work (a causal mask halves the mixing, for every variant). executed: what really runs.
    core, projection: the shares of mixing and of the maps around it in `flops`; feed-forward and head are the rest.
    """

    flops: float
    executed: float
    core: float
    projection: float


def cost(
    mixers: Sequence[Mixer],
    *,
    level: str,
    phase: str,
    T: int,
    S: int,
    B: int,
    d_ff: int = 0,
    vocab_size: int = 0,
) -> Cost | None:
    """The cost of one call, or None ("not available") when one of the mixers gives no formula.

    mixers: one per layer; B, T, S, d_ff, vocab_size: the sizes around them.
    A backward pass costs twice its forward, once for the inputs and once for the weights; the core's own factor
    (`Flops.backward`) holds for what is executed. forward_backward is their sum, and so is train_step: an optimiser
    multiplies no matrices. prefill is a forward pass; decode is one token after T others.
    """
    layers = formulas(mixers, phase, T, S)
    if layers is None:
        return None
    n_tokens, d_model = 1 if phase == "decode" else T, mixers[0].spec.d_model
    projection = 0.0 if level == "core" else sum(one.projection for one in layers)
    around = len(layers) * 4.0 * n_tokens * d_model * d_ff if level in ("block", "model") else 0.0
    around += 2.0 * n_tokens * d_model * vocab_size if level == "model" else 0.0
    forward, backward = PASSES[phase]
    times = B * (forward + 2.0 * backward)
    core = sum(one.core for one in layers) * times
    executed = B * sum(one.executed * (forward + one.backward * backward) for one in layers)
    rest = (projection + around) * times
    return Cost(flops=core + rest, executed=executed + rest, core=core, projection=projection * times)


def formulas(mixers: Sequence[Mixer], phase: str, T: int, S: int) -> list[Flops] | None:
    """What each mixer tells of one sequence: a forward pass, or the step after it; None when one of them is silent."""
    told = [mixer.step_flops(T, S) if phase == "decode" else mixer.flops(T, S) for mixer in mixers]
    known = [one for one in told if one is not None]
    return known if len(known) == len(told) else None

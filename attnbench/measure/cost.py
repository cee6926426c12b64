"""Operations of a cell by formula. torch's own counter sees no fused attention, LSTM or FFT on a CPU and reports 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.mixer import Mixer

_PASSES = {  # forward and backward passes in one call of a phase
    "forward": (1, 0),
    "backward": (0, 1),
    "forward_backward": (1, 1),
    "train_step": (1, 1),
    "prefill": (1, 0),
}


@dataclass(frozen=True)
class Cost:
    """Floating-point operations of one call of a cell, a multiply-add counting 2, matrix products only.

    flops: visible work (a causal mask halves the mixing, for every variant). executed: what really runs.
    """

    flops: float
    executed: float


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
    multiplies no matrices. No formula says yet what one step of decoding costs.
    """
    told = [mixer.flops(T, S) for mixer in mixers]
    layers = [one for one in told if one is not None]
    if len(layers) < len(told) or phase == "decode":
        return None
    d_model = mixers[0].spec.d_model
    around = 0.0 if level == "core" else sum(one.projection for one in layers)
    around += len(layers) * 4.0 * T * d_model * d_ff if level in ("block", "model") else 0.0
    around += 2.0 * T * d_model * vocab_size if level == "model" else 0.0
    forward, backward = _PASSES[phase]
    visible = (sum(one.core for one in layers) + around) * (forward + 2.0 * backward)
    core = sum(one.executed * (forward + one.backward * backward) for one in layers)
    return Cost(flops=B * visible, executed=B * (core + around * (forward + 2.0 * backward)))

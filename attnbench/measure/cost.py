"""Operations of a cell by formula. torch's own counter sees no fused attention, LSTM or FFT on a CPU and reports 0."""

from __future__ import annotations

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
    mixer: Mixer,
    *,
    level: str,
    phase: str,
    T: int,
    S: int,
    B: int,
    n_layers: int = 1,
    d_ff: int = 0,
    vocab_size: int = 0,
) -> Cost | None:
    """The cost of one call, or None ("not available") when the variant gives no formula.

    A backward pass costs twice its forward, once for the inputs and once for the weights; the core's own factor
    (`Flops.backward`) holds for what is executed. forward_backward is their sum, and so is train_step: an optimiser
    multiplies no matrices. No formula says yet what one step of decoding costs.
    """
    one = mixer.flops(T, S)
    if one is None or phase == "decode":
        return None
    d_model = mixer.spec.d_model
    around = 0.0 if level == "core" else one.projection
    around += 4.0 * T * d_model * d_ff if level in ("block", "model") else 0.0
    head = 2.0 * T * d_model * vocab_size if level == "model" else 0.0
    forward, backward = _PASSES[phase]
    visible = (n_layers * (one.core + around) + head) * (forward + 2.0 * backward)
    core = one.executed * (forward + one.backward * backward)
    executed = n_layers * core + (n_layers * around + head) * (forward + 2.0 * backward)
    return Cost(flops=B * visible, executed=B * executed)

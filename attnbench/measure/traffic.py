"""Memory traffic of a cell by formula: how many bytes one call has to read and write at the least."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.measure.cost import PASSES, formulas
from attnbench.mixer import Mixer

# A backward pass moves the gradient of each number as the number was moved, and reads the number once more.
BACKWARD, PARAMETERS_BACKWARD = 1.5, 2.0
ADAMW = 7.0  # reads parameter, gradient and two moments, writes all but the gradient


def bytes_moved(
    mixers: Sequence[Mixer],
    *,
    level: str,
    phase: str,
    T: int,
    S: int,
    B: int,
    itemsize: int,
    param_bytes: int,
    d_ff: int = 0,
    vocab_size: int = 0,
) -> float | None:
    """A lower bound of the bytes that one call reads and writes, or None ("not available").

    Inputs and outputs and parameters once, what one operation leaves to the next once written and once read; a
    cache may make it less, nothing else. itemsize: bytes of a number; param_bytes: of the parameters that a call
    reads; the other sizes as in `cost`. In the cross role a step leaves some parameters alone: not available.
    """
    layers = formulas(mixers, phase, T, S)
    if layers is None or (phase == "decode" and mixers[0].spec.role == "cross"):
        return None
    n_tokens, d_model = 1 if phase == "decode" else T, mixers[0].spec.d_model
    moved = 0.0
    for one in layers:
        parts = (one.core_moved,) if level == "core" else (one.core_moved, one.projection_moved)
        for part in parts:
            if part is None:
                return None
            moved += part
    if level in ("block", "model"):
        moved += len(layers) * n_tokens * _around(d_model, d_ff)
    if level == "model":
        moved += n_tokens * (2.0 * d_model + vocab_size)  # what the embedding writes, what the head reads, logits
    forward, backward = PASSES[phase]
    numbers = B * moved * (forward + BACKWARD * backward)
    parameters = param_bytes * (forward + PARAMETERS_BACKWARD * backward + ADAMW * (phase == "train_step"))
    return numbers * itemsize + parameters


def _around(d_model: int, d_ff: int) -> float:
    """Numbers of a token that norms, residual adds and the feed-forward move around a mixer."""
    norm, add = 2.0 * d_model, 3.0 * d_model
    return norm + add + (norm + add + 2.0 * d_model + 4.0 * d_ff if d_ff else 0.0)

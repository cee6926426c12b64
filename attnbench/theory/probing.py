"""Which outputs depend on which inputs, found by shoving one position at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from attnbench.mixer import Mixer, State

SHOVE = 10.0


@torch.no_grad()
def seen(layer: Callable[[Tensor], Tensor], T: int, d_model: int, *, rounding: float = 0.0) -> Tensor:
    """(T, T) bool: whether output i of the layer changes, bit for bit, when input j does.

    rounding: the share of the largest change up to which one counts as none, for Fourier transforms. The two batches
    that are compared have one shape, so that a row takes the same path through every kernel.
    """
    x = torch.randn(1, T, d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    still = x.repeat(T, 1, 1)  # (T, T, d_model), row j for input j
    shoved = still + SHOVE * torch.eye(T, dtype=x.dtype)[:, :, None]
    changes = (layer(shoved) - layer(still)).abs()
    return (changes > rounding * changes.max()).any(-1).T


def n_layers_to_join(layers: Iterable[Tensor], wanted: Tensor) -> int | None:
    """How many of these layers, one on the other, join every wanted pair (T, T); each as `seen` tells it.

    None when all together do not.
    """
    joined = torch.eye(len(wanted), dtype=torch.bool)
    for n, one in enumerate(layers, start=1):
        joined = (one.double() @ joined.double()) > 0
        if bool((joined | ~wanted).all()):
            return n
    return None


@torch.no_grad()
def n_rewrites(mixer: Mixer, T: int) -> int:
    """How many of the steps 1 to T - 1 of decoding change the part of the state that holds input 0.

    Whatever differs from the state of a sequence with another input 0 holds it. A recurrence folds it into the next
    state at every step; a cache keeps it as it is, to be read directly.
    """
    x = torch.randn(1, T, mixer.spec.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    other = x.clone()
    other[:, 0] += SHOVE
    states, others = _states(mixer, x), _states(mixer, other)
    return sum(_rewritten(states[t - 1], states[t], others[t - 1]) for t in range(1, T))


def _states(mixer: Mixer, x: Tensor) -> list[State]:
    """Copies of the states after each token."""
    _, state = mixer.prefill(x[:, :0])
    states = []
    for t in range(x.shape[1]):
        _, state = mixer.step(x[:, t], state)
        states.append({name: part.clone() for name, part in state.items()})
    return states


def _rewritten(before: State, after: State, other: State) -> bool:
    return any(bool(((part != after[name]) & (part != other[name])).any()) for name, part in before.items())

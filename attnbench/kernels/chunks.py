"""What the chunked recurrences share: cutting time into pieces that stay in a cache, and handing a state on."""

from __future__ import annotations

import torch
from torch import Tensor

CACHED_NUMBERS = 2**17  # numbers per tensor that are worked on at a time on a CPU


def pieces(T: int, chunk: int, numbers_per_position: int, device: torch.device) -> list[tuple[int, int, int]]:
    """(start, stop, size): runs of whole chunks of `size`, as many as a cache holds, and a shorter chunk at the end.

    On other devices than a CPU all whole chunks are one run.
    """
    held = CACHED_NUMBERS // (max(1, numbers_per_position) * chunk) if device.type == "cpu" else T // chunk  # chunks
    whole, run = T // chunk * chunk, max(1, held) * chunk
    found = [(start, min(start + run, whole), chunk) for start in range(0, whole, run)]
    return found + ([(whole, T, T - whole)] if whole < T else [])


def pairs_in_chunks(T: int, chunk: int) -> tuple[int, int]:
    """Pairs of a position and one that is not behind it, inside chunks of T positions; and all pairs there."""
    whole, rest = divmod(T, chunk)
    seen = whole * chunk * (chunk + 1) // 2 + rest * (rest + 1) // 2
    return seen, whole * chunk**2 + rest**2


def hand_on(state: Tensor, decay: Tensor, gains: Tensor, before: Tensor) -> Tensor:
    """S_{c+1} = decay_c S_c + gains_c: writes S_c for each chunk c to `before` and returns the last state.

    state: (M, ...). gains, before: (M, n, ...). decay: broadcast against gains.
    """
    for c in range(gains.shape[1]):
        before[:, c] = state
        state = torch.addcmul(gains[:, c], decay[:, c], state)
    return state


def hand_back(d_state: Tensor, decay: Tensor, d_gains: Tensor, after: Tensor) -> Tensor:
    """The same from the end: writes the gradient of each chunk's last state to `after`; returns that of the first."""
    for c in range(d_gains.shape[1] - 1, -1, -1):
        after[:, c] = d_state
        d_state = torch.addcmul(d_gains[:, c], decay[:, c], d_state)
    return d_state


def sum_from_the_end(x: Tensor, dim: int) -> Tensor:
    """Sum of each entry and all later ones."""
    return x.flip(dim).cumsum(dim).flip(dim)

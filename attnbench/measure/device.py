"""The one thing that timing must know of a device: how to wait until it has finished."""

from __future__ import annotations

from collections.abc import Callable

import torch


def synchronizer(device: str) -> Callable[[], None]:
    """A function that returns once all work given to the device is done; on a CPU there is nothing to wait for."""
    if device == "cpu":
        return _nothing_to_wait_for
    return torch.cuda.synchronize


def _nothing_to_wait_for() -> None:
    return

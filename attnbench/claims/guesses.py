"""Baselines of a task, computed in a process with torch."""

from __future__ import annotations

from typing import Any

from attnbench import options, registry
from attnbench.registry import Source


def measure(source: Source, T: int, given: dict[str, Any], n: int, seed: int) -> dict[str, float]:
    """Accuracy of each guess by name. Raises RequestError for options that the task does not take."""
    import torch

    from attnbench.errors import RequestError
    from attnbench.tasks.baselines import baselines

    torch.set_num_threads(1)
    cls = registry.load(source)
    resolved, mistakes = options.resolve(cls, given)
    if mistakes:
        raise RequestError(f"{source.name}.{option}: {message}" for option, message in mistakes)
    return dict(baselines(cls(T, **resolved), n, seed))

"""What a fresh process is at, told to its parent as it goes, which names it when the process ends there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from attnbench.registry import Source


@dataclass(frozen=True)
class Stage:
    """A part of a job in a few words, `importing mine.py`; empty when it is at nothing worth a name."""

    words: str


_listeners: list[Callable[[Stage], None]] = []


def listen(tell: Callable[[Stage], None]) -> None:
    """From now on, tell of every stage of this process."""
    _listeners[:] = [tell]


def at(words: str) -> None:
    """Say what this process begins with now, nothing worth a name with ""; to nobody, where nobody listens."""
    for tell in _listeners:
        tell(Stage(words))


def importing(source: Source) -> None:
    """Say that the plugin of a source is imported now."""
    at(f"importing {place(source.origin)}")


def place(origin: str) -> str:
    """A plugin file by its name, a package as it is."""
    return Path(origin).name if origin.endswith(".py") else origin

"""What a statement of theory is: a claim, the numbers that it predicts beside those measured, and pictures of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pandas import DataFrame


class Finding(NamedTuple):
    """One number: what was measured, and what theory expects, in words.

    reason: why a miss that is documented misses; "" where none is known.
    """

    what: str
    expected: str
    measured: str
    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Curves:
    """Lines over x. frame: columns `label`, those named by x and y, and perhaps `facet`, one panel per value."""

    name: str
    title: str
    frame: DataFrame
    x: str
    y: str
    x_log: bool = False
    y_log: bool = False


@dataclass(frozen=True)
class Maps:
    """A row of matrices, attention maps say: label -> (T, S) as nested lists or arrays of numpy."""

    name: str
    title: str
    maps: Mapping[str, Any]


@dataclass(frozen=True)
class Shown:
    """What showing a statement gave."""

    findings: tuple[Finding, ...]
    pictures: tuple[Curves | Maps, ...] = ()


@dataclass(frozen=True)
class Statement:
    """A claim and the function that shows it, called with whether to be quick, in a fresh process with one thread."""

    key: str
    title: str
    claim: str
    show: Callable[[bool], Shown]

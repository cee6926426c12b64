"""The scales of figures: axes, colours, limits, and round ticks that do not touch. No matplotlib here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from pandas import DataFrame

from attnbench.report import words

CHARACTER = 0.076  # width in inches of a character of 9 points, on the safe side

DODGE, MOST_DODGE = (
    0.016,
    0.25,
)  # how far series are set from their x: for each series, and at most; shares of a spacing


@dataclass(frozen=True)
class Axis:
    """The vertical axis of curves: its label, how a value reads, and its ticks from lowest to highest value.

    kind: a logarithm; `linear`, where values may be 0 or less; or `share`, from 0 to 1 with ticks at quarters.
    """

    label: str
    text: Callable[[float], str]
    base: int = 10
    kind: Literal["log", "linear", "share"] = "log"


TIME = Axis("time", lambda value: words.short(value, words.TIME_UNITS))
MEMORY = Axis("peak memory", lambda value: words.short(value, words.BYTE_UNITS), base=2)
STATE = replace(MEMORY, label="bytes of state")
RATE = Axis("FLOP/s", lambda value: words.short(value, words.COUNT_UNITS))
CROSSOVER = Axis("T of the crossover", words.whole, base=2)
CROSSOVER_BY_WIDTH = Axis("T of the crossover / d", lambda value: f"{value:g}", base=2)
ACCURACY = Axis("accuracy", lambda value: f"{value:g}", kind="share")
VALIDATION = replace(ACCURACY, label="accuracy on validation data")


@dataclass(frozen=True)
class Colours:
    """The colour scale of planes: matplotlib's map, its limits, and labelled ticks on the bar."""

    name: str
    low: float
    high: float
    ticks: Mapping[float, str]
    label: str
    clipped: bool = False


def limits(data: DataFrame) -> tuple[float, float] | None:
    """Lowest and highest value, ends of intervals included, at least a factor of 4 apart; None without data."""
    ends = np.concatenate([data[name].to_numpy(dtype=float) for name in ("value", "low", "high")])
    ends = ends[np.isfinite(ends) & (ends > 0)]
    if len(ends) == 0:
        return None
    widen = max(4 / (ends.max() / ends.min()), 1) ** 0.5 * 1.15
    return float(ends.min() / widen), float(ends.max() * widen)


def linear_limits(data: DataFrame) -> tuple[float, float] | None:
    """Lowest and highest value, ends of intervals included, with room around them; None without data."""
    ends = np.concatenate([data[name].to_numpy(dtype=float) for name in ("value", "low", "high")])
    ends = ends[np.isfinite(ends)]
    if len(ends) == 0:
        return None
    room = 0.06 * np.ptp(ends) or 0.5 * abs(ends[0]) or 1.0
    return float(ends.min() - room), float(ends.max() + room)


def round_ticks(low: float, high: float, base: int) -> list[float]:
    """Up to seven round values between low and high: powers of the base, with 2 and 5 times those of ten."""
    powers = np.arange(np.ceil(np.log(low) / np.log(base)), np.floor(np.log(high) / np.log(base)) + 1)
    fine = [m * 10.0**k for k in range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))) for m in (1, 2, 5)]
    fine = [tick for tick in fine if low <= tick <= high]
    if base == 10 and len(fine) <= 7:
        return fine
    return [float(base**k) for k in powers[:: max(-(-len(powers) // 7), 1)]]


def fitting(ticks: Mapping[float, str], width: float, margin: float) -> dict[float, str]:
    """The ticks, ascending, whose labels do not touch on a base-2 logarithmic axis that is `width` inches long.

    margin: room at both ends of the axis, in doublings.
    """
    span = np.log2(max(ticks) / min(ticks)) + 2 * margin
    kept: dict[float, str] = {}
    free_from = -np.inf
    for tick, text in ticks.items():
        half = (len(text) * CHARACTER + 0.08) / 2 * span / width
        if np.log2(tick) - half >= free_from:
            kept[tick], free_from = text, np.log2(tick) + half
    return kept


def dodge(sizes: Sequence[float], n: int) -> list[float]:
    """Factors on x that set n series apart on a logarithmic axis, symmetric about 1 and small beside any spacing.

    A spacing of more than a doubling counts as one.
    """
    spacing = min(np.diff(np.log2(sizes)).min(), 1.0) if len(sizes) > 1 else 1.0
    span = min(DODGE * n, MOST_DODGE) * spacing if n > 1 else 0.0
    return [float(factor) for factor in 2 ** np.linspace(-span, span, n)]


def legend(labels: Sequence[str], width: float) -> tuple[int, float]:
    """As many columns as fit `width`, and the height that a legend of these labels then needs, both in inches."""
    for n_columns in range(len(labels), 0, -1):
        columns = [column for column in np.array_split(labels, n_columns) if len(column)]
        widths = [0.8 + CHARACTER * max(len(line) for label in c for line in label.split("\n")) for c in columns]
        if sum(widths) <= width or n_columns == 1:
            return n_columns, 0.1 + max(sum(0.22 + 0.15 * label.count("\n") for label in column) for column in columns)
    return 1, 0.0


def edges(sizes: Any) -> Any:
    """Borders of cells around the base-2 logarithms of sizes: halfway between neighbours."""
    at = np.log2(np.asarray(sizes, dtype=float))
    if len(at) == 1:
        return np.array([at[0] - 0.5, at[0] + 0.5])
    middle = (at[1:] + at[:-1]) / 2
    return np.concatenate([[2 * at[0] - middle[0]], middle, [2 * at[-1] - middle[-1]]])


def shortened(text: str, n_characters: int) -> str:
    """A status in lines of so many characters, words that do not fit cut short with a full stop."""
    return "\n".join(word if len(word) <= n_characters else word[: n_characters - 1] + "." for word in text.split())

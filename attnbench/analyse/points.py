"""From cells to points: which cells may share one line, and the one value, interval or status of each point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pandas import DataFrame, Series

from attnbench.visits import is_disturbed

POINT = ["label", "d_model", "T"]
# Cells that differ in one of these are never averaged and never joined by a line.
APART = (
    *("role", "level", "phase", "task", "n_training", "pretrain", "match"),
    *("B", "dtype", "device", "device_name", "threads", "compile", "run"),
)
TACIT = ("device_name", "match")  # of these, a reader is told only where they differ
# These may follow from the variant, T or d_model (d_ff = 4 d_model); they set cells apart only where they do not.
FOLLOWING = ("S", "max_T", "n_heads", "n_layers", "d_ff", "embedding_std", "positions", "task_options")


@dataclass(frozen=True)
class Measure:
    """A measured column of the frame.

    low, high: columns of its interval; without them the interval is the range over seeds, none for one seed.
    positive: only values above zero count as measured. average: over seeds. resolution: values no farther apart, in
    the unit of the column, are the same.
    """

    name: str
    column: str
    low: str | None = None
    high: str | None = None
    positive: bool = True
    average: Literal["median", "mean"] = "median"
    resolution: float = 0.0


TIME = Measure("time", "time_s", "time_low_s", "time_high_s")
MEMORY = Measure("memory", "peak_bytes", resolution=1.0)
STATE = Measure("state", "state_bytes", resolution=1.0)  # of decoding
FLOPS = Measure("operations", "flops", resolution=1.0)  # of cells that are timed, or weighed
ACCURACY = Measure("accuracy", "accuracy", positive=False, average="mean")
MEASURES = (TIME, MEMORY, ACCURACY)
COLUMNS_OF = {  # columns that only cells with this measure have
    "time": (
        "time_s",
        "time_low_s",
        "time_high_s",
        "flops_per_s",
        "roof_share",
        "first_call_s",
        "compile_s",
        "warmup_s",
        "sampled_s",
    ),
    "memory": (
        "peak_bytes",
        "peak_bytes_formula",
        "rss_peak_bytes",
        "build_peak_bytes",
        "saved_bytes",
        "optimizer_bytes",
    ),
    "accuracy": ("accuracy", "sequence_accuracy", "chance", "floor", "n_scored", "n_test", "loss", "lr"),
}


@dataclass(frozen=True)
class Group:
    """Cells that differ in variant, T, d_model and seed alone.

    settings: what they share, but for those of TACIT that all groups share. differs: the settings that tell this
    group from the others of its frame.
    """

    frame: DataFrame
    settings: Mapping[str, Any]
    differs: tuple[str, ...]


def asked(frame: DataFrame, measure: Measure) -> DataFrame:
    """The cells that were asked for `measure`."""
    return _asked(frame, measure.name)


def asked_for(frame: DataFrame, column: str) -> DataFrame:
    """The cells that were asked for the measure a column belongs to; all of them for a column of no measure."""
    for name, columns in COLUMNS_OF.items():
        if column in columns:
            return _asked(frame, name)
    return frame


def groups(frame: DataFrame, together: Sequence[str] = ()) -> list[Group]:
    """Split cells so that those of one group may share figures, in the order of the frame.

    together: settings of APART that need not be the same in a group.
    """
    apart, parts = [name for name in APART if name not in together], []
    for _, same in frame.groupby(apart, dropna=False, sort=False):
        free = free_settings(same, [*POINT, *together])
        pieces = [piece for _, piece in same.groupby(free, dropna=False, sort=False)] if free else [same]
        parts += [(piece, free) for piece in pieces]
    names = (*apart, *(name for name in FOLLOWING if any(name in free for _, free in parts)))
    shared = [common(piece, names) for piece, _ in parts]
    differs = tuple(name for name in names if len({settings.get(name) for settings in shared}) > 1)
    told = [
        {name: value for name, value in settings.items() if name in differs or name not in TACIT} for settings in shared
    ]
    return [Group(piece, settings, differs) for (piece, _), settings in zip(parts, told, strict=True)]


def points(frame: DataFrame, measure: Measure, by: Sequence[str] = POINT) -> DataFrame:
    """One row per variant label, d_model and T (or the columns `by`): value, low, high, n_good of n_cells, and status.

    value is NaN where no cell has one; status is then why, else "ok". Seeds are averaged as the measure says.
    """
    value = good(frame[measure.column], positive=measure.positive)
    low = value if measure.low is None else good(frame[measure.low], positive=False)
    high = value if measure.high is None else good(frame[measure.high])
    keyed = frame[list(by)].assign(value=value, low=low.where(value.notna()), high=high.where(value.notna()))
    keyed["status"] = _why_missing(frame, value)
    grouped = keyed.groupby(list(by), dropna=False, sort=False)
    merged = grouped.agg(
        value=("value", measure.average),
        low=("low", "min"),
        high=("high", "max"),
        n_good=("value", "count"),
        n_cells=("value", "size"),
        status=("status", _joined),
    ).reset_index()
    merged.loc[merged["n_good"] > 0, "status"] = "ok"
    if measure.low is None:
        merged.loc[merged["n_good"] < 2, ["low", "high"]] = np.nan
    return merged


def disturbed(frame: DataFrame) -> Series:
    """Which cells have their time from visits alone that something else on the machine disturbed."""
    flags = frame["flags"].where(frame["time_s"].notna())
    return flags.map(lambda told: isinstance(told, list) and is_disturbed({"flags": told})).astype(bool)


def missing(frame: DataFrame, measure: Measure) -> dict[str, int]:
    """How many of the cells have no usable value, by reason: {"oom": 1, "not measured": 2}."""
    why = _why_missing(frame, good(frame[measure.column], positive=measure.positive))
    return {str(reason): int(n) for reason, n in why[why != ""].value_counts().items()}


def good(column: Series, *, positive: bool = True) -> Series:
    """The column as floats, NaN where a value is missing, infinite or (if `positive`) not above zero."""
    values = column.astype("float64")
    usable = np.isfinite(values) & (values > 0) if positive else np.isfinite(values)
    return values.where(usable)


def _asked(frame: DataFrame, name: str) -> DataFrame:
    wanted = [isinstance(names, (list, tuple)) and name in names for names in frame["measures"]]
    return frame[np.array(wanted, dtype=bool)]


def _why_missing(frame: DataFrame, value: Series) -> Series:
    """The status of each cell without a value, "" for the others; `ok` without a value is "not measured"."""
    status = frame["status"].astype("object").where(frame["status"].notna(), "pending")
    return status.where(status != "ok", "not measured").where(value.isna(), "")


def _joined(status: Series) -> str:
    return ", ".join(dict.fromkeys(text for text in status if text))


def free_settings(frame: DataFrame, point: Sequence[str] = POINT) -> list[str]:
    """Those of FOLLOWING that take several values at one point."""
    distinct = frame.groupby(list(point), dropna=False)[list(FOLLOWING)].nunique(dropna=False)
    return [name for name in FOLLOWING if (distinct[name] > 1).any()]


def common(frame: DataFrame, names: Sequence[str]) -> dict[str, Any]:
    """Settings that have one and the same value in all cells; a missing value is None."""
    shared = {}
    for name in names:
        values = frame[name].drop_duplicates()
        if len(values) == 1:
            shared[name] = None if values.isna().all() else values.iloc[0]
    return shared

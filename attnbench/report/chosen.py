"""One picture or one table of any columns of a run, as a person asks for it.

`variant` means a variant with its options, as in every table of a report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame, MultiIndex, Series

from attnbench.analyse.compare import verdicts
from attnbench.analyse.points import (
    APART,
    FOLLOWING,
    MEASURES,
    POINT,
    TACIT,
    Measure,
    asked_for,
    common,
    good,
    missing,
    points,
)
from attnbench.errors import RequestError, did_you_mean
from attnbench.report import curves, plots, scales, tables, words
from attnbench.report.looks import N_LOOKS, looks
from attnbench.report.writers import Table

MAX_PANELS = 60
MACHINE = ("device", "threads")  # what no line may join and no median may mix
SHARES = ("accuracy", "sequence_accuracy", "chance", "floor")
PLACES = ("label", "facet", "x", "x_text", "order")
ENDS = {"value": "", "low": "_low", "high": "_high"}  # columns of a figure, and how those of ratios end


class _Chosen(NamedTuple):
    """Cells and the points they make, with the columns of PLACES; note: what a reader must know of both."""

    cells: DataFrame
    points: DataFrame
    note: str


def figure(
    frame: DataFrame,
    *,
    x: str,
    y: str,
    hue: str = "variant",
    facet: str | None = None,
    where: str | None = None,
    ratio_to: str | None = None,
) -> plots.Picture:
    """Draw column y over column x, one line per value of hue, one panel per value of facet.

    frame: of `attnbench.read`. x without an order by size (names, zeros) is spaced evenly. Several cells at one point
    give their median, and the note under the figure says so. ratio_to: the value of hue that y is divided by.
    Raises RequestError for unknown columns, a y without numbers, a wrong condition, an unknown baseline, and where a
    line would join cells of different devices or numbers of threads.
    """
    keys = {"hue": hue, "x": x} | ({"facet": facet} if facet else {})
    _check_columns(frame, {"x": x, "y": y} | keys)
    prefix = _prefix(frame, hue)
    cells, data, note = _choose(frame, y, where, keys, prefix, on_axis=x)
    _check_counts(data, hue, facet)
    if ratio_to is None:
        title, axis, lines = _title(f"{y} over {x}", cells), _axis(y, data), None
    else:
        title = _title(f"{y} relative to {ratio_to} over {x}", cells)
        data, lines = _relative(data, ratio_to, hue)
        note += _unmatched(data)
        axis = replace(_axis("", data), label=f"{y} ÷ {y} of {ratio_to}")
    note += _intervals(data)
    style = looks(_pairs(frame, hue, prefix))
    return curves.curves(data, style, axis, x_label=x, title=title, note=note, references=lines)


def table(frame: DataFrame, *, rows: str, columns: str, value: str, where: str | None = None) -> Table:
    """Spread column `value` over the values of `rows` and `columns`; a hole shows the status of its cells, or "–".

    frame: of `attnbench.read`. Several cells at one place give their median, and the note says so.
    Raises RequestError for unknown columns, a value without numbers, a wrong condition, and where a row would mix
    devices or numbers of threads.
    """
    _check_columns(frame, {"rows": rows, "columns": columns, "value": value})
    cells, merged, note = _choose(frame, value, where, {"hue": rows, "x": columns}, prefix="")
    heads = list(dict.fromkeys(merged.sort_values("x", kind="stable")["x_text"]))
    texts = [_said(value, point) if point.n_good else point.status for point in merged.itertuples()]
    bare = [point.value if point.n_good else point.status for point in merged.itertuples()]
    shown, data = (
        tables.spread(merged.assign(text=filled), ["label"], "x_text", heads).rename(columns={"variant": rows})
        for filled in (texts, bare)
    )
    title = _title(f"{value} by {rows} and {columns}", cells)
    return Table(f"{value}_by_{rows}_and_{columns}", title, shown, data, note + _intervals(merged))


def _check_columns(frame: DataFrame, asked: Mapping[str, str]) -> None:
    """Raise RequestError for every name that is no column of the frame, with the nearest one."""
    known = [str(name) for name in frame.columns]
    unknown = {role: name for role, name in asked.items() if name not in known}
    if unknown:
        raise RequestError(
            f'{role}: unknown column "{name}"{did_you_mean(name, known)}' for role, name in unknown.items()
        )


def _check_counts(data: DataFrame, hue: str, facet: str | None) -> None:
    """Raise RequestError when no eye could tell all lines or panels apart."""
    for role, column, name, most in (("hue", "label", hue, N_LOOKS), ("facet", "facet", facet, MAX_PANELS)):
        if (n := data[column].nunique()) > most:
            raise RequestError([f"{role} {name}: {n} values, at most {most} fit one figure"])


def _choose(
    frame: DataFrame, value: str, where: str | None, keys: Mapping[str, str], prefix: str, on_axis: str | None = None
) -> _Chosen:
    """The cells that were asked for a value, and their points.

    prefix: what stands before a value of hue in its label.
    on_axis: the column that places a point on an axis; cells without it are counted as missing.
    """
    if not _is_numeric(frame[value]):
        raise RequestError([f'column "{value}" holds no numbers'])
    measure = next((known for known in MEASURES if known.column == value), Measure(value, value, positive=False))
    measure = replace(measure, average="median")
    cells = asked_for(frame if where is None else _where(frame, where), value)
    if cells.empty:
        raise RequestError([f"no cell to show: none was asked for {value}{f' where {where}' if where else ''}"])
    placed = cells if on_axis is None else cells[cells[on_axis].notna()]
    if placed.empty:
        raise RequestError([f"no cell to show: none has a {on_axis}"])
    counts, n_unplaced = missing(placed, measure), len(cells) - len(placed)
    counts |= {f"no {on_axis}": n_unplaced} if n_unplaced else {}
    places = _places(placed, keys, prefix)
    _check_machine(placed, places, keys)
    placed = placed.assign(**{f"place_{name}": places[name] for name in PLACES})
    merged = points(placed, measure, by=[f"place_{name}" for name in PLACES]).sort_values("place_order", kind="stable")
    merged.loc[merged["low"] == merged["high"], ["low", "high"]] = np.nan
    notes = (words.missing_note(counts, len(cells)), _merging(placed, keys), f"Cells: {where}" if where else "")
    return _Chosen(
        placed,
        merged.rename(columns={f"place_{name}": name for name in PLACES}),
        ". ".join(note for note in notes if note),
    )


def _check_machine(cells: DataFrame, places: DataFrame, keys: Mapping[str, str]) -> None:
    """Raise RequestError when cells of one line ran on different devices, or with different numbers of threads."""
    lines = cells.groupby([places["label"], places["facet"]])
    mixed = [name for name in MACHINE if name not in keys.values() and (lines[name].nunique() > 1).any()]
    if mixed:
        found = {name: ", ".join(map(_text, sorted(cells[name].dropna().unique()))) for name in mixed}
        raise RequestError(
            f"{name}: cells of one line differ in it ({values}); choose one by where, or give {name} a place of its own"
            for name, values in found.items()
        )


def _where(frame: DataFrame, condition: str) -> DataFrame:
    """The cells for which a condition in pandas' words holds. Raises RequestError with one line when it is none."""
    try:
        holds = frame.eval(condition, engine="python", local_dict={}, global_dict={})
    except Exception as error:  # pandas hands on whatever its parser, numpy or Python raise
        told = " ".join(str(error).split()) or type(error).__name__
        unknown = re.search(r"name '(\w+)' is not defined", told)
        near = did_you_mean(unknown[1], map(str, frame.columns)) if unknown else ""
        raise RequestError([f"where {condition!r}: {told}{near}"]) from error
    if not isinstance(holds, Series) or holds.dtype != bool:
        raise RequestError([f'where {condition!r}: not a condition; expected one such as "d_model == 64"'])
    return frame[holds]


def _places(cells: DataFrame, keys: Mapping[str, str], prefix: str) -> DataFrame:
    """Where each cell goes, by the columns of PLACES; `order` is that of the points: by facet, hue and x."""
    texts, ranks = {}, {}
    for role, key in keys.items():
        column = cells[_column(key)]
        texts[role] = column.map(_text)
        distinct = column.drop_duplicates().dropna()
        known = [_text(value) for value in (distinct.sort_values() if _is_numeric(distinct) else distinct)]
        ranks[role] = texts[role].map({text: i for i, text in enumerate([*known, tables.NOT_ASKED])})
    order = Series(0, index=cells.index)
    for role in ("facet", "hue", "x"):
        if role in keys:
            order = order * (len(cells) + 2) + ranks[role]
    numbers = cells[keys["x"]]
    by_size = _is_numeric(numbers) and bool((good(numbers) > 0).all())
    return DataFrame(
        {
            "label": prefix + texts["hue"],
            "facet": f"{keys['facet']} = " + texts["facet"] if "facet" in keys else "",
            "x": numbers.astype(float) if by_size else 2.0 ** ranks["x"],
            "x_text": texts["x"],
            "order": order,
        },
        index=cells.index,
    )


def _merging(placed: DataFrame, keys: Mapping[str, str]) -> str:
    """How many cells share a point and what tells them apart; "" where each has one of its own."""
    by_point = placed.groupby("place_order", sort=False)
    most = int(by_point.size().max())
    if most < 2:
        return ""
    taken = {_column(key) for key in keys.values()}
    for names in ((*POINT, *APART, "seed"), FOLLOWING):
        differing = [name for name in names if name not in taken and (by_point[name].nunique(dropna=False) > 1).any()]
        if differing:
            break
    apart = ", ".join("variant" if name == "label" else name for name in differing)
    return f"Each value is the median of up to {most} cells{f', which differ in {apart}' if apart else ''}"


def _intervals(data: DataFrame) -> str:
    """What the bars of a figure, or the brackets of a table, are."""
    if data["low"].isna().all():
        return ""
    merged = (data["n_cells"] > 1).any()
    if "ratio" in data:
        return ". Intervals hold the ratio with 95 %"
    return f". Intervals {'reach from the lowest to the highest' if merged else 'hold the median with 95 %'}"


def _relative(data: DataFrame, baseline: str, hue: str) -> tuple[DataFrame, DataFrame]:
    """The points as ratios to those of the baseline at the same place, and the line of 1 in every panel.

    A ratio has no interval where either of its two values is a median of several cells.
    """
    known = list(dict.fromkeys(data["label"]))
    label = next((label for label in known if baseline in (label, label.removeprefix(f"{hue} = "))), None)
    if label is None:
        raise RequestError([f'ratio_to: no {hue} "{baseline}" among the cells{did_you_mean(baseline, known)}'])
    joined = verdicts(data, label, at=["facet", "x"])
    if joined.empty:
        raise RequestError([f'ratio_to: nothing but "{baseline}" among the cells'])
    joined = joined.assign(**{name: good(joined[f"ratio{tail}"], positive=False) for name, tail in ENDS.items()})
    place, merged = ["facet", "x"], data["n_cells"] > 1
    of_several = MultiIndex.from_frame(data.loc[merged & (data["label"] == label), place])
    joined.loc[(joined["n_cells"] > 1) | MultiIndex.from_frame(joined[place]).isin(of_several), ["low", "high"]] = (
        np.nan
    )
    facets = list(dict.fromkeys(joined["facet"]))
    return joined, DataFrame({"name": f"{label} (1)", "facet": facets, "x": joined["x"].min(), "value": 1.0})


def _unmatched(data: DataFrame) -> str:
    n = int((data["status"] == "no baseline").sum())
    return f". {n} point{'' if n == 1 else 's'} without the baseline" if n else ""


def _axis(column: str, data: DataFrame) -> scales.Axis:
    """The vertical axis of a column: shares from 0 to 1, a logarithm where all values allow it, else linear."""
    if column in SHARES:
        return replace(scales.ACCURACY, label=column)
    units, tail = _units(column)
    base = 2 if units is words.BYTE_UNITS else 10
    kind: Any = "linear" if (data["value"].dropna() <= 0).any() else "log"
    return scales.Axis(column, lambda value: f"{_signed(value, units)}{tail}", base, kind)


def _signed(value: float, units: words.Units) -> str:
    return f"-{words.short(-value, units)}" if value < 0 else words.short(value, units)


def _said(column: str, point: Any) -> str:
    """One value with its interval, in the unit of its column."""
    if column in SHARES:
        return words.share(point.value, point.low, point.high)
    if float(point.value).is_integer() and abs(point.value) < 1000:
        return f"{point.value:g}"
    units, tail = _units(column)
    return f"{words.scaled(point.value, units, point.low, point.high)}{tail}"


def _units(column: str) -> tuple[words.Units, str]:
    """The units of a column by the end of its name, and what stands behind them."""
    if column.endswith("_per_s"):
        return words.COUNT_UNITS, "/s"
    if column.endswith("_s"):
        return words.TIME_UNITS, ""
    return (words.BYTE_UNITS if column.endswith("_bytes") else words.COUNT_UNITS), ""


def _title(what: str, cells: DataFrame) -> str:
    """What is shown, and the settings that all its cells share."""
    told = tuple(name for name in APART if name not in TACIT)
    shared = words.settings(common(cells, told), told)
    return f"{what}{f' ({shared})' if shared else ''}"


def _pairs(frame: DataFrame, hue: str, prefix: str) -> list[tuple[str, str]]:
    """Label and variant of every look, taken from the whole run, so that a selection changes none."""
    if _column(hue) == "label":
        return list(zip(frame["label"].map(_text), frame["variant"], strict=True))
    return [(label, label) for label in prefix + frame[hue].map(_text)]


def _prefix(frame: DataFrame, hue: str) -> str:
    """What stands before a value in the name of its line: a number alone would not say what it is.

    frame: the whole run, so that a selection of its cells changes no name.
    """
    return f"{hue} = " if frame[hue].notna().any() and _is_numeric(frame[hue]) else ""


def _column(key: str) -> str:
    return "label" if key == "variant" else key


def _text(value: Any) -> str:
    """A value as its category is called: 64.0 is "64", nothing is "–"."""
    if isinstance(value, list | tuple | dict):
        return str(value)
    if pd.isna(value):
        return tables.NOT_ASKED
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_numeric(column: Series) -> bool:
    known = column.dropna()
    return all(isinstance(value, Real) and not isinstance(value, bool | np.bool_) for value in known)

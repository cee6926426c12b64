"""How series share panels: all in one panel per facet, or, where they are many, one row of panels per family.

A family's panels show its own series in their looks, the baseline too, and all others pale, so that each series can be
told from its neighbours and still be seen beside the whole.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from attnbench.report import plots, scales
from attnbench.report.looks import FAINT, FAMILIES, OTHERS, Look, family

MOST = 12  # series in one panel
MOST_OF_FAMILY = 8  # series in colour in the panel of a family, without the baseline
MOST_COLUMNS = 4  # panels side by side in the row of a family
HEIGHT = 1.9  # inches of such a panel, at least
NAME, KEY, SPACE = 18, 0.75, 0.15  # of a family's legend: characters in a line; inches beside them, and before it


class Panel(NamedTuple):
    """Axes, the facet that they show, the labels in their looks, and those that are pale behind them."""

    axes: Axes
    facet: str
    labels: tuple[str, ...]
    pale: tuple[str, ...] = ()


class Part(NamedTuple):
    """A family, or a part of a large one, and its labels, without the baseline."""

    name: str
    labels: tuple[str, ...]


def by_family(labels: Sequence[str], baseline: str = "", size: int = MOST_OF_FAMILY) -> list[Part]:
    """The families of these labels, each label but the baseline once; one of more than `size` in equal parts."""
    found = []
    for name in (*FAMILIES, OTHERS):
        members = [label for label in labels if label != baseline and family(label) == name]
        n_parts = -(-len(members) // size)
        for i, part in enumerate(np.array_split(np.arange(len(members)), n_parts) if members else []):
            told = name if n_parts == 1 else f"{name}, {i + 1} of {n_parts}"
            found.append(Part(told, tuple(members[j] for j in part)))
    return found


def sheet(
    data: DataFrame,
    looks: Mapping[str, Look],
    *,
    baseline: str,
    title: str,
    note: str,
    x_label: str,
    y_label: str,
    height: float,
    others: Sequence[Line2D] = (),
    room: float = 0.0,
) -> tuple[plots.Sheet, list[Panel]]:
    """A sheet whose panels are given out to the labels and facets of `data`, with the legends of its series.

    data: columns label, facet, value. others: entries of the legend below that are no series. height: of a panel where
    series share one. room: left free below the panels.
    """
    labels, facets = (tuple(dict.fromkeys(data[name])) for name in ("label", "facet"))
    texts: dict[str, Any] = {"title": title, "note": note, "x_label": x_label, "y_label": y_label, "room": room}
    if data.groupby("facet")["label"].nunique().max() > MOST:
        return _by_family(data, looks, baseline, others, texts)
    named = labels if labels != facets or len(labels) <= MOST else ()  # else the titles of panels say it
    handles = [plots.handle(label, looks[label], data[data["label"] == label]) for label in named]
    made = plots.Sheet(facets, handles=[*handles, *others], height=height, **texts)
    return made, [Panel(axes, facet, labels) for axes, facet in zip(made.panels, facets, strict=True)]


def _by_family(
    data: DataFrame, looks: Mapping[str, Look], baseline: str, others: Sequence[Line2D], texts: Mapping[str, Any]
) -> tuple[plots.Sheet, list[Panel]]:
    """A block of panels per family, one per facet, in as few rows as hold them, with its legend to the right."""
    labels, facets = (tuple(dict.fromkeys(data[name])) for name in ("label", "facet"))
    n_rows = -(-len(facets) // MOST_COLUMNS)
    n_columns = -(-len(facets) // n_rows)
    n_cells = n_rows * n_columns
    first = (baseline,) if baseline in labels else ()
    parts = by_family(labels, baseline)
    legends = [_entries(data, looks, (*first, *part.labels)) for part in parts]
    names = [part.name for part in parts]
    width, height = _room(names, legends)
    made = plots.Sheet(
        [*facets, *[""] * (n_cells - len(facets))] * len(parts),
        handles=others,
        height=max(HEIGHT, (height - plots.BELOW * (n_rows - 1)) / n_rows),
        n_columns=n_columns,
        right=width,
        **texts,
    )
    panels = []
    for i, (part, entries) in enumerate(zip(parts, legends, strict=True)):
        block = made.panels[i * n_cells : (i + 1) * n_cells]
        for axes in block[len(facets) :]:
            axes.remove()
        _legend(made.figure, block[n_columns - 1], part.name, entries)
        shown = (*first, *part.labels)
        pale = tuple(label for label in labels if label not in shown)
        panels += [Panel(axes, facet, shown, pale) for axes, facet in zip(block, facets, strict=False)]
    for panel in panels[-n_columns:]:  # where the last row is not full, some of these stand in the row above
        panel.axes.set_xlabel(texts["x_label"])
    return made, panels


def _entries(data: DataFrame, looks: Mapping[str, Look], labels: Sequence[str]) -> list[Line2D]:
    """Entries of a legend in the order in which lines end at the right of the last panel, from above."""
    last = data[(data["facet"] == data["facet"].iloc[-1]) & data["value"].notna()]
    ends = last.sort_values("x", kind="stable").groupby("label")["value"].last()
    order = sorted(labels, key=lambda label: -ends.get(label, -np.inf))
    return [plots.handle(label, looks[label], data[data["label"] == label], NAME) for label in order]


def _legend(figure: Figure, axes: Axes, name: str, entries: Sequence[Line2D]) -> None:
    """The legend of a family, to the right of the last panel of its first row."""
    box = axes.get_position()
    figure.legend(
        handles=list(entries),
        title=_title(name),
        loc="upper left",
        bbox_to_anchor=(box.x1 + SPACE / plots.WIDTH, box.y1),
        handlelength=KEY / 2 / (9 / 72),
        borderaxespad=0,
        borderpad=0,
        labelspacing=0.4,
        alignment="left",
        title_fontproperties={"weight": "bold", "size": 9},
    )


def _title(name: str) -> str:
    return textwrap.fill(name, NAME + 4)


def _room(names: Sequence[str], legends: Sequence[Sequence[Line2D]]) -> tuple[float, float]:
    """Width and height in inches that hold the largest of these legends, with the space beside it."""
    lines = [[line for entry in entries for line in str(entry.get_label()).split("\n")] for entries in legends]
    longest = max(len(line) for part in lines for line in part)
    width = max(KEY + scales.CHARACTER * longest, *(1.1 * scales.CHARACTER * _longest(_title(name)) for name in names))
    tallest = max(0.2 * (len(part) + _title(name).count("\n") + 1) for name, part in zip(names, lines, strict=True))
    return SPACE + width + 0.1, tallest


def _longest(text: str) -> int:
    return max(map(len, text.split("\n")))


def pale(axes: Axes, lines: DataFrame) -> None:
    """Lines behind all others, without points: label, x, value."""
    ordered = lines[lines["value"].notna()].sort_values("x", kind="stable")
    paths = [part[["x", "value"]].to_numpy(dtype=float) for _, part in ordered.groupby("label", sort=False)]
    if paths:
        axes.add_collection(LineCollection(paths, colors=FAINT, linewidths=0.9, zorder=1.5), autolim=False)

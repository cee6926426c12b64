"""All values at a glance: one row per variant, families together, one column per T, and one panel per d_model."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from pandas import DataFrame

from attnbench.report import panels, plots, scales, shades
from attnbench.report.looks import INK, PAPER
from attnbench.report.scales import Colours

ROW, LINE, HEAD = 0.2, 0.13, 0.22  # inches: the least height of a row, of each line of its name, and of a family's
NAME, SMALL = 24, 0.068  # characters in a line of a name, and the width of one in inches
CELL = 0.4  # inches that a number needs


class Row(NamedTuple):
    """What stands in one row, from y on, in inches from the top: a label, or the name of a family above its labels."""

    label: str
    name: str
    y: float
    height: float


def ratio_rows(ratios: DataFrame, what: str, *, title: str, note: str = "") -> Figure:
    """A row for each label, coloured by its ratio to the baseline at each T, under the name of its family.

    ratios: of `attnbench.analyse.compare.verdicts`; those that are the same or ambiguous bear a mark.
    """
    return _drawn(*shades.of_ratios(ratios, what), title, f"{shades.MEANING}; {note}")


def accuracy_rows(data: DataFrame, floor: float, *, title: str, note: str = "") -> Figure:
    """A row for each label, coloured by accuracy from `floor` to 1. data: points of accuracy."""
    return _drawn(*shades.of_accuracies(data, floor), title, note)


def _drawn(data: DataFrame, colours: Colours, title: str, note: str) -> Figure:
    """The sheet: rows and columns of every panel, and the scale of colours."""
    sizes, widths = np.unique(data["T"]), np.unique(data["d_model"])
    rows = _rows(list(dict.fromkeys(data["label"])))
    left = max(0.25 + SMALL * max(len(line) for row in rows if row.label for line in row.name.split("\n")), plots.LEFT)
    n_columns = int(np.clip((plots.WIDTH - left - plots.BAR) / (CELL * len(sizes) + plots.GAP), 1, len(widths)))
    with plots.styled():
        height, names = rows[-1].y + rows[-1].height, [f"d = {d}" for d in widths]
        places: dict[str, Any] = {"n_columns": n_columns, "left": left, "right": plots.BAR}
        sheet = plots.Sheet(names, title, note, [], height=height, x_label="T", y_label="", **places)
        mappable = ScalarMappable(Normalize(colours.low, colours.high), colours.name)
        width = sheet.panel_width / len(sizes)
        for i, (d, axes) in enumerate(zip(widths, sheet.panels, strict=True)):
            _frame(axes, sizes, rows, width)
            axes.tick_params(labelleft=i % sheet.n_columns == 0)
            for row in rows:
                part = data[(data["label"] == row.label) & (data["d_model"] == d)]
                _cells(axes, part, sizes, row, mappable, width)
        plots.bar(sheet, mappable, colours)
        return sheet.figure


def _rows(labels: Sequence[str]) -> list[Row]:
    """The rows from above: each family's name, then its labels."""
    rows, y = [], 0.0
    for part in panels.by_family(labels, size=len(labels)):
        for label in ("", *part.labels):
            name = textwrap.fill(plots.plain(label), NAME) or part.name
            height = max(ROW, LINE * (name.count("\n") + 1)) if label else HEAD
            rows.append(Row(label, name, y, height))
            y += height
    return rows


def _frame(axes: Axes, sizes: Any, rows: Sequence[Row], width: float) -> None:
    """Columns of equal width with their T below, and rows with their names. width: of a column, in inches."""
    axes.grid(False)
    axes.set_xlim(-0.5, len(sizes) - 0.5)
    axes.set_ylim(rows[-1].y + rows[-1].height, 0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(axis="both", length=0)
    marks, free_from = {}, -np.inf
    for i, size in enumerate(sizes):
        half = scales.CHARACTER * (len(str(size)) + 1) / 2 / width
        if i - half >= free_from:
            marks[float(i)], free_from = str(size), i + half
    plots.label(axes.xaxis, marks)
    named = [row for row in rows if row.label]
    axes.set_yticks([row.y + row.height / 2 for row in named], labels=[row.name for row in named], fontsize=8)
    for row in (row for row in rows if not row.label):
        axes.text(-0.48, row.y + row.height - 0.03, row.name, fontsize=7.5, color="#5f5f5f", va="bottom")


def _cells(axes: Axes, part: DataFrame, sizes: Any, row: Row, mappable: ScalarMappable, width: float) -> None:
    """The cells of one row: coloured and numbered, or hatched where a value is missing."""
    for point in part.itertuples():
        x, y = float(np.searchsorted(sizes, point.T)), row.y + row.height / 2
        measured = bool(np.isfinite(point.value))
        colour = mappable.to_rgba(point.value) if measured else PAPER
        hatch = None if measured else "////"
        box = Rectangle(
            (x - 0.5, row.y), 1, row.height, facecolor=colour, edgecolor="white", linewidth=0.8, hatch=hatch
        )
        axes.add_patch(box)
        if width >= CELL:
            text = point.text if measured else _status(point.status, int(width / 0.06))
            plots.write(axes, (x, y), text, colour, size=7.5 if measured else 6.5)
        elif measured and getattr(point, "verdict_corrected", None) in shades.MARKED:
            axes.plot(x, y, ".", color=INK, markersize=2, zorder=5)


def _status(status: str, n_characters: int) -> str:
    """A status whole where so many characters hold it, else its first word, cut short if need be."""
    return status if len(status) <= n_characters else scales.shortened(status.split()[0], n_characters)

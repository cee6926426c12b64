"""Pictures of the T × d plane: one plane per variant, coloured by its ratio to the baseline, or by its accuracy."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from pandas import DataFrame

from attnbench.analyse.crossover import crossings, noise
from attnbench.report import plots, scales, shades
from attnbench.report.looks import INK, PAPER
from attnbench.report.panels import MOST
from attnbench.report.scales import Colours

DIAGONAL = (0, (4, 3))  # how T = d is dashed


def ratio_planes(ratios: DataFrame, baseline: str, what: str, *, title: str, note: str = "") -> Figure:
    """The T × d plane of each label, coloured by its ratio to the baseline, with T = d and the line of ratio 1.

    ratios: of `attnbench.analyse.compare.verdicts`; those that are the same or ambiguous bear a mark.
    """
    data, colours = shades.of_ratios(ratios, what)
    with plots.styled():
        drawn = [_contour(Figure().add_subplot(), part) for _, part in data.groupby("label", sort=False)]
        met = "" if any(drawn) else " (not met in the measured range)"
        same = textwrap.fill(plots.plain(f"same {what} as {baseline}, interpolated{met}"), 90)
        handles = [
            Line2D([], [], color=INK, linewidth=1.3, linestyle=DIAGONAL, label="T = d"),
            Line2D([], [], color=INK, linewidth=2, label=same),
        ]
        sheet = _planes(data, colours, handles, title, f"{shades.MEANING}; {note}")
        for (_, part), axes in zip(data.groupby("label", sort=False), sheet.panels, strict=True):
            axes.axline((0, 0), slope=1, color=INK, linewidth=1.3, linestyle=DIAGONAL, zorder=3)
            _contour(axes, part)
        return sheet.figure


def accuracy_planes(data: DataFrame, floor: float, *, title: str, note: str = "") -> Figure:
    """The T × d plane of each label, coloured by accuracy from `floor` to 1. data: points of accuracy."""
    with plots.styled():
        return _planes(*shades.of_accuracies(data, floor), [], title, note).figure


def _planes(data: DataFrame, colours: Colours, handles: Sequence[Line2D], title: str, note: str) -> plots.Sheet:
    """One T × d plane per label, sizes by their base-2 logarithm, and one colour bar."""
    T, d = np.unique(data["T"]), np.unique(data["d_model"])
    n_columns = 3 if len(T) <= 8 else 2 if len(T) <= 13 else 1
    names = list(dict.fromkeys(data["label"]))
    height = max(1.4 if len(names) <= MOST else 0.88, 0.44 * len(d))
    sheet = plots.Sheet(
        names, title, note, handles, height=height, x_label="T", y_label="d", n_columns=n_columns, right=plots.BAR
    )
    mappable = ScalarMappable(Normalize(colours.low, colours.high), colours.name)
    for (_, part), axes in zip(data.groupby("label", sort=False), sheet.panels, strict=True):
        _plane(axes, part, T, d, mappable, (sheet.panel_width, height))
        _label_log2(axes.xaxis, T, sheet.panel_width)
        _label_log2(axes.yaxis, d, height * 2)
    plots.bar(sheet, mappable, colours)
    return sheet


def _plane(axes: Axes, part: DataFrame, T: Any, d: Any, mappable: ScalarMappable, size: tuple[float, float]) -> None:
    """Coloured cells with their numbers, and hatched ones with their status where a value is missing.

    size: of the plane, in inches; numbers are left out where a cell has no room for them, and a dot stands for a mark.
    """
    x, y = scales.edges(T), scales.edges(d)
    axes.grid(False)
    axes.set_xlim(x[0], x[-1])
    axes.set_ylim(y[0], y[-1])
    low, high = mappable.get_clim()
    axes.pcolormesh(x, y, _grid(part, T, d), cmap=mappable.cmap, vmin=low, vmax=high, edgecolors="white", linewidth=0.8)
    widths, heights = np.diff(x) * size[0] / np.ptp(x), np.diff(y) * size[1] / np.ptp(y)
    for point in part.itertuples():
        i, j = np.searchsorted(T, point.T), np.searchsorted(d, point.d_model)
        at = (float(np.log2(point.T)), float(y[j] + 0.27 * (y[j + 1] - y[j])))  # below the middle, where lines run
        roomy = widths[i] >= 0.36 and heights[j] >= 0.2
        measured = np.isfinite(point.value)
        if not measured:
            box = ((x[i], y[j]), x[i + 1] - x[i], y[j + 1] - y[j])
            axes.add_patch(Rectangle(*box, facecolor=PAPER, edgecolor="white", hatch="////", linewidth=0.8))
        if measured and roomy:
            plots.write(axes, at, point.text, mappable.to_rgba(point.value))
        elif measured and getattr(point, "verdict_corrected", None) in shades.MARKED:
            axes.plot(*at, ".", color=INK, markersize=2, zorder=5)
        elif roomy:
            plots.write(axes, at, scales.shortened(point.status, int(widths[i] / 0.05)), PAPER, size=6.5)


def _contour(axes: Axes, part: DataFrame) -> bool:
    """Where the ratio is 1, by straight lines between measured neighbours in log T, log d and log ratio; if anywhere.

    No line passes through cells that are noise around 1. A plane of one row or one column is crossed straight.
    """
    T, d = np.unique(part["T"]), np.unique(part["d_model"])
    if len(T) > 1 and len(d) > 1:
        return _crosses(part) and _contour_of_plane(axes, part, T, d)
    across, draw = (part["T"], axes.axvline) if len(d) == 1 else (part["d_model"], axes.axhline)
    found = crossings(across, part["ratio"], part["side"])
    for at in found:
        draw(float(np.log2(at.T)), color=INK, linewidth=2, zorder=4)
    return bool(found)


def _contour_of_plane(axes: Axes, part: DataFrame, T: Any, d: Any) -> bool:
    """The line of ratio 1 through several rows and columns; whether there is one."""
    values = np.ma.masked_where(noise(_grid(part, T, d, "side").filled(np.nan)), _grid(part, T, d))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No contour levels were found")  # all that is not noise is on one side
        drawn = axes.contour(np.log2(T), np.log2(d), values, levels=[0], colors=INK, linewidths=2, zorder=4)
    return any(np.size(path.vertices) for path in drawn.get_paths())


def _crosses(part: DataFrame) -> bool:
    """Whether the ratio is below 1 in some cells and above it in others, by their verdicts."""
    return bool(part["side"].min() < 0 < part["side"].max())


def _grid(part: DataFrame, T: Any, d: Any, column: str = "value") -> Any:
    """Values as (n_d, n_T), masked where there is none."""
    grid = np.full((len(d), len(T)), np.nan)
    grid[np.searchsorted(d, part["d_model"]), np.searchsorted(T, part["T"])] = part[column]
    return np.ma.masked_invalid(grid)


def _label_log2(axis: Any, sizes: Any, width: float) -> None:
    marks = scales.fitting({size: str(size) for size in sizes}, width, 0.5)
    plots.label(axis, {float(np.log2(size)): text for size, text in marks.items()})

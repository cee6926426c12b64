"""Curves: one line per label over x, one panel per facet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from pandas import DataFrame

from attnbench.report import panels, plots, scales
from attnbench.report.looks import PALE, Look
from attnbench.report.scales import Axis

REFERENCES: Mapping[str, tuple[int, tuple[float, ...]]] = {  # every other line of reference is dashed
    "chance": (0, (1, 1.6)),
    "90 %": (0, (8, 1.5, 1, 1.5)),
    "equal operations": (0, (8, 1.5, 1, 1.5)),
    "equal operations of mixing alone": (0, (1, 1.6)),
}
DASHED = (0, (5, 2))
MOST_MARKERS = 16  # on one line where there are thin ones too: of more points every other, or every third, has one


def curves(
    data: DataFrame,
    looks: Mapping[str, Look],
    axis: Axis,
    *,
    x_label: str,
    title: str,
    note: str = "",
    references: DataFrame | None = None,
    marks: Mapping[float, str] | None = None,
    thin: DataFrame | None = None,
    apart: bool = False,
    baseline: str = "",
    ends: Mapping[str, float] | None = None,
) -> Figure:
    """One panel per facet, one line per label over x, on shared axes; a label without any value is in the legend.

    data: columns label, facet, x, x_text, value, low, high (value NaN: left out). references: name, facet, x, value.
    marks: ticks of x, by default every x with its x_text.
    thin: lines behind those of their label, one per seed: label, facet, seed, x, value.
    apart: draw each line a little to one side of its x, so that lines of one value do not hide each other.
    baseline: the label that is in every panel where more than `panels.MOST` labels share one, which then has a panel
    for each family.
    ends: by facet, the x at which a vertical line stands.
    """
    texts: dict[str, Any] = {"title": title, "note": note, "x_label": x_label, "y_label": axis.label}
    with plots.styled():
        handles = [_reference_handle(name) for name in ([] if references is None else references["name"].unique())]
        sheet, shared = panels.sheet(data, looks, baseline=baseline, height=_height(data), others=handles, **texts)
        marks = marks or dict(sorted(zip(data["x"], data["x_text"], strict=True)))
        drawn = data if references is None else pd.concat([data, references])
        limits = scales.linear_limits(drawn) if axis.kind == "linear" else scales.limits(drawn)
        for panel in shared:
            plots.x_scale(panel.axes, marks, sheet.panel_width)
            plots.y_scale(panel.axes, axis, limits)
            shift = scales.dodge(list(marks), len(panel.labels) if apart else 1)
            if thin is not None:
                _thin(panel, thin[thin["facet"] == panel.facet], looks)
            every = 1 if thin is None else -(-len(marks) // MOST_MARKERS)
            _draw(panel, data[data["facet"] == panel.facet], looks, shift, every)
            if ends and panel.facet in ends:
                panel.axes.axvline(ends[panel.facet], color=PALE, linewidth=1.0, zorder=1.8)
            if references is not None:
                _references(panel.axes, references[references["facet"] == panel.facet])
        return sheet.figure


def _height(data: DataFrame) -> float:
    """Of a panel, in inches: low where panels are many, tall where its lines are."""
    n_labels, n_facets = data["label"].nunique(), data["facet"].nunique()
    if n_facets > panels.MOST:
        return 1.9
    return 2.7 if n_labels <= 8 or n_facets > 9 else 3.6


def _draw(panel: panels.Panel, data: DataFrame, looks: Mapping[str, Look], shift: Sequence[float], every: int) -> None:
    """The series of one panel, the first one strongest. shift: factors on x that set them apart."""
    panels.pale(panel.axes, data[data["label"].isin(panel.pale)])
    last = max(len(panel.labels) - 1, 1)
    for i, label in enumerate(panel.labels):
        line = data[data["label"] == label].sort_values("x", kind="stable")
        line = line.assign(x=line["x"] * shift[i % len(shift)])
        plots.series(panel.axes, line, looks[label], 1 - i / last, every=every)


def _thin(panel: panels.Panel, lines: DataFrame, looks: Mapping[str, Look]) -> None:
    """The lines of single seeds, in the colours of their labels."""
    for label in panel.labels:
        parts = lines[lines["label"] == label].groupby("seed", sort=False)
        paths = [part[["x", "value"]].to_numpy(dtype=float) for _, part in parts]
        thin = LineCollection(paths, colors=looks[label].colour, linewidths=0.6, alpha=0.45, zorder=2.5)
        panel.axes.add_collection(thin, autolim=False)


def _reference_handle(name: str) -> Line2D:
    """The entry of a line of reference in the legend."""
    return Line2D([], [], color=PALE, linewidth=1.2, linestyle=REFERENCES.get(name, DASHED), label=plots.plain(name))


def _references(axes: Axes, data: DataFrame) -> None:
    """Lines to compare with, one per name: a level one across the whole panel where its value does not depend on x."""
    for name, part in data.groupby("name", sort=False):
        look: dict[str, Any] = {"color": PALE, "linewidth": 1.2, "linestyle": REFERENCES.get(name, DASHED), "zorder": 2}
        if part["value"].nunique() == 1:
            axes.axhline(part["value"].iloc[0], **look)
        else:
            axes.plot(part.sort_values("x")["x"], part.sort_values("x")["value"], **look)

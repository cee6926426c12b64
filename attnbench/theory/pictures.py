"""Pictures of statements, in the looks of a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pandas import DataFrame

from attnbench.report import plots, scales
from attnbench.report.looks import Look, looks
from attnbench.theory.statement import Curves, Maps

MAP_HEIGHT = 2.6  # inches


def figure(picture: Curves | Maps) -> plots.Picture:
    """Draw one."""
    return _curves(picture) if isinstance(picture, Curves) else _maps(picture)


def _curves(picture: Curves) -> plots.Picture:
    """One panel per facet, one line per label, on shared axes."""
    data = _points(picture)
    labels = list(dict.fromkeys(data["label"]))
    style = looks((label, label) for label in labels)
    with plots.styled():
        handles = [plots.handle(label, style[label], data[data["label"] == label]) for label in labels]
        facets = list(dict.fromkeys(data["facet"]))
        sheet = plots.Sheet(facets, picture.title, "", handles, height=2.7, x_label=picture.x, y_label=picture.y)
        for facet, axes in zip(facets, sheet.panels, strict=True):
            _scales(axes, picture, data, sheet.panel_width)
            _lines(axes, data[data["facet"] == facet], style)
        return sheet.figure


def _points(picture: Curves) -> DataFrame:
    """label, facet, x, value, low, high; what a logarithm cannot show is left out."""
    frame = picture.frame
    value = frame[picture.y].astype(float)
    data = DataFrame({"label": frame["label"].astype(str), "x": frame[picture.x].astype(float)})
    data["value"] = value.where(value > 0) if picture.y_log else value
    data["facet"] = frame["facet"].astype(str) if "facet" in frame else ""
    if picture.x_log:
        data = data[data["x"] > 0]
    return data.assign(low=np.nan, high=np.nan)


def _scales(axes: Any, picture: Curves, data: DataFrame, width: float) -> None:
    """Both axes of one panel."""
    axis = scales.Axis(picture.y, lambda value: f"{value:g}", kind="log" if picture.y_log else "linear")
    plots.y_scale(axes, axis, scales.limits(data) if picture.y_log else scales.linear_limits(data))
    if picture.x_log:
        plots.x_scale(axes, {x: f"{x:g}" for x in sorted(set(data["x"]))}, width)
    elif len(data):
        room = 0.03 * np.ptp(data["x"]) or 0.5
        axes.set_xlim(data["x"].min() - room, data["x"].max() + room)


def _lines(axes: Any, data: DataFrame, style: Mapping[str, Look]) -> None:
    for label, line in data.groupby("label", sort=False):
        plots.series(axes, line.sort_values("x", kind="stable"), style[str(label)], 0.2)


def _maps(picture: Maps) -> plots.Picture:
    """Each matrix in a panel of its own, dark where it is large; each by its own largest value."""
    with plots.styled():
        sheet = plots.Sheet(
            list(picture.maps), picture.title, "", [], height=MAP_HEIGHT, x_label="key", y_label="query"
        )
        for axes, values in zip(sheet.panels, picture.maps.values(), strict=True):
            axes.grid(False)
            axes.imshow(np.asarray(values, dtype=float), cmap="Blues", vmin=0, aspect="equal", interpolation="nearest")
            axes.tick_params(labelleft=True)
        return sheet.figure

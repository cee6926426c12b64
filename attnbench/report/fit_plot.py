"""The picture of fitted costs: measured points with their fitted curves, and what each cost is made of."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator
from pandas import DataFrame

from attnbench.report import panels, plots, scales
from attnbench.report.looks import INK, TERM_COLOURS, Look
from attnbench.report.scales import Axis

BAR, SPACE, LINE = 0.2, 0.08, 0.15  # inches: the least height of a bar, the space between two, a line of a name
NAME = 26  # characters of a name in one line beside its bar
SMALL = 0.066  # inches per character of 8 points
HEAD, FOOT = 0.34, 0.12  # inches above and below the bars


def fitted_curves(
    data: DataFrame,
    fitted: DataFrame,
    shares: DataFrame,
    looks: Mapping[str, Look],
    axis: Axis,
    *,
    title: str,
    shares_title: str,
    baseline: str,
    note: str = "",
) -> plots.Picture:
    """One panel per facet with points and fitted curves over T, and below them one bar per label, split into terms.

    data: columns label, facet, x, x_text, value, low, high. fitted: label, facet, x, value, along the curves.
    shares: label, term, share, seen; each label's shares add up to 1. Terms that are not resolved are hatched.
    """
    texts: dict[str, Any] = {"title": title, "note": note, "x_label": "T", "y_label": axis.label}
    with plots.styled():
        names = {label: textwrap.fill(plots.plain(label), NAME) for label in dict.fromkeys(shares["label"])}
        texts["others"] = [_swatch(term) for term in dict.fromkeys(shares["term"])]
        texts["room"] = HEAD + sum(map(_height, names.values())) + FOOT
        sheet, shared = panels.sheet(data, looks, baseline=baseline, height=2.7, **texts)
        marks, limits = dict(sorted(zip(data["x"], data["x_text"], strict=True))), scales.limits(data)
        for panel in shared:
            plots.x_scale(panel.axes, marks, sheet.panel_width)
            plots.y_scale(panel.axes, axis, limits)
            measured, lines = (part[part["facet"] == panel.facet] for part in (data, fitted))
            _draw(panel, measured, lines, looks)
        _below(sheet, shares, names, shares_title)
        return sheet.figure


def _draw(panel: panels.Panel, measured: DataFrame, lines: DataFrame, looks: Mapping[str, Look]) -> None:
    """The points and the fitted curves of one panel."""
    panels.pale(panel.axes, lines[lines["label"].isin(panel.pale)])
    for label in panel.labels:
        plots.series(panel.axes, measured[measured["label"] == label], looks[label], 0.2, joined=False)
        _curve(panel.axes, lines[lines["label"] == label], looks[label])


def _below(sheet: plots.Sheet, shares: DataFrame, names: Mapping[str, str], title: str) -> None:
    """The bars, in the room below the panels, beside the names of their labels."""
    longest = max(len(line) for name in names.values() for line in name.split("\n"))
    left = max(0.2 + SMALL * longest, plots.LEFT)
    width = plots.WIDTH - left - plots.RIGHT
    axes = sheet.place(left, sheet.bottom + HEAD, width, sum(map(_height, names.values())))
    axes.set_title(plots.plain(title), loc="left", y=1.0, color=INK)
    _bars(axes, shares, names, width)


def _curve(axes: Axes, line: DataFrame, look: Look) -> None:
    """One fitted curve."""
    drawn = Line2D(line["x"], line["value"], color=look.colour, linestyle=look.line, linewidth=1.2, zorder=2)
    axes.add_line(drawn)


def _height(name: str) -> float:
    """Inches of a bar and the space below it, by the lines of its name."""
    return max(BAR, LINE * (name.count("\n") + 1)) + SPACE


def _colour(term: str) -> str:
    """Of a term, or of the first of two that are one at these sizes."""
    return TERM_COLOURS[term.partition(" or ")[0]]


def _swatch(term: str) -> Line2D:
    return Line2D([], [], color=_colour(term), marker="s", markersize=8, linestyle="none", label=f"term {term}")


@rc_context({"hatch.color": "white"})  # seen on every colour of a term
def _bars(axes: Axes, shares: DataFrame, names: Mapping[str, str], width: float) -> None:
    """Bars from 0 to 1 under each other, in inches of height; a part that has room for it says what it is."""
    axes.grid(False)
    at, middles = 0.0, []
    for label, name in names.items():
        middle, thick, start = at + _height(name) / 2, _height(name) - SPACE, 0.0
        for part in shares[shares["label"] == label].itertuples():
            hatch = "////" if part.seen == "unresolved" else None
            colour = _colour(part.term)
            axes.barh(middle, part.share, thick, start, color=colour, edgecolor="white", hatch=hatch, linewidth=0.8)
            text = f"{part.term}  {100 * part.share:.0f} %"
            if part.share * width > SMALL * len(text) + 0.04:
                plots.write(axes, (start + part.share / 2, middle), text, colour)
            start += part.share
        middles.append(middle)
        at += _height(name)
    axes.set_xlim(0, 1)
    axes.set_ylim(at, 0)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.xaxis.set_major_locator(NullLocator())
    axes.set_yticks(middles, labels=list(names.values()), fontsize=8)
    axes.tick_params(axis="y", length=0)

"""The pictures of a report. It and the modules that draw with it import matplotlib, and never its pyplot.

Figures are made as objects and saved straight to files: no window system is touched, the caller's backend and style
stay as they are, and no figure outlives its use. Sizes are inches; at 100 dots per inch a figure is 1000 wide.
"""

from __future__ import annotations

import gc
import textwrap
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator
from pandas import DataFrame

from attnbench.report import scales
from attnbench.report.looks import INK, PALE, SIZES, STYLE, Look
from attnbench.report.scales import Axis, Colours

WIDTH, LEFT, RIGHT, GAP, BELOW = 10.0, 0.85, 0.2, 0.25, 0.52
BAR = 1.2  # inches to the right of panels that a scale of colours needs
FORMATS = {".svg": {"Date": None}, ".png": {}, ".pdf": {"CreationDate": None}}  # and what keeps the date out of a file
_STYLE_LOCK = threading.RLock()
Picture = Figure


@contextmanager
def styled() -> Iterator[None]:
    """Our style and nobody else's, for as long as a figure is made or saved; one thread at a time.

    Python's collector waits: it would walk the objects of a large figure, all of them alive, dozens of times.
    """
    with _STYLE_LOCK, matplotlib.style.context(["default", STYLE]):
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def save(figure: Figure, stem: Path) -> None:
    """Write STEM.svg and STEM.png; the same figure gives the same bytes."""
    for suffix in (".svg", ".png"):
        save_as(figure, stem.with_name(f"{stem.name}{suffix}"))


def save_as(figure: Figure, file: Path) -> None:
    """Write one file in the format of its suffix, one of FORMATS; the same figure gives the same bytes."""
    with styled():
        figure.savefig(file, metadata=FORMATS[file.suffix])


class Sheet:
    """A figure of fixed width whose title, panels, legend and note each have room of their own, so none overlaps.

    panels: one per name, in rows of n_columns. top: of the first panel; bottom: below the last row. All in inches from
    the top. room: left free below `bottom`, for whatever is placed there.
    """

    def __init__(
        self,
        names: Sequence[str],
        title: str,
        note: str,
        handles: Sequence[Line2D],
        *,
        height: float,
        x_label: str,
        y_label: str,
        n_columns: int = 3,
        left: float = LEFT,
        right: float = RIGHT,
        room: float = 0.0,
    ) -> None:
        n_columns = max(min(n_columns, 2 if len(names) == 4 else len(names)), 1)
        self.n_columns = n_columns
        self.panel_width = (WIDTH - left - right - GAP * (n_columns - 1)) / n_columns
        titles = [textwrap.fill(plain(name), int(self.panel_width / 0.085)) for name in names]
        head, foot = textwrap.fill(plain(title), 92), textwrap.fill(plain(note), 150)
        tops, self.bottom = [], 0.12 + 0.22 * _n_lines(head)
        for row in (titles[i : i + n_columns] for i in range(0, len(titles), n_columns)):
            tops.append(self.bottom + 0.12 + 0.17 * max(map(_n_lines, row)))
            self.bottom = tops[-1] + height + BELOW
        self.top = tops[0]
        n_legend_columns, legend_height = scales.legend([str(h.get_label()) for h in handles], WIDTH - LEFT)
        total = self.bottom + room + legend_height + 0.1 + 0.16 * _n_lines(foot)
        self.figure = Figure(figsize=(WIDTH, total))
        self.figure.text(0.15 / WIDTH, 1 - 0.15 / total, head, fontsize=11.5, fontweight="bold", va="top")
        if foot:
            self.figure.text(LEFT / WIDTH, 0.1 / total, foot, fontsize=8, color="#5f5f5f", va="bottom")
        if handles:
            at = (LEFT / WIDTH, 1 - (self.bottom + room) / total)
            self.figure.legend(
                handles=list(handles), loc="upper left", bbox_to_anchor=at, ncols=n_legend_columns, borderaxespad=0
            )
        places = [(left + column * (self.panel_width + GAP), top) for top in tops for column in range(n_columns)]
        self.panels = [self.place(*at, self.panel_width, height) for at, _ in zip(places, titles, strict=False)]
        self._name_axes(titles, x_label, y_label)

    def _name_axes(self, titles: Sequence[str], x_label: str, y_label: str) -> None:
        """A title over each panel, x_label below the last one of each column, y_label left of the first of each row."""
        for i, (axes, text) in enumerate(zip(self.panels, titles, strict=True)):
            axes.set_title(text, loc="left", y=1.0, color=INK)  # a given y spares a layout at each drawing
            axes.tick_params(labelleft=i % self.n_columns == 0, length=3)
            axes.set_ylabel("" if i % self.n_columns else y_label)
            axes.set_xlabel(x_label if i + self.n_columns >= len(titles) else "")

    def place(self, left: float, top: float, width: float, height: float) -> Axes:
        """New axes, in inches from the left and the top of the figure."""
        total = float(self.figure.get_figheight())
        return self.figure.add_axes((left / WIDTH, 1 - (top + height) / total, width / WIDTH, height / total))


def bar(sheet: Sheet, mappable: ScalarMappable, colours: Colours) -> None:
    """The colour scale, to the right of the first panels, in the room that a sheet keeps for it with right=BAR."""
    length = min(sheet.bottom - sheet.top - BELOW, 2.6)
    axes = sheet.place(WIDTH - 1.0, sheet.top, 0.14, length)
    drawn = sheet.figure.colorbar(mappable, cax=axes, extend="both" if colours.clipped else "neither")
    drawn.set_ticks(list(colours.ticks), labels=list(colours.ticks.values()))
    drawn.outline.set_visible(False)
    axes.set_ylabel(textwrap.fill(plain(colours.label), int(length / scales.CHARACTER)))


def _n_lines(text: str) -> int:
    return text.count("\n") + 1


def handle(label: str, look: Look, data: DataFrame, width: int = 50) -> Line2D:
    """The entry of one series in a legend, in lines of at most `width` characters."""
    text = textwrap.fill(plain(label), width) + ("" if data["value"].notna().any() else " (no data)")
    return Line2D(
        [],
        [],
        color=look.colour,
        marker=look.marker,
        linestyle=look.line,
        markeredgecolor="white",
        markeredgewidth=0.6,
        markersize=5.5 * SIZES.get(look.marker, 1.0),
        label=text,
    )


def series(axes: Axes, line: DataFrame, look: Look, weight: float, *, joined: bool = True, every: int = 1) -> None:
    """The measured points of one series, joined by a line or not, with their intervals as bars.

    weight: from 1 for the first series down; earlier ones are drawn stronger, so that one which lies under another
    still shows. every: how many points share a marker.
    """
    line = line[line["value"].notna()]
    if line.empty:
        return
    drawn = Line2D(
        line["x"].to_numpy(),
        line["value"].to_numpy(),
        color=look.colour,
        marker=look.marker,
        linestyle=look.line if joined else "none",
        markeredgecolor="white",
        markeredgewidth=0.6,
        markersize=(5 + 2 * weight) * SIZES.get(look.marker, 1.0),
        markevery=every,
        linewidth=1.3 + 1.1 * weight,
        zorder=3,
    )
    axes.add_line(drawn)  # unlike plot and vlines it looks for no limits, which are set
    lowest = axes.get_ylim()[0] / 2 if axes.get_yscale() == "log" else -np.inf
    bars = line[["x", "low", "high"]].to_numpy(dtype=float)
    bars = bars[np.isfinite(bars).all(axis=1)]
    if len(bars):
        bars[:, 1] = bars[:, 1].clip(min=lowest)
        ends = bars[:, [[0, 1], [0, 2]]]  # (n, 2, 2): x and low, x and high
        axes.add_collection(LineCollection(ends, colors=look.colour, linewidths=1, zorder=3), autolim=False)


def x_scale(axes: Axes, marks: Mapping[float, str], width: float) -> None:
    """Base-2 logarithm over the sizes that were measured, labelled as far as labels fit into `width` inches."""
    sizes = list(marks)
    axes.set_xscale("log", base=2)
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    label(axes.xaxis, scales.fitting(marks, width, np.log2(1.25)))


def y_scale(axes: Axes, axis: Axis, limits: tuple[float, float] | None) -> None:
    """The common vertical scale with round ticks; without data a word instead."""
    if axis.kind == "share":
        axes.set_ylim(-0.02, 1.04)
        axes.yaxis.set_major_locator(FixedLocator([0, 0.25, 0.5, 0.75, 1]))
        return
    if limits is None:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=PALE)
        return
    axes.set_yscale(axis.kind)
    axes.set_ylim(*limits)
    ticks = scales.round_ticks(*limits, axis.base) if axis.kind == "log" else MaxNLocator(6).tick_values(*limits)
    label(axes.yaxis, {at: axis.text(at) for at in ticks if limits[0] <= at <= limits[1]})


def label(axis: Any, marks: Mapping[float, str]) -> None:
    """These ticks and no others."""
    axis.set_major_locator(FixedLocator(list(marks)))
    axis.set_major_formatter(FixedFormatter([plain(text) for text in marks.values()]))
    axis.set_minor_locator(NullLocator())


def write(axes: Axes, at: tuple[float, float], text: str, colour: Any, size: float = 8) -> None:
    """Text on a patch of its cell's colour, so that lines pass behind it."""
    dark = np.dot(to_rgb(colour), (0.299, 0.587, 0.114)) < 0.55
    patch = {"facecolor": colour, "edgecolor": "none", "pad": 1.0}
    axes.text(*at, text, ha="center", va="center", fontsize=size, color="white" if dark else INK, zorder=5, bbox=patch)


def plain(text: str) -> str:
    """Text as it is: no formulas, no control characters, a box for what the font lacks."""
    known = _characters()
    return "".join(char if ord(char) in known else "\u25a1" for char in " ".join(text.split())).replace("$", r"\$")


@cache
def _characters() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())

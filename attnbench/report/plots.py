"""The pictures of a report. It and the modules that draw with it import matplotlib, and never its pyplot.

Figures are made as objects and saved straight to files: no window system is touched, the caller's backend and style
stay as they are, and no figure outlives its use. Sizes are inches; at 100 dots per inch a figure is 1000 wide.
"""

from __future__ import annotations

import textwrap
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, MaxNLocator, NullLocator
from pandas import DataFrame

from attnbench.analyse.compare import AMBIGUOUS, MARGIN, SAME
from attnbench.analyse.crossover import crossings, noise
from attnbench.report import scales, words
from attnbench.report.looks import FAMILIES, INK, OTHERS, PALE, PAPER, STYLE, Look
from attnbench.report.scales import Axis, Colours

WIDTH, LEFT, RIGHT, GAP, BELOW = 10.0, 0.85, 0.2, 0.25, 0.52
CROWDED, MOST_NAMES = 14, 9  # labels of one figure, and of one panel with names beside it
NAMES, NAME_LENGTH = 1.45, 16  # room for such names in inches, and in characters
BEHIND = "#d9d9d9"
REFERENCES: Mapping[str, tuple[int, tuple[float, ...]]] = {  # every other line of reference is dashed
    "chance": (0, (1, 1.6)),
    "equal operations": (0, (8, 1.5, 1, 1.5)),
    "equal operations of mixing alone": (0, (1, 1.6)),
}
DASHED = (0, (5, 2))
SAME_MARK, AMBIGUOUS_MARK = "≈", "?"
MARKED = {SAME: f"{SAME_MARK}{{}}", AMBIGUOUS: f"{{}}{AMBIGUOUS_MARK}"}
FORMATS = {".svg": {"Date": None}, ".png": {}, ".pdf": {"CreationDate": None}}  # and what keeps the date out of a file
_STYLE_LOCK = threading.RLock()
Picture = Figure


@contextmanager
def styled() -> Iterator[None]:
    """Our style and nobody else's, for as long as a figure is made or saved; one thread at a time."""
    with _STYLE_LOCK, matplotlib.style.context(["default", STYLE]):
        yield


def save(figure: Figure, stem: Path) -> None:
    """Write STEM.svg and STEM.png; the same figure gives the same bytes."""
    for suffix in (".svg", ".png"):
        save_as(figure, stem.with_name(f"{stem.name}{suffix}"))


def save_as(figure: Figure, file: Path) -> None:
    """Write one file in the format of its suffix, one of FORMATS; the same figure gives the same bytes."""
    with styled():
        figure.savefig(file, metadata=FORMATS[file.suffix])


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
    apart: bool = False,
) -> Figure:
    """One panel per facet, one line per label over x, on shared axes; a label without any value is in the legend.

    data: columns label, facet, x, x_text, value, low, high (value NaN: left out). references: name, facet, x, value.
    marks: ticks of x, by default every x with its x_text.
    apart: draw each line a little to one side of its x, so that lines of one value do not hide each other.

    More than CROWDED labels are shown family by family, a row of panels each, with all other lines in grey behind.
    """
    with styled():
        facets = list(dict.fromkeys(data["facet"]))
        labels = list(dict.fromkeys(data["label"]))
        crowded = len(labels) > CROWDED
        rows = _families(labels, looks) if crowded else [("", labels)]
        labels = [label for _, members in rows for label in members]
        handles = [handle(label, looks[label], data[data["label"] == label]) for label in labels]
        handles += [_reference_handle(name) for name in ([] if references is None else references["name"].unique())]
        height = 2.7 if len(labels) <= 8 or len(facets) > 9 else 3.6
        size: dict[str, Any] = {"height": height}
        if crowded:
            size = {"height": 2.2, "n_columns": min(len(facets), 2), "gap": NAMES + GAP, "right": NAMES}
        titles = [f"{name}, {facet}" if crowded else facet for name, _ in rows for facet in facets]
        sheet = Sheet(titles, title, note, handles, x_label=x_label, y_label=axis.label, **size)
        marks = marks or dict(sorted(zip(data["x"], data["x_text"], strict=True)))
        if apart:
            shift = dict(zip(labels, scales.dodge(list(marks), len(labels)), strict=True))
            data = data.assign(x=data["x"] * data["label"].map(shift))
        drawn = data if references is None else pd.concat([data, references])
        limits = scales.linear_limits(drawn) if axis.kind == "linear" else scales.limits(drawn)
        panels = [(members, facet) for _, members in rows for facet in facets]
        for (members, facet), axes in zip(panels, sheet.panels, strict=True):
            x_scale(axes, marks, sheet.panel_width)
            y_scale(axes, axis, limits)
            lines = {label: line.sort_values("x", kind="stable") for label, line in _of(data, facet).groupby("label")}
            for place, label in enumerate(labels):
                if label in members and label in lines:
                    series(axes, lines[label], looks[label], 1 - place / max(len(labels) - 1, 1))
            if crowded:
                _behind(axes, [line for label, line in lines.items() if label not in members])
                _names(axes, size["height"], {label: lines[label] for label in members if label in lines}, looks)
            if references is not None:
                _references(axes, _of(references, facet))
        return sheet.figure


def _families(labels: Sequence[str], looks: Mapping[str, Look]) -> list[tuple[str, list[str]]]:
    """Labels by family, a large one in several rows."""
    rows = []
    for name in (*FAMILIES, OTHERS):
        members = [label for label in labels if looks[label].family == name]
        rows += [(name, members[i : i + MOST_NAMES]) for i in range(0, len(members), MOST_NAMES)]
    return rows


def _of(data: DataFrame, facet: str) -> DataFrame:
    return data[data["facet"] == facet]


def _behind(axes: Axes, lines: Sequence[DataFrame]) -> None:
    """Lines of other panels, thin and grey."""
    for line in lines:
        known = line[line["value"].notna()]
        axes.add_line(Line2D(known["x"].to_numpy(), known["value"].to_numpy(), color=BEHIND, linewidth=0.8, zorder=1))


def _names(axes: Axes, height: float, lines: Mapping[str, DataFrame], looks: Mapping[str, Look]) -> None:
    """Labels to the right of a panel `height` inches high, at the last values of their lines, none upon another."""
    ends = {label: line["value"].dropna().iloc[-1] for label, line in lines.items() if line["value"].notna().any()}
    to_axes = axes.transData + axes.transAxes.inverted()
    x = axes.get_xlim()[1]
    heights = {label: float(to_axes.transform((x, value))[1]) for label, value in ends.items()}
    for label, y in scales.spread(heights, 0.14 / height).items():  # a line of text is 0.14 inches
        name = plain(label)
        name = name if len(name) <= NAME_LENGTH else name[: NAME_LENGTH - 1] + "…"
        axes.text(1.02, y, name, color=looks[label].colour, fontsize=8, va="center", transform=axes.transAxes)


def ratio_planes(ratios: DataFrame, baseline: str, what: str, *, title: str, note: str = "") -> Figure:
    """The T × d plane of each label, coloured by its ratio to the baseline, with T = d and the line of ratio 1.

    ratios: of `attnbench.analyse.compare.verdicts`; those that are the same or ambiguous bear a mark.
    """
    forms = [MARKED.get(verdict, "{}") for verdict in ratios["verdict_corrected"]]
    texts = [form.format(words.ratio(ratio)) for form, ratio in zip(forms, ratios["ratio"], strict=True)]
    with np.errstate(invalid="ignore"):
        data = ratios.assign(value=np.log2(ratios["ratio"]), text=texts)
    largest = data["value"].abs().fillna(0).max()
    limit = float(np.clip(np.ceil(largest), 1, 5))
    ticks = {float(k): f"{2**k:g}" if k >= 0 else f"1/{2**-k:g}" for k in range(-int(limit), int(limit) + 1)}
    colours = Colours("RdBu_r", -limit, limit, ticks, f"{what} ÷ baseline's {what}", bool(largest > limit))
    with styled():
        drawn = [_contour(Figure().add_subplot(), part) for _, part in data.groupby("label", sort=False)]
        met = "" if any(drawn) else " (not met in the measured range)"
        same = textwrap.fill(plain(f"same {what} as {baseline}, interpolated{met}"), 90)
        handles = [
            Line2D([], [], color=INK, linewidth=1.3, linestyle=(0, (4, 3)), label="T = d"),
            Line2D([], [], color=INK, linewidth=2, label=same),
        ]
        kept = f"{SAME_MARK} the same within {100 * MARGIN:g} %, {AMBIGUOUS_MARK} ambiguous; {note}"
        sheet = _planes(data, colours, handles, title, kept)
        for (_, part), axes in zip(data.groupby("label", sort=False), sheet.panels, strict=True):
            axes.axline((0, 0), slope=1, color=INK, linewidth=1.3, linestyle=(0, (4, 3)), zorder=3)
            _contour(axes, part)
        return sheet.figure


def accuracy_planes(data: DataFrame, floor: float, *, title: str, note: str = "") -> Figure:
    """The T × d plane of each label, coloured by accuracy from `floor` to 1. data: points of accuracy."""
    data = data.assign(text=[f"{value:.2f}" for value in data["value"]])
    marks = {floor: f"{floor:.3g}"} | {at: f"{at:g}" for at in (0.25, 0.5, 0.75, 1.0) if at > floor + 0.05}
    colours = Colours(
        "GnBu", floor, 1.0, marks, f"accuracy, from {floor:.3g} (floor) to 1", bool((data["value"] < floor).any())
    )
    with styled():
        return _planes(data, colours, [], title, note).figure


class Sheet:
    """A figure of fixed width whose title, panels, legend and note each have room of their own, so none overlaps.

    panels: one per name, in rows. top: of the first panel; bottom: below the last row. All in inches from the top.
    room: left free below `bottom`, for whatever is placed there.
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
        right: float = RIGHT,
        gap: float = GAP,
        room: float = 0.0,
    ) -> None:
        n_columns = max(min(n_columns, 2 if len(names) == 4 else len(names)), 1)
        self.panel_width = (WIDTH - LEFT - right - gap * (n_columns - 1)) / n_columns
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
        lefts = [LEFT + column * (self.panel_width + gap) for column in range(n_columns)]
        places = [(left, top) for top in tops for left in lefts]
        self.panels = [self.place(*at, self.panel_width, height) for at, _ in zip(places, titles, strict=False)]
        for i, (axes, text) in enumerate(zip(self.panels, titles, strict=True)):
            axes.set_title(text, loc="left", y=1.0, color=INK)  # a given y spares a layout at each drawing
            axes.tick_params(labelleft=i % n_columns == 0, length=3)
            axes.set_ylabel("" if i % n_columns else y_label)
            axes.set_xlabel(x_label if i + n_columns >= len(names) else "")
        if handles:
            at = (LEFT / WIDTH, 1 - (self.bottom + room) / total)
            self.figure.legend(
                handles=list(handles), loc="upper left", bbox_to_anchor=at, ncols=n_legend_columns, borderaxespad=0
            )

    def place(self, left: float, top: float, width: float, height: float) -> Axes:
        """New axes, in inches from the left and the top of the figure."""
        total = float(self.figure.get_figheight())
        return self.figure.add_axes((left / WIDTH, 1 - (top + height) / total, width / WIDTH, height / total))


def _n_lines(text: str) -> int:
    return text.count("\n") + 1


def handle(label: str, look: Look, data: DataFrame) -> Line2D:
    """The entry of one series in a legend."""
    text = textwrap.fill(plain(label), 50) + ("" if data["value"].notna().any() else " (no data)")
    return Line2D(
        [], [], color=look.colour, marker=look.marker, linestyle=look.line, markeredgecolor="white", label=text
    )


def series(axes: Axes, line: DataFrame, look: Look, weight: float, *, joined: bool = True) -> None:
    """The measured points of one series, joined by a line or not, with their intervals as bars.

    weight: from 1 for the first series down; earlier ones are drawn stronger, so that one which lies under another
    still shows.
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
        markersize=5 + 2 * weight,
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


def _reference_handle(name: str) -> Line2D:
    return Line2D([], [], color=PALE, linewidth=1.2, linestyle=REFERENCES.get(name, DASHED), label=plain(name))


def _references(axes: Axes, data: DataFrame) -> None:
    """Lines of chance and floor: level where they do not depend on x."""
    for name, part in data.groupby("name", sort=False):
        look: dict[str, Any] = {"color": PALE, "linewidth": 1.2, "linestyle": REFERENCES.get(name, DASHED), "zorder": 2}
        if part["value"].nunique() == 1:
            axes.axhline(part["value"].iloc[0], **look)
        else:
            axes.plot(part.sort_values("x")["x"], part.sort_values("x")["value"], **look)


def x_scale(axes: Axes, marks: Mapping[float, str], width: float) -> None:
    """Base-2 logarithm over the sizes that were measured, labelled as far as labels fit into `width` inches."""
    sizes = list(marks)
    axes.set_xscale("log", base=2)
    axes.set_xlim(sizes[0] / 1.25, sizes[-1] * 1.25)
    _label(axes.xaxis, scales.fitting(marks, width, np.log2(1.25)))


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
    _label(axes.yaxis, {at: axis.text(at) for at in ticks if limits[0] <= at <= limits[1]})


def _label(axis: Any, marks: Mapping[float, str]) -> None:
    """These ticks and no others."""
    axis.set_major_locator(FixedLocator(list(marks)))
    axis.set_major_formatter(FixedFormatter([plain(text) for text in marks.values()]))
    axis.set_minor_locator(NullLocator())


def _planes(data: DataFrame, colours: Colours, handles: Sequence[Line2D], title: str, note: str) -> Sheet:
    """One T × d plane per label, sizes by their base-2 logarithm, and one colour bar."""
    T, d = np.unique(data["T"]), np.unique(data["d_model"])
    n_columns = 3 if len(T) <= 8 else 2 if len(T) <= 13 else 1
    names = list(dict.fromkeys(data["label"]))
    height = max(1.4, 0.44 * len(d))
    sheet = Sheet(names, title, note, handles, height=height, x_label="T", y_label="d", n_columns=n_columns, right=1.2)
    mappable = ScalarMappable(Normalize(colours.low, colours.high), colours.name)
    for (_, part), axes in zip(data.groupby("label", sort=False), sheet.panels, strict=True):
        _plane(axes, part, T, d, mappable, (sheet.panel_width, height))
        _label_log2(axes.xaxis, T, sheet.panel_width)
        _label_log2(axes.yaxis, d, height * 2)
    length = min(sheet.bottom - sheet.top - BELOW, 2.6)
    bar = sheet.place(WIDTH - 1.0, sheet.top, 0.14, length)
    drawn = sheet.figure.colorbar(mappable, cax=bar, extend="both" if colours.clipped else "neither")
    drawn.set_ticks(list(colours.ticks), labels=list(colours.ticks.values()))
    drawn.outline.set_visible(False)
    bar.set_ylabel(textwrap.fill(plain(colours.label), int(length / scales.CHARACTER)))
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
            write(axes, at, point.text, mappable.to_rgba(point.value))
        elif measured and getattr(point, "verdict_corrected", None) in MARKED:
            axes.plot(*at, ".", color=INK, markersize=2, zorder=5)
        elif roomy:
            write(axes, at, scales.shortened(point.status, int(widths[i] / 0.05)), PAPER, size=6.5)


def write(axes: Axes, at: tuple[float, float], text: str, colour: Any, size: float = 8) -> None:
    """Text on a patch of its cell's colour, so that lines pass behind it."""
    dark = np.dot(to_rgb(colour), (0.299, 0.587, 0.114)) < 0.55
    patch = {"facecolor": colour, "edgecolor": "none", "pad": 1.0}
    axes.text(*at, text, ha="center", va="center", fontsize=size, color="white" if dark else INK, zorder=5, bbox=patch)


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
    _label(axis, {float(np.log2(size)): text for size, text in marks.items()})


def plain(text: str) -> str:
    """Text as it is: no formulas, no control characters, a box for what the font lacks."""
    known = _characters()
    return "".join(char if ord(char) in known else "\u25a1" for char in " ".join(text.split())).replace("$", r"\$")


@cache
def _characters() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap())

"""Which pictures a report holds: one set for each group of cells that may share figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import tee
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame

from attnbench.analyse import learning
from attnbench.analyse.compare import verdicts
from attnbench.analyse.points import ACCURACY, MEMORY, POINT, STATE, TIME, Group, Measure, asked, groups, points
from attnbench.analyse.sample_efficiency import off_curves
from attnbench.analyse.slices import by_slice, slice_unit
from attnbench.protocol import LEARNED
from attnbench.report import (
    crossover_plot,
    curves,
    fit_plot,
    fits,
    notes,
    overview,
    panels,
    planes,
    plots,
    sample_efficiency,
    scales,
    shades,
    tables,
    words,
)
from attnbench.report.looks import Look, looks
from attnbench.report.roofline import roofline

APART = " Series stand a little to the left and right of their place, so that none hides another."
FAMILIES = " Each family has panels of its own; pale: all other variants. Legends list series as their lines end."
LEARNING = {  # what it is, what it is over, and what there is to see
    "curves": (
        "learning curves",
        "step",
        "Thick: mean over seeds; thin: each seed's chosen trial, which keeps its last accuracy where it ended early. "
        f"Learnt: from {LEARNED:g} on.",
    ),
    "best_of_n": (
        "best of n trials",
        "n",
        "What the best of n trials can be expected to reach, mean over seeds; bars: from the lowest to the highest."
        f"{APART} Learnt: from {LEARNED:g} on.",
    ),
}
AXES = {TIME: scales.TIME, MEMORY: scales.MEMORY, STATE: scales.STATE}


class Picture(NamedTuple):
    """A figure under its file name, and what there is to see in it."""

    name: str
    caption: str
    figure: plots.Picture


def pictures(frame: DataFrame, baseline: str) -> Iterator[Picture]:
    """All pictures of a run, one at a time, so that no two figures are held at once."""
    made, named = tee(_pictures(frame, baseline))
    names = words.distinct(picture.name for picture in named)
    return (picture._replace(name=name) for picture, name in zip(made, names, strict=True))


def _pictures(frame: DataFrame, baseline: str) -> Iterator[Picture]:
    """Time and memory of each group, then crossovers, rooflines, fits, accuracies and what learning took."""
    style = looks(zip(frame["label"], frame["variant"], strict=True))
    for measure in (TIME, MEMORY):
        for group in groups(asked(frame, measure)):
            yield from _overview(group, measure, baseline)
            yield _costs(group, measure, style, baseline)
            if measure is TIME and group.settings.get("phase") == "decode":
                yield _costs(group, STATE, style, baseline)
            yield from _ratios(group, measure, baseline)
    timed = groups(asked(frame, TIME))
    for group in timed:
        yield from _crossovers(crossover_plot.over_width(group, baseline), group, baseline, style)
    for parts in _by_batch(timed):
        yield from _crossovers(crossover_plot.over_batch(parts, baseline), parts[0], baseline, style, over="B")
    for group in timed:
        yield from _roofline(group, style, baseline)
    for one in fits.fitted(frame):
        yield _fitted(one, AXES[one.measure], style, baseline)
    for group in groups(asked(off_curves(frame), ACCURACY)):
        yield from _accuracies(group, style, baseline)
    for group in groups(asked(off_curves(frame), ACCURACY)):
        yield from _learning(group, style, baseline)
    yield from (Picture(*made) for made in sample_efficiency.pictures(frame, style, baseline))


def _costs(group: Group, measure: Measure, style: Mapping[str, Look], baseline: str) -> Picture:
    """One measure against T."""
    merged, axis = points(group.frame, measure), AXES[measure]
    if measure is TIME and group.settings.get("phase") == "decode":
        axis = replace(axis, label="time per token")
    title = words.title(measure.name, group.settings)
    note = _note(group, measure)
    figure = curves.curves(_over_T(merged), style, axis, x_label="T", title=title, note=note, baseline=baseline)
    interval = "bars: its interval; " if measure.low else ""
    caption = f"{title}: {axis.label} against T, one panel per d ({interval}both axes logarithmic).{_families(merged)}"
    return Picture(words.file_name(measure.name, group.settings, group.differs), caption, figure)


def _overview(group: Group, measure: Measure, baseline: str) -> Iterator[Picture]:
    """All ratios to the baseline in one picture, where variants are many."""
    plane = _compared(group, measure, baseline)
    if plane is None or plane["label"].nunique() <= panels.MOST:
        return
    title = f"{words.title(measure.name, group.settings)}, relative to {baseline}"
    figure = overview.ratio_rows(plane, measure.name, title=title, note=_note(group, measure))
    caption = f"{title}: a row per variant, a column per T. {_colours(measure, baseline)}"
    yield Picture(words.file_name(f"{measure.name}_overview", group.settings, group.differs), caption, figure)


def _ratios(group: Group, measure: Measure, baseline: str) -> Iterator[Picture]:
    """The T × d plane against the baseline, where there is another variant and more than one point."""
    plane, what = _compared(group, measure, baseline), measure.name
    if plane is None:
        return
    title = f"{words.title(what, group.settings)}, relative to {baseline}"
    figure = planes.ratio_planes(plane, baseline, what, title=title, note=_note(group, measure))
    caption = (
        f"{title}. Dashed: the line T = d. Solid: where both are equal, interpolated between measured cells. "
        f"{_colours(measure, baseline)}"
    )
    yield Picture(words.file_name(f"{what}_ratio", group.settings, group.differs), caption, figure)


def _compared(group: Group, measure: Measure, baseline: str) -> DataFrame | None:
    """The points beside those of the baseline; None where there is no other variant or no more than one point."""
    plane = verdicts(points(group.frame, measure), baseline, resolution=measure.resolution)
    too_few = plane["ratio"].isna().all() or len(plane[["d_model", "T"]].drop_duplicates()) < 2
    return None if too_few else plane


def _colours(measure: Measure, baseline: str) -> str:
    """What colours and marks of ratios say."""
    sides = tables.SIDES[measure.name]
    return (
        f"Blue: {sides['below']} than {baseline}, red: {sides['above']}. Hatched: no value. "
        f"{shades.SAME_MARK}: the same {tables.NEAR}; {shades.AMBIGUOUS_MARK}: ambiguous; "
        "a dot: one of these, where there is no room."
    )


def _crossovers(
    found: crossover_plot.Lines | None, group: Group, baseline: str, style: Mapping[str, Look], over: str = "d"
) -> Iterator[Picture]:
    """Where variants change places with the baseline, over the width or the batch, beside what operations say."""
    if found is None:
        return
    settings = {name: value for name, value in group.settings.items() if over == "d" or name != "B"}
    title = f"{words.title('time', settings)}: crossover with {baseline}"
    places = f"{len(found.points)} place{'' if len(found.points) == 1 else 's'}"
    note = f"{found.n_other} of {places} with no crossover, or with several, not shown" if found.n_other else ""
    axis = scales.CROSSOVER if over == "d" else scales.CROSSOVER_BY_WIDTH
    lines = found.references
    figure = curves.curves(found.points, style, axis, x_label=over, title=title, note=note, references=lines)
    counted = " Equal operations: where both execute as many, by formula." if len(set(lines["name"])) > 1 else ""
    caption = f"{title}: the T from which both change places, {axis.label} against {over}; bars: its interval.{counted}"
    differs = tuple(name for name in group.differs if over == "d" or name != "B")
    yield Picture(words.file_name(f"time_crossover_{over}", settings, differs), caption, figure)


def _by_batch(timed: Sequence[Group]) -> list[list[Group]]:
    """The groups that differ in B alone, together."""
    parts: dict[str, list[Group]] = {}
    for group in timed:
        if group.settings.get("B"):
            parts.setdefault(repr({**group.settings, "B": None}), []).append(group)
    return list(parts.values())


def _roofline(group: Group, style: Mapping[str, Look], baseline: str) -> Iterator[Picture]:
    """Operations per second against operations per byte, where both are known and the machine's peaks are."""
    found = roofline(group)
    if found is None:
        return
    title = f"{words.title('rate of operations', group.settings)}, under the roof of this machine"
    note = f"{len(found.points)} of {len(group.frame)} cells; bytes are the least that a call can move, by formula"
    if found.silent:
        note += f"; no formula of operations or bytes: {', '.join(found.silent)}"
    figure = curves.curves(
        found.points,
        style,
        scales.RATE,
        x_label="executed operations per byte moved",
        title=title,
        note=note,
        references=found.roof,
        marks=found.marks,
        baseline=baseline,
    )
    caption = (
        f"{title}: each line runs through the T of one variant. Under the flat part of the roof multiplying is the "
        f"limit, under its slope the memory; a point above the slope is served by a cache.{_families(found.points)}"
    )
    yield Picture(words.file_name("time_roofline", group.settings, group.differs), caption, figure)


def _fitted(one: fits.Fitted, axis: scales.Axis, style: Mapping[str, Look], baseline: str) -> Picture:
    """Fitted curves, and what each cost is made of at the largest sizes."""
    what = f"{one.measure.name} by term"
    title = words.title(what, one.group.settings)
    lines = fits.curves(one)
    figure = fit_plot.fitted_curves(
        _over_T(one.points),
        lines.assign(facet=[f"d = {d}" for d in lines["d_model"]]),
        fits.shares(one),
        style,
        axis,
        title=title,
        shares_title=one.shares_title,
        baseline=baseline,
        note=_note(one.group, one.measure),
    )
    caption = (
        f"{title}: points as measured, curves as fitted, one panel per d. Below: the share of each term of the fit at "
        "the largest T and d; blue grows like T, orange like T². Hatched: not resolvable at these sizes."
        f"{_families(one.points)}"
    )
    return Picture(words.file_name(f"fits_{one.measure.name}", one.group.settings, one.group.differs), caption, figure)


def _accuracies(group: Group, style: Mapping[str, Look], baseline: str) -> Iterator[Picture]:
    """Accuracy against T, over the T × d plane, and slice by slice."""
    merged, known = points(group.frame, ACCURACY), tables.references(group.frame)
    seeds = " Mean over seeds; bars: from the lowest seed to the highest." if merged["n_cells"].max() > 1 else ""
    behind = f"{_families(merged)}{APART}{seeds}"
    lines = known.assign(name=known["label"], facet=[f"d = {d}" for d in known["d_model"]], x=known["T"])
    title = words.title("accuracy", group.settings)
    figure = _scores(group, _over_T(merged), lines, style, x_label="T", title=title, baseline=baseline)
    name = words.file_name("accuracy", group.settings, group.differs)
    yield Picture(name, f"{title}, against T, one panel per d.{behind}", figure)
    if len(merged[["d_model", "T"]].drop_duplicates()) > 1:
        yield _accuracy_plane(group, merged, known)
    slices = _over_slices(group.frame)
    if slices["value"].notna().any():
        unit, lines = slice_unit(group.frame), known.assign(name=known["label"], facet=_facets(known), x=1.0)
        title = f"{title}, by {unit}"
        figure = _scores(group, slices, lines, style, x_label=unit, title=title, baseline=baseline)
        name = words.file_name(f"accuracy_{unit}", group.settings, group.differs)
        yield Picture(name, f"{title}.{behind}", figure)


def _learning(group: Group, style: Mapping[str, Look], baseline: str) -> Iterator[Picture]:
    """Validation accuracy against steps, and of the best of n trials against n."""
    single, best = learning.curves(group.frame), learning.best_by_n(group.frame)
    if len(single):
        single = single.assign(facet=_facets(single), x_text=single["x"].astype(str))
        data = single.groupby([*POINT, "facet", "x", "x_text"], sort=False)["value"].mean().reset_index()
        data = data.assign(low=np.nan, high=np.nan)
        yield _learnt(group, data, style, baseline, "curves", thin=single)
    if len(best):
        best = best.assign(facet=_facets(best), x=best["n"], x_text=best["n"].astype(str))
        best = best.rename(columns={"accuracy": "value", "accuracy_low": "low", "accuracy_high": "high"})
        yield _learnt(group, best, style, baseline, "best_of_n", apart=True)


def _learnt(group: Group, data: DataFrame, style: Mapping[str, Look], baseline: str, kind: str, **more: Any) -> Picture:
    """Accuracy on validation data over x, with chance, floor and what counts as learnt. kind: of LEARNING."""
    what, x_label, told = LEARNING[kind]
    data = data.sort_values(["d_model", "T", "label"], key=lambda part: _control_first(part, baseline), kind="stable")
    known = tables.references(group.frame)
    known = known.assign(name=known["label"], facet=_facets(known))
    learnt = known.drop_duplicates("facet").assign(name="90 %", value=LEARNED)
    lines = pd.concat([known, learnt], ignore_index=True).assign(x=data["x"].min())
    title = words.title(what, group.settings)
    texts: dict[str, Any] = {"x_label": x_label, "title": title, "note": _note(group, ACCURACY), "baseline": baseline}
    figure = curves.curves(data, style, scales.VALIDATION, references=lines, **texts, **more)
    caption = f"{title}. {told}{_families(data)}"
    return Picture(words.file_name(f"learning_{kind}", group.settings, group.differs), caption, figure)


def _control_first(part: pd.Series, control: str) -> pd.Series:
    """A column as it is, or labels by whether they are another than the control."""
    return part != control if part.name == "label" else part


def _scores(group: Group, data: DataFrame, lines: DataFrame, style: Mapping[str, Look], **texts: Any) -> plots.Picture:
    """Curves of accuracy with chance and floor, `lines`, behind them. texts: of `curves.curves`."""
    texts["note"] = _note(group, ACCURACY)
    return curves.curves(data, style, scales.ACCURACY, references=lines, apart=True, **texts)


def _accuracy_plane(group: Group, merged: DataFrame, known: DataFrame) -> Picture:
    """The plane of each variant or, of many, a row. known: chance and floor."""
    title = f"{words.title('accuracy', group.settings)}, over T and d"
    floor = float(known.loc[known["label"] == "floor", "value"].min()) if "floor" in set(known["label"]) else 0.0
    draw = overview.accuracy_rows if merged["label"].nunique() > panels.MOST else planes.accuracy_planes
    figure = draw(merged, floor, title=title, note=_note(group, ACCURACY))
    name = words.file_name("accuracy_plane", group.settings, group.differs)
    return Picture(name, f"{title}; the darker, the better.", figure)


def _families(data: DataFrame) -> str:
    return FAMILIES if data["label"].nunique() > panels.MOST else ""


def _note(group: Group, measure: Measure) -> str:
    return notes.measured(group.frame, measure)


def _over_T(merged: DataFrame) -> DataFrame:
    """Points as data of `curves.curves`: one facet per d_model, ascending."""
    data = merged.assign(x=merged["T"], x_text=merged["T"].astype(str), facet=[f"d = {d}" for d in merged["d_model"]])
    return data.sort_values("d_model", kind="stable")


def _over_slices(frame: DataFrame) -> DataFrame:
    """Accuracy slice by slice as data of `curves.curves`: one facet per T and d_model; names that are no number stand
    in the task's order. A point without slices is a row without a value."""
    slices = by_slice(frame).rename(columns={"accuracy": "value"})
    numbers = pd.to_numeric(slices["slice"], errors="coerce")
    slices["x"] = numbers if (numbers > 0).all() else 2.0 ** slices["place"]
    slices["x_text"] = slices["slice"]
    first = slices.sort_values("x").head(1)
    empty = points(frame, ACCURACY).query("n_good == 0").assign(value=np.nan, low=np.nan, high=np.nan)
    empty = empty.assign(x=first["x"].max(), x_text=first["x_text"].max())
    data = pd.concat([slices, empty], ignore_index=True) if len(empty) else slices
    rank = {label: i for i, label in enumerate(dict.fromkeys(frame["label"]))}
    data = data.assign(facet=_facets(data), order=data["label"].map(rank))
    return data.sort_values(["d_model", "T", "order"], kind="stable")


def _facets(data: DataFrame) -> list[str]:
    return [f"T = {T}, d = {d}" for T, d in zip(data["T"], data["d_model"], strict=True)]

"""The tables of a report, made from the frame of a run.

Every requested cell is in a table with its value or, in its place, its status; a blank never stands for either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from pandas import DataFrame

from attnbench.analyse.chance import LEVEL, at_chance
from attnbench.analyse.compare import AMBIGUOUS, FASTER, MARGIN, SAME, SLOWER, verdicts
from attnbench.analyse.crossover import Crossing, Crossover, crossovers
from attnbench.analyse.parameters import grows, spreads
from attnbench.analyse.points import (
    ACCURACY,
    APART,
    MEMORY,
    POINT,
    TIME,
    Group,
    Measure,
    asked,
    groups,
    points,
)
from attnbench.analyse.sample_efficiency import off_curves
from attnbench.analyse.scaling import OTHER, Axis, scalings
from attnbench.analyse.slices import FEW, REACH, by_slice, few, reaches, slice_unit
from attnbench.records import STATUSES
from attnbench.report import notes, words
from attnbench.report.writers import Table

NOT_ASKED = "–"
NOT_AVAILABLE = "not available"
NEAR = f"within {100 * MARGIN:g} %"
RULE = f"different: off 1 by more than {100 * MARGIN:g} %, after Holm's correction; same: surely {NEAR}; else ambiguous"
NO_CROSSOVER = "no crossover in the measured range"
COUNTS = ("n_params", "n_params_body")
SIZES = ("param_bytes", "optimizer_bytes", "saved_bytes", "state_bytes")
MATCHING = ("matched", "match_error")  # told where variants are matched: what that changed, how far off they still are
COSTS = ("flops", "flops_executed", "roof_share", "bytes_moved", *COUNTS, *SIZES, "compile_s")
ALWAYS = ("flops", "flops_executed", *COUNTS, "param_bytes")  # of COSTS; some phases or runs have none of the others
ROOF = (
    "roof_share: executed operations per second, of what a product of large matrices reached on this machine; above "
    "100 %, the machine was busier then"
)
COMPILING = "compile_s: what compiling, and the first call, took"
AT_CHANCE = "not above chance"
# What a ratio to the baseline below and above 1 is called.
SIDES: Mapping[str, Mapping[str, str]] = {
    "time": {"below": "faster", "above": "slower"},
    "memory": {"below": "leaner", "above": "heavier"},
}
# Columns behind the local slopes, which are keyed by the two T that each lies between.
OVERALL, R2, NOTE = (np.inf, 0.0), (np.inf, 1.0), (np.inf, 2.0)
SLOPES: Mapping[Axis, tuple[str, str]] = {"T": ("slopes", "T"), "d_model": ("slopes_d", "d")}  # file name, letter
UNITS = {"time": words.TIME_UNITS, "memory": words.BYTE_UNITS}


def summary(frame: DataFrame) -> DataFrame:
    """Columns status and cells, the best status first; cells add up to the number of requested cells."""
    counts = frame["status"].astype("object").fillna("pending").value_counts()
    order = [status for status in STATUSES if status in counts]
    order += sorted(set(counts.index) - set(order))
    return DataFrame({"status": order, "cells": [int(counts[status]) for status in order]})


def by_variant(frame: DataFrame) -> DataFrame:
    """Columns variant, cells and every status there is, best first: one row per variant, and one of all together."""
    statuses = summary(frame)["status"]
    status = frame["status"].astype("object").fillna("pending")
    parts = [*((label, status[frame["label"] == label]) for label in frame["label"].drop_duplicates()), ("all", status)]
    rows = [[label, len(part), *(int((part == name).sum()) for name in statuses)] for label, part in parts]
    return DataFrame(rows, columns=["variant", "cells", *statuses])


def denominator(frame: DataFrame) -> str:
    """How many of the requested cells are ok: "37 of 48 cells"."""
    return f"{int((frame['status'] == 'ok').sum())} of {len(frame)} cells"


def problems(frame: DataFrame) -> DataFrame:
    """Every cell that is not ok: variant, d_model, T, the settings that differ in this frame, status and reason."""
    differing = [name for name in (*APART, "seed") if frame[name].nunique(dropna=False) > 1]
    bad = frame.loc[frame["status"] != "ok", [*POINT, *differing, "status", "reason"]].astype("object")
    bad["status"] = bad["status"].fillna("pending")
    return bad.where(bad.notna(), NOT_ASKED).rename(columns={"label": "variant"}).reset_index(drop=True)


def values(merged: DataFrame, text: Callable[[Any], str]) -> DataFrame:
    """Points as d_model and variant × T; `text` says a point, and one without a value shows its status."""
    texts = [text(point) if point.n_good else point.status for point in merged.itertuples()]
    return spread(merged.assign(text=texts), ["d_model", "label"], "T")


def references(frame: DataFrame) -> DataFrame:
    """Chance and floor as points: label ("chance" or "floor"), d_model, T, value, in accuracy from 0 to 1."""
    known = [
        frame.groupby(["d_model", "T"], sort=False)[name]
        .first()
        .dropna()
        .rename("value")
        .reset_index()
        .assign(label=name)
        for name in ("chance", "floor")
    ]
    return pd.concat(known, ignore_index=True).astype({"value": float})


def accuracy_by_slice(frame: DataFrame) -> DataFrame:
    """One group as d_model, T and variant × slice, with the reach behind; a cell without slices shows its status."""
    slices = by_slice(frame).sort_values("place", kind="stable")
    heads = list(dict.fromkeys(slices["slice"]))
    shares = [words.share(value) for value in slices["accuracy"]]
    texts = [f"({share})" if of_few else share for share, of_few in zip(shares, few(slices), strict=True)]
    shown = slices[[*POINT, "slice"]].assign(text=texts)
    found = reaches(slices)
    cells = points(frame, ACCURACY)[[*POINT, "status"]]
    reach = [
        found.get((label, d, T), NOT_ASKED if why == "ok" else why)
        for label, d, T, why in cells.itertuples(index=False)
    ]
    ends = cells[POINT].assign(slice="reach", text=reach)
    return spread(pd.concat([shown, ends], ignore_index=True), ["d_model", "T", "label"], "slice", [*heads, "reach"])


def crossover_text(crossover: Crossover, sides: Mapping[str, str]) -> str:
    """Where a variant and the baseline change places; only what lies inside the measured range is said."""
    if crossover.crossings:
        return ", ".join(f"{sides[at.to]} from {crossing_text(at)}" for at in crossover.crossings)
    if crossover.n_sizes < 2:
        return "not enough sizes"
    span = f"T = {words.whole(crossover.T_min)} to {words.whole(crossover.T_max)}"
    if crossover.side is None:
        return f"{undecided(crossover)} ({span})"
    where = " where they differ" if crossover.n_same + crossover.n_ambiguous else ""
    return f"{NO_CROSSOVER} ({sides[crossover.side]}{where}, {span})"


def undecided(crossover: Crossover) -> str:
    """What is known of a variant that is nowhere called different: all the same, or not told apart."""
    if crossover.n_ambiguous == 0:
        return f"the same {NEAR}"
    return "ambiguous" if crossover.n_same == 0 else f"the same {NEAR}, or ambiguous"


def ratio_table(compared: DataFrame, sides: Mapping[str, str]) -> DataFrame:
    """d_model and variant × T: the ratio to the baseline and its verdict, "0.82 faster"; else the status."""
    called = {FASTER: sides["below"], SLOWER: sides["above"], SAME: SAME, AMBIGUOUS: AMBIGUOUS}
    found = zip(compared["ratio"], compared["verdict_corrected"], compared["status"], strict=True)
    texts = [f"{words.ratio(r)} {called[v]}" if v in called else status for r, v, status in found]
    return spread(compared.assign(text=texts), ["d_model", "label"], "T")


def ratio_data(compared: DataFrame) -> DataFrame:
    """The ratios with intervals, p and verdicts, alone and within their family."""
    columns = ["ratio", "ratio_low", "ratio_high", "p", "p_holm", "verdict", "verdict_corrected", "status"]
    return compared[[*POINT, *columns]].sort_values(["d_model", "T"], kind="stable")


def crossing_text(at: Crossing) -> str:
    """A crossing with its interval: "T ≈ 310 [290, 330]"."""
    text = f"T ≈ {words.whole(at.T)}"
    return text if np.isnan(at.low) else f"{text} [{words.whole(at.low)}, {words.whole(at.high)}]"


def crossover_table(found: Iterable[Crossover], sides: Mapping[str, str]) -> DataFrame:
    """Variant × d_model, each entry a sentence: "faster from T ≈ 310 [290, 330]"."""
    rows = [(c.label, c.d_model, crossover_text(c, sides)) for c in found]
    wide = spread(DataFrame(rows, columns=["label", "d_model", "text"]), ["label"], "d_model")
    return wide.rename(columns={d: f"d = {d}" for d in wide.columns if d != "variant"})


def crossover_data(found: Iterable[Crossover]) -> DataFrame:
    """One row per crossing, and one without T for each variant and d_model that has none."""
    rows: list[tuple[Any, ...]] = []
    for c in found:
        ends: list[tuple[Any, ...]] = [(at.T, at.low, at.high, at.to) for at in c.crossings] or [
            (np.nan, np.nan, np.nan, c.side)
        ]
        rows += [(c.label, c.d_model, *end, c.T_min, c.T_max, c.n_sizes, c.n_same, c.n_ambiguous) for end in ends]
    columns = ["variant", "d_model", "T", "T_low", "T_high", "ratio_then", "T_min", "T_max"]
    return DataFrame(rows, columns=[*columns, "n_sizes", "n_same", "n_ambiguous"])


def slopes(merged: DataFrame, over: Axis = "T") -> DataFrame:
    """d_model and variant × neighbouring T: local slopes, then the overall exponent, its R², and what to know.

    over: with d_model, T and variant × neighbouring d_model.
    """
    rows: list[tuple[Any, ...]] = []
    for (label, at), found in scalings(merged, over).items():
        dropped = f"{found.n_dropped} without value" if found.n_dropped else ""
        said = {NOTE: "; ".join(filter(None, (found.note, dropped))) or NOT_ASKED}
        if found.slopes:
            spans = pairwise(found.sizes)
            said |= {span: f"{slope:.2f}" for span, slope in zip(spans, found.slopes, strict=True)}
            said |= {OVERALL: f"{found.exponent:.2f}", R2: f"{found.r2:.3f}"}
        rows += [(label, at, span, text) for span, text in said.items()]
    long = DataFrame(rows, columns=["label", OTHER[over], "span", "text"])
    wide = spread(long, [OTHER[over], "label"], "span", sorted({*long["span"], OVERALL, R2, NOTE}))
    heads = {span: f"{words.whole(span[0])}–{words.whole(span[1])}" for span in long["span"] if np.isfinite(span[0])}
    wide.columns = [(heads | {OVERALL: "overall", R2: "R²", NOTE: "note"}).get(head, head) for head in wide.columns]
    return wide


def costs(frame: DataFrame) -> DataFrame:
    """What a cell costs by formula and by size: label, d_model, T, the settings that differ, MATCHING, and COSTS.

    Those that are not of ALWAYS are left out where no cell has them.
    """
    parts = []
    known = [*(MATCHING if frame["matched"].notna().any() else []), *COSTS]
    for group in groups(frame):
        part = group.frame.groupby(POINT, sort=False)[known].first().reset_index().astype("object")
        parts.append(part.assign(**{name: group.settings.get(name) for name in group.differs}))
    together = pd.concat(parts, ignore_index=True) if parts else DataFrame(columns=[*POINT, *known])
    told = [name for name in known if name in ALWAYS or together[name].notna().any()]
    return together[[*(name for name in together.columns if name not in known), *told]].rename(
        columns={"label": "variant"}
    )


def tables(frame: DataFrame, baseline: str) -> list[Table]:
    """All tables of a report but those of `between`, `fits` and `sample_efficiency`; none without a cell."""
    counts = by_variant(frame)
    made = [Table("status", "Cells by variant and status", counts, counts, f"{denominator(frame)} ok")]
    if len(bad := problems(frame)):
        made.append(Table("problems", "Cells that are not ok", bad, bad))
    for measure in (TIME, MEMORY):
        for group in groups(asked(frame, measure)):
            made += _measured(group, measure, baseline)
    for group in groups(asked(off_curves(frame), ACCURACY)):
        made += _accuracies(group)
    if len(data := costs(frame)):
        note = f"{ROOF}; {COMPILING}" if "compile_s" in data.columns else ROOF
        made.append(Table("cost", "Cost of a cell by formula, and its sizes", _cost_text(data), data, note))
    names = words.distinct(table.name for table in made)
    return [replace(table, name=name) for table, name in zip(made, names, strict=True)]


def _measured(group: Group, measure: Measure, baseline: str) -> list[Table]:
    """Values, local slopes, ratios and crossovers of one measure of one group."""
    merged = points(group.frame, measure)
    note = notes.measured(group.frame, measure)
    compared, sides = verdicts(merged, baseline, resolution=measure.resolution), SIDES[measure.name]
    found = crossovers(compared) if baseline in set(merged["label"]) else []
    title = words.title(measure.name, group.settings)
    name = words.file_name(measure.name, group.settings, group.differs)
    shown = values(merged, lambda point: words.scaled(point.value, UNITS[measure.name], point.low, point.high))
    made = [Table(name, title, shown, for_csv(merged, group, measure), note)]
    for over, (prefix, letter) in SLOPES.items():
        grown = slopes(merged, over)
        if over == "T" or (grown["overall"] != NOT_ASKED).any():
            told = f"Local slopes in {letter}: {title}"
            made.append(Table(f"{prefix}_{name}", told, grown, for_csv(grown, group, measure), note))
    if found:
        note = f"{note}; {RULE}"
        shown, data = ratio_table(compared, sides), for_csv(ratio_data(compared), group, measure)
        made.append(Table(f"ratios_{name}", f"Ratio to {baseline}: {title}", shown, data, note))
        shown, data = crossover_table(found, sides), for_csv(crossover_data(found), group, measure)
        made.append(Table(f"crossovers_{name}", f"Crossovers with {baseline}: {title}", shown, data, note))
    return made


def _accuracies(group: Group) -> list[Table]:
    """Accuracy by T, and by slice where the task has slices."""
    merged, known = points(group.frame, ACCURACY), references(group.frame)
    title = words.title("accuracy", group.settings)
    name = words.file_name("accuracy", group.settings, group.differs)
    note = notes.measured(group.frame, ACCURACY)
    guessing = at_chance(group.frame)
    merged["at_chance"] = [key in guessing for key in merged[POINT].itertuples(index=False, name=None)]
    together = pd.concat([merged, known.assign(n_good=1, n_cells=1, at_chance=False)], ignore_index=True)
    told = f"{note}; {AT_CHANCE}: guessing at chance or floor does as well, by a binomial test at {LEVEL:g}"
    said = told if guessing else note
    made = [Table(name, title, values(together, accuracy_text), for_csv(together, group, ACCURACY), said)]
    slices = by_slice(group.frame)
    if len(slices):
        unit = slice_unit(group.frame)
        rare = f"; (in brackets): fewer than {FEW} answers, which decide no reach" if few(slices).any() else ""
        reach = f"reach: the {unit} up to which accuracy stays above {REACH:g}{rare}; {note}"
        data = for_csv(slices.drop(columns="place"), group, ACCURACY)
        name = words.file_name(f"accuracy_{unit}", group.settings, group.differs)
        made.append(Table(name, f"By {unit}: {title}", accuracy_by_slice(group.frame), data, reach))
    return made


def accuracy_text(point: Any) -> str:
    """The mean over seeds with their range, how many there are when some are missing, and whether it is a result."""
    text = words.share(point.value, point.low, point.high)
    if point.n_good < point.n_cells:
        text += f" ({point.n_good:.0f} of {point.n_cells:.0f} seeds)"
    return f"{text}, {AT_CHANCE}" if point.at_chance else text


def _cost_text(data: DataFrame) -> DataFrame:
    """Figures in their units; one that is missing is not available, or, of what was not compiled, was not asked for."""
    shown = data.astype("object")
    for name in (name for name in COSTS if name in data.columns):
        missing = NOT_ASKED if name == "compile_s" else NOT_AVAILABLE
        shown[name] = [missing if pd.isna(value) else _said(name, float(value)) for value in data[name]]
    same = [name for name in data.columns if name not in ("T", *COSTS)]
    for name in COUNTS:
        shown[name] += np.where(grows(data, name, same), ", grows with T", "")
    if "matched" in data.columns:
        shown["matched"] = [_changes(text) for text in data["matched"]]
        shown["match_error"] = [NOT_ASKED if pd.isna(off) else words.percent(off) for off in data["match_error"]]
    return shown.where(shown.notna(), NOT_ASKED)


def _changes(text: Any) -> str:
    """What matching changed: "d_model = 48, d_ff = 200"."""
    changes = json.loads(text) if isinstance(text, str) else None
    return (
        NOT_ASKED if changes is None else ", ".join(f"{name} = {value}" for name, value in changes.items()) or "nothing"
    )


def _said(name: str, value: float) -> str:
    """A figure of the column in its unit."""
    if name == "roof_share":
        return words.percent(value)
    units = words.TIME_UNITS if name == "compile_s" else words.BYTE_UNITS if "bytes" in name else words.COUNT_UNITS
    return words.scaled(value, units)


def unmatched(frame: DataFrame) -> str:
    """Where variants of one group differ in parameters by more than a tenth: "d = 64: 16.4 k (fused) to …"; or ""."""
    told = []
    for spread in spreads(frame):
        (least, n_least), (most, n_most) = spread.least, spread.most
        ends = (words.scaled(n, words.COUNT_UNITS) for n in (n_least, n_most))
        told.append(f"d = {spread.d_model}: {f' ({least}) to '.join(ends)} ({most})")
    return "; ".join(told)


def for_csv(data: DataFrame, group: Group, measure: Measure) -> DataFrame:
    """The settings of the group in front of its numbers, which bear the names of their columns in the frame."""
    known = {name: value for name, value in group.settings.items() if value is not None}
    names = {"label": "variant", "value": measure.column}
    names |= {"low": measure.low or f"{measure.column}_low", "high": measure.high or f"{measure.column}_high"}
    together = data.assign(**known).rename(columns=names)
    return together[[*known, *(name for name in together.columns if name not in known)]]


def spread(long: DataFrame, rows: list[str], head: str, heads: Sequence[Any] | None = None) -> DataFrame:
    """Turn the column `text` into one column per value of `head`; sizes ascend, labels keep their order.

    Unlike a pivot it keeps every row, also one without any text; a hole is a cell that nobody asked for.
    """
    heads = sorted(set(long[head])) if heads is None else heads
    rank = {label: i for i, label in enumerate(dict.fromkeys(long["label"]))}
    texts: dict[tuple[Any, ...], dict[Any, str]] = {}
    for *key, at, text in long[[*rows, head, "text"]].itertuples(index=False):
        texts.setdefault(tuple(key), {})[at] = text
    order = sorted(texts, key=lambda key: [rank.get(part, part) for part in key])
    filled = [[*key, *(texts[key].get(at, NOT_ASKED) for at in heads)] for key in order]
    return DataFrame(filled, columns=[*rows, *heads], dtype="object").rename(columns={"label": "variant"})

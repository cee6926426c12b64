"""What accuracy against the number of training sequences says: one table and one picture per group of cells."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from pandas import DataFrame

from attnbench.analyse.chance import at_chance
from attnbench.analyse.points import ACCURACY, POINT, Group, points
from attnbench.analyse.sample_efficiency import CURVE, SCRATCH, needed, over_n
from attnbench.protocol import LEARNED
from attnbench.report import curves, notes, plots, scales, tables, words
from attnbench.report.looks import Look
from attnbench.report.writers import Table

WHAT = "accuracy against the number N of training sequences"
LINE = f"{100 * LEARNED:g} %"
NEEDED = f"N for {LINE}"
FILE = "accuracy_sample_efficiency"
EXPLAINED = f"{NEEDED}: the smallest N that gets there, median over seeds, and its range"


def made(frame: DataFrame) -> list[Table]:
    """A table of each group whose cells have several N."""
    return [_table(group) for group in over_n(frame)]


def pictures(frame: DataFrame, style: Mapping[str, Look], baseline: str) -> Iterator[tuple[str, str, plots.Picture]]:
    """Name, caption and figure of each such group: a line per variant, a panel per pretraining, T and d."""
    for group in over_n(frame):
        data = _curves(group.frame).sort_values(["d_model", "T"], kind="stable")
        data = data.assign(x=data["n_training"], x_text=[words.whole(n) for n in data["n_training"]])
        data = data.assign(facet=_facets(data))
        figure = curves.curves(
            data,
            style,
            scales.ACCURACY,
            x_label="N, sequences that training repeats",
            title=words.title(WHAT, group.settings),
            note=notes.measured(group.frame, ACCURACY),
            references=_references(group.frame, data),
            apart=True,
            baseline=baseline,
        )
        caption = f"{words.title(WHAT, group.settings)}; mean over seeds, bars from the lowest seed to the highest."
        yield words.file_name(FILE, group.settings, group.differs), caption, figure


def sentence(group: Group) -> str:
    """N for 90 % of each variant, by pretraining where there is any: "d = 64, T = 64: fused 1024, lstm > 4096"."""
    found = needed(group.frame)
    parts = []
    for (pretrain, d, T), part in found.groupby(["pretrain", "d_model", "T"], sort=False):
        told = ", ".join(f"{row.label} {needed_text(row, ranges=False)}" for row in part.itertuples())
        parts.append(f"{_start(str(pretrain), found)}T = {T}, d = {d}: {told}")
    return f"Sequences needed for {LINE}: {'; '.join(parts)}."


def needed_text(row: Any, *, ranges: bool = True) -> str:
    """The N of a row of `needed`, with its range over seeds: "1024 [256, > 4096]"."""
    n, low, high = (
        words.whole(n) if math.isfinite(n) else f"> {words.whole(row.largest)}" for n in (row.n, row.low, row.high)
    )
    return n if low == high or not ranges else f"{n} [{low}, {high}]"


def _table(group: Group) -> Table:
    data, found = _curves(group.frame), needed(group.frame)
    cells = data.assign(head=data["n_training"], text=[tables.accuracy_text(point) for point in data.itertuples()])
    ends = found.assign(head=math.inf, text=[needed_text(row) for row in found.itertuples()])
    together = pd.concat([cells, ends])[[*CURVE, "head", "text"]].replace({"pretrain": {SCRATCH: ""}})  # to be first
    shown = tables.spread(together, ["d_model", "T", "label", "pretrain"], "head").replace({"pretrain": {"": SCRATCH}})
    shown = shown.drop(columns=[] if (shown["pretrain"] != SCRATCH).any() else "pretrain")
    heads = {n: f"N = {words.whole(n)}" for n in set(data["n_training"])} | {math.inf: NEEDED}
    note = f"{EXPLAINED}; {notes.measured(group.frame, ACCURACY)}"
    title, name = words.title(WHAT, group.settings), words.file_name(FILE, group.settings, group.differs)
    numbers = data.merge(found.rename(columns={"low": "n_low", "high": "n_high"}), on=CURVE, how="left")
    return Table(name, title, shown.rename(columns=heads), tables.for_csv(numbers, group, ACCURACY), note)


def _curves(frame: DataFrame) -> DataFrame:
    """Points of accuracy by CURVE and n_training, ascending, with at_chance: whether guessing does as well."""
    merged = points(frame, ACCURACY, by=[*CURVE, "n_training"]).sort_values("n_training", kind="stable")
    places = {at: at_chance(part) for at, part in frame.groupby(["pretrain", "n_training"])}
    keys = merged[["pretrain", "n_training", *POINT]].itertuples(index=False, name=None)
    return merged.assign(at_chance=[tuple(key) in places[pretrain, n] for pretrain, n, *key in keys])


def _facets(data: DataFrame) -> list[str]:
    several = len(data[["T", "d_model"]].drop_duplicates()) > 1
    pairs = zip(data["pretrain"], data["T"], data["d_model"], strict=True)
    told = [(_start(pretrain, data), f"T = {T}, d = {d}") for pretrain, T, d in pairs]
    return [f"{start}{place}" if several or not start else start.rstrip(": ") for start, place in told]


def _start(pretrain: str, data: DataFrame) -> str:
    """What training starts from, where that differs: "from scratch: ", "after induction: "."""
    if data["pretrain"].nunique() < 2 and pretrain == SCRATCH:
        return ""
    return "from scratch: " if pretrain == SCRATCH else f"after {pretrain}: "


def _references(frame: DataFrame, data: DataFrame) -> DataFrame:
    """The floor and the line at which a task counts as learnt, for every panel."""
    floor = float(frame["floor"].astype(float).max())
    lines = [("floor", floor), (LINE, LEARNED)]
    rows = [(name, facet, 1.0, value) for facet in dict.fromkeys(data["facet"]) for name, value in lines]
    return DataFrame(rows, columns=["name", "facet", "x", "value"]).dropna()

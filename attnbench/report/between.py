"""Ratios between runs: what another run measured, beside the same in the first."""

from __future__ import annotations

from dataclasses import replace

from pandas import DataFrame

from attnbench.analyse.compare import verdicts
from attnbench.analyse.points import MEMORY, TIME, Group, Measure, asked, groups, points
from attnbench.report import tables, words
from attnbench.report.writers import Table

MACHINE = ("device", "device_name", "threads")  # what runs may differ in and still be compared
SAME = ("variant", "options", "d_model", "T")  # what a point shares with that of the first run, besides its group


def ratios(frame: DataFrame) -> list[Table]:
    """A table per measure, further run and group of cells that it shares with the first; none for one run alone.

    frame: of several runs, see `attnbench.read`.
    """
    first, *others = [*frame["run"].dropna().unique()] or [""]
    apart, made = frame.assign(**dict.fromkeys(("run", *_of_machines(frame)))), []
    for measure in (TIME, MEMORY):
        for run in others:
            for group in groups(asked(apart[frame["run"].isin((first, run))], measure)):
                compared = _compared(frame.loc[group.frame.index], measure, first)
                if compared["ratio"].notna().any():
                    made.append(_table(group, compared, measure, f"{run} relative to {first}"))
    names = words.distinct(table.name for table in made)
    return [replace(table, name=name) for table, name in zip(made, names, strict=True)]


def _of_machines(frame: DataFrame) -> list[str]:
    """Those of MACHINE in which runs differ and the cells of no run do: the others set cells apart as ever."""
    runs = frame.groupby("run")
    return [name for name in MACHINE if frame[name].nunique() > 1 and (runs[name].nunique() <= 1).all()]


def _compared(frame: DataFrame, measure: Measure, first: str) -> DataFrame:
    """The points of the other run, each with the verdict on it beside that of the first."""
    named = frame.rename(columns={"variant": "family", "label": "variant", "run": "label"})
    compared = verdicts(points(named, measure, ("label", *SAME)), first, SAME, resolution=measure.resolution)
    return compared.drop(columns="label").rename(columns={"variant": "label"})


def _table(group: Group, compared: DataFrame, measure: Measure, runs: str) -> Table:
    """d_model and variant × T: ratio and verdict."""
    shown = tables.ratio_table(compared, tables.SIDES[measure.name])
    data = tables.for_csv(tables.ratio_data(compared), group, measure)
    title = f"{runs}: {words.title(measure.name, group.settings)}"
    return Table(
        words.file_name(f"runs_{measure.name}", group.settings, group.differs), title, shown, data, tables.RULE
    )

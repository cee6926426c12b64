"""What a trial of one variant found, for people: tables of costs, crossovers and scores, and what to run next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pandas import DataFrame

from attnbench.analyse.chance import LEVEL, at_chance
from attnbench.analyse.compare import AMBIGUOUS, FASTER, SAME, SLOWER
from attnbench.analyse.points import ACCURACY, FLOPS, MEMORY, TIME, Measure, disturbed, points
from attnbench.analyse.slices import REACH, by_slice, reaches, slice_unit
from attnbench.analyse.tried import BASELINE, B, Tried
from attnbench.report import complexity, crossing, tables, words
from attnbench.report.writers import Table

UNITS: Mapping[Measure, words.Units] = {TIME: words.TIME_UNITS, MEMORY: words.BYTE_UNITS, FLOPS: words.COUNT_UNITS}
TITLES = {TIME: "Time of a layer", MEMORY: "Memory of a layer", FLOPS: "Operations of a layer, by formula"}
SIDES = {**tables.SIDES, FLOPS.name: {"below": "fewer", "above": "more"}}


class Command(NamedTuple):
    """A command to run next, and what it would tell."""

    text: str
    why: str


def costs(tried: Tried) -> list[Table]:
    """Time, memory and operations: d_model and variant × T, each value with its ratio to the baseline."""
    return [_cost(tried, measure) for measure in (TIME, MEMORY, FLOPS)]


def crossovers(tried: Tried) -> Table | None:
    """Where the variant and the baseline change places; None for the baseline itself."""
    if tried.name == BASELINE:
        return None
    why = {place: _first_trouble(tried, place[1]) for place in tried.crossovers}
    made = crossing.table(tried.crossovers, BASELINE, tried.name, reasons=why)
    return Table(made.name, f"Crossovers: {made.title}", made.shown, made.data, made.note)


def scores(tried: Tried) -> Table:
    """The variant, the control and the floor × accuracy and reach on each task."""
    labels = list(dict.fromkeys((tried.name, BASELINE)))
    rows: dict[str, list[str]] = {label: [label] for label in [*labels, "floor"]}
    heads, notes = ["variant"], [f"{BASELINE}: the control, trained alike; one seed, so a first look and no ranking"]
    for task, part in tried.scores.groupby("task", sort=False):
        heads += [f"{task}, T = {part['T'].iloc[0]}", f"{slice_unit(part)} up to which {task} stays above {REACH:g}"]
        told = _scores(part)
        for label in labels:
            rows[label] += told[label]
        floors = part[["chance", "floor"]].astype(float).max(axis=1).dropna()
        rows["floor"] += [words.share(floors.max()) if len(floors) else tables.NOT_ASKED, tables.NOT_ASKED]
        notes += _control(told[BASELINE], str(task))
    if any(tables.AT_CHANCE in text for row in rows.values() for text in row):
        notes.append(f"{tables.AT_CHANCE}: guessing does as well, by a binomial test at {LEVEL:g}")
    shown = DataFrame(list(rows.values()), columns=heads, dtype="object")
    return Table("scores", "What it learns in a few hundred steps", shown, shown, "; ".join(notes))


def troubles(tried: Tried) -> Table | None:
    """The cells that went wrong, with reasons; None where there are none. Of the others see `cautions`."""
    bad = tables.problems(tried.frame)
    bad = bad[bad["status"] != "pending"]
    title = f"Not all went as asked: {tables.denominator(tried.frame)} ok"
    return Table("problems", title, bad, bad) if len(bad) else None


def cautions(tried: Tried) -> list[str]:
    """What weakens these numbers, a sentence each: too little time, and a machine that did something else besides."""
    n_cells, n_disturbed = len(tried.frame), int(disturbed(tried.frame).sum())
    n_late = int((tried.frame["status"] == "pending").sum())
    late = f"The time was spent: {n_late} of {n_cells} cells have fewer visits than asked for, or none."
    busy = (
        f"This machine was busy: {n_disturbed} of {n_cells} cells have no undisturbed time; the claim is not judged by "
    )
    busy += "theirs, and trying again when nothing else runs tells more."
    return [said for n, said in ((n_late, late), (n_disturbed, busy)) if n]


def everything(tried: Tried) -> list[Table]:
    """All tables, in the order in which they are read."""
    found = [*costs(tried), crossovers(tried), scores(tried), troubles(tried)]
    return [table for table in found if table is not None]


def verdict(tried: Tried) -> list[str]:
    """The claim beside what these few sizes show, a line each."""
    return complexity.lines(tried.audited)


def following(tried: Tried, target: str, plugins: Sequence[str]) -> list[Command]:
    """Three commands to go on with. target, plugins: as this trial was asked for."""
    with_plugins = "".join(f" --plugin {shlex.quote(plugin)}" for plugin in plugins)
    name, quoted = tried.name, shlex.quote(target)
    pair = f"{BASELINE} {quoted}" if name != BASELINE else f"{BASELINE} linear"
    file = f" --plugin {shlex.quote(_file(target))}" if _file(target) else ""
    variants = ", ".join(f'"{label}"' for label in dict.fromkeys((BASELINE, name)))
    recall = (
        f"attnbench run experiments/recall.toml{file}{with_plugins} --set 'variant=[{variants}]' --set 'T=[64,128]'"
    )
    return [
        Command(f"attnbench audit {quoted}{with_plugins}", _about_audit(tried)),
        Command(f"attnbench crossover {pair}{with_plugins} --d 64,128,256", _about_crossover(tried)),
        Command(f"{recall} --out {name}_recall", "recall with three seeds and long enough training, in a checkout"),
    ]


def _cost(tried: Tried, measure: Measure) -> Table:
    """One measure of all variants, each figure with its ratio to the baseline."""
    merged, compared = points(tried.costs, measure), tried.compared(measure)
    sides = SIDES[measure.name]
    called = {FASTER: sides["below"], SLOWER: sides["above"], SAME: SAME, AMBIGUOUS: AMBIGUOUS}
    against = {
        (one.label, one.d_model, one.T): f", {words.ratio(one.ratio)} {called[one.verdict_corrected]}"
        for one in compared.itertuples()
        if one.verdict_corrected in called
    }
    if measure is FLOPS:
        merged["status"] = merged["status"].replace("not measured", tables.NOT_AVAILABLE)

    def text(point: Any) -> str:
        return words.scaled(point.value, UNITS[measure]) + against.get((point.label, point.d_model, point.T), "")

    settings = tried.costs.iloc[0]
    note = f"{settings['phase']}, {settings['role']}, B = {B}, float32, one CPU thread; with the ratio to {BASELINE}"
    shown = tables.values(merged, text)
    shown = shown.rename(columns={T: f"T = {words.whole(T)}" for T in set(merged["T"])})
    return Table(measure.name, TITLES[measure], shown, merged, note)


def _first_trouble(tried: Tried, d_model: int) -> str:
    """Why there is no ratio at one width."""
    cells = tried.costs[(tried.costs["d_model"] == d_model) & (tried.costs["status"] != "ok")]
    return "not measured" if not len(cells) else f"{cells.iloc[0]['status']}: {cells.iloc[0]['reason']}"


def _scores(part: DataFrame) -> dict[str, list[str]]:
    """Of one task: by label its accuracy, or its status, and its reach."""
    guessing, reach = at_chance(part), reaches(by_slice(part))
    told = {}
    for point in points(part, ACCURACY).itertuples():
        key = (point.label, point.d_model, point.T)
        text = words.share(point.value) if point.n_good else str(point.status)
        text += f", {tables.AT_CHANCE}" if key in guessing else ""
        told[str(point.label)] = [text, reach.get(key, tables.NOT_ASKED)]
    return told


def _control(told: Sequence[str], task: str) -> list[str]:
    """A note where the control's score allows no conclusion."""
    if told[0][:1].isdigit() and tables.AT_CHANCE not in told[0]:
        return []
    why = "has learned nothing" if tables.AT_CHANCE in told[0] else f"has no score ({told[0]})"
    return [f"on {task} the control {why}, so that nothing follows for others"]


def _about_audit(tried: Tried) -> str:
    statuses = [one.status for one in tried.audited.verdicts]
    if not statuses:
        return "how it grows in T and d, with paths and steps; a claim would get a verdict"
    if "refuted" in statuses:
        return "what is refuted here, once more and over more sizes"
    return "what these sizes leave open, over more of them" if "not resolvable" in statuses else "over more sizes"


def _about_crossover(tried: Tried) -> str:
    if any(one.crossings for one in tried.crossovers.values()):
        return "the crossovers to a few per cent, and what is left of them in a block"
    return "whether there is a crossover farther out, and what of it a block would keep"


def _file(target: str) -> str:
    """The plugin file of FILE[:CLASS], or nothing."""
    return target.partition(".py:")[0] + ".py" if ".py:" in target else target if target.endswith(".py") else ""

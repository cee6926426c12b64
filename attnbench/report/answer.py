"""The short answer at the head of a report, in sentences made from the measured cells and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from pandas import DataFrame

from attnbench.analyse.chance import at_chance
from attnbench.analyse.compare import verdicts
from attnbench.analyse.crossover import Crossover, crossovers
from attnbench.analyse.learning import unranked
from attnbench.analyse.points import ACCURACY, MEMORY, TIME, Group, Measure, asked, groups, points
from attnbench.analyse.sample_efficiency import off_curves, over_n
from attnbench.analyse.slices import REACH, by_slice, reaches, slice_unit
from attnbench.report import fits, matching, sample_efficiency, tables, words

ALIKE = 5  # variants from which on those of which the same is true share one sentence


class Finding(NamedTuple):
    """What one group of cells shows."""

    about: str
    text: str


def answer(frame: DataFrame, baseline: str) -> list[Finding]:
    """Where variants overtake the baseline, per d, how far back they reach, how many sequences they need, and whether
    their parameters match."""
    found = [
        Finding(_about(measure.name, group), _compared(group, measure, baseline))
        for measure in (TIME, MEMORY)
        for group in groups(asked(frame, measure))
    ]
    found += [
        Finding(_about(f"{one.measure.name} by term", one.group), fits.sentence(one)) for one in fits.fitted(frame)
    ]
    scored = groups(asked(off_curves(frame), ACCURACY))
    found += [Finding(_about("accuracy", group), _learned(group, baseline)) for group in scored]
    found += [Finding(_about("accuracy", group), sample_efficiency.sentence(group)) for group in over_n(frame)]
    found += [
        Finding(f"Matching ({measure.name})", matching.sentence(frame, measure, baseline))
        for measure in (ACCURACY, TIME)
    ]
    found += _parameters(frame)
    return [finding for finding in found if finding.text]


def comparison(label: str, found: Sequence[Crossover], what: str, baseline: str) -> str:
    """One variant in one sentence: "linear is faster than fused from T ≈ 310 (d = 64), 420 (d = 128)."."""
    return f"{label} {_said(found, what, baseline)}."


def _said(found: Sequence[Crossover], what: str, baseline: str) -> str:
    """What is true of one variant: "is faster than fused from T ≈ 310 (d = 64), 420 (d = 128)"."""
    parts: dict[tuple[str, str], list[str]] = {}
    for crossover in found:
        before, at, behind = _outcome(crossover, what, baseline)
        parts.setdefault((before, behind), []).append(f"{at} (d = {crossover.d_model})".strip())
    told = [f"{before} {_listed(ends)}{behind}" for (before, behind), ends in parts.items()]
    return "; ".join(told)


def _outcome(crossover: Crossover, what: str, baseline: str) -> tuple[str, str, str]:
    """What happens, the figure that belongs to this width, and what stands behind the figures of all widths."""
    sides, sizes = tables.SIDES[what], [words.whole(at.T) for at in crossover.crossings]
    if crossover.n_sizes == 0:
        return f"was not measured beside {baseline}", "", ""
    if crossover.n_sizes == 1:
        known = f", {tables.undecided(crossover)}" if crossover.side is None else ""
        behind = f" of {baseline}'s {what} at T = {words.whole(crossover.T_min)}{known}"
        return "takes", words.ratio(crossover.ratio), behind
    if len(sizes) == 1:
        return f"is {sides[crossover.crossings[0].to]} than {baseline} from T ≈", sizes[0], ""
    if sizes:
        return f"changes places with {baseline} at T ≈", " and ".join(sizes), ""
    if crossover.side is None and crossover.n_ambiguous:
        return f"is nowhere told apart from {baseline}", "", ""
    if crossover.side is None:
        return f"takes the same {what} as {baseline} {tables.NEAR}", "", ""
    where = "where they differ" if crossover.n_same + crossover.n_ambiguous else ""
    return f"is {sides[crossover.side]} than {baseline} at every measured T {where}".strip(), "", ""


def _listed(ends: Sequence[str]) -> str:
    """Widths alone are joined in one bracket, places with their widths by commas."""
    if all(end.startswith("(") for end in ends):
        return f"(d = {', '.join(end.removeprefix('(d = ').removesuffix(')') for end in ends)})"
    return ", ".join(ends)


def _compared(group: Group, measure: Measure, baseline: str) -> str:
    """Every variant in a sentence; many of which the same is true share one, behind the others."""
    by_label: dict[str, list[Crossover]] = {}
    merged = points(group.frame, measure)
    compared = verdicts(merged, baseline, resolution=measure.resolution)
    for found in crossovers(compared) if baseline in set(merged["label"]) else []:
        by_label.setdefault(found.label, []).append(found)
    alike: dict[str, list[str]] = {}
    for label, one in by_label.items():
        alike.setdefault(_said(one, measure.name, baseline), []).append(label)
    few = {label: f"{label} {said}." for said, labels in alike.items() if len(labels) < ALIKE for label in labels}
    many = [
        f"{', '.join(labels[:-1])} and {labels[-1]}: each {said}."
        for said, labels in alike.items()
        if len(labels) >= ALIKE
    ]
    return " ".join([few[label] for label in by_label if label in few] + many)


def _learned(group: Group, baseline: str) -> str:
    """Per width, at the largest T: the reach of each variant, or its accuracy where the task has no slices.

    The baseline is the control: where guessing does as well as it, or it has no score, the task says nothing of the
    others.
    """
    largest, guessing = group.frame["T"].max(), at_chance(group.frame)
    silent = unranked(group.frame, baseline)
    merged = points(group.frame, ACCURACY)
    merged = merged[merged["T"] == largest].sort_values("d_model", kind="stable")
    reach = reaches(by_slice(group.frame))
    ranked: list[str] = []
    untold: list[str] = []
    for d, part in merged.groupby("d_model"):
        told = {point.label: _score(point, reach, guessing) for point in part.itertuples()}
        if silent.get((d, largest), "no control") != "no control":
            untold.append(f"d = {d}: {told[baseline]}")
        else:
            first = [label for label in told if label == baseline]
            ranked.append(f"d = {d}: {', '.join(f'{label} {told[label]}' for label in dict.fromkeys([*first, *told]))}")
    what = f"the {slice_unit(group.frame)} up to which it stays above {REACH:g}" if reach else "its mean"
    control = f"At T = {largest}, variants are not ranked where {baseline}, the control, has learned nothing: "
    said = [(control, untold), (f"At T = {largest}, {what}: ", ranked)]
    return " ".join(f"{head}{'; '.join(parts)}." for head, parts in said if parts)


def _score(point: Any, reach: Mapping[tuple[str, int, int], str], guessing: Collection[tuple[str, int, int]]) -> str:
    """One variant at one width, in as few words as there are."""
    key = (point.label, point.d_model, point.T)
    if not point.n_good:
        return str(point.status)
    if key in guessing:
        return f"{words.share(point.value)} ({tables.AT_CHANCE})"
    return reach.get(key, tables.NOT_ASKED) if reach else words.share(point.value)


def _parameters(frame: DataFrame) -> list[Finding]:
    """Which variants have more parameters than others; once for all groups of one level of which the same is true."""
    told: dict[tuple[str, str, str], dict[str, None]] = {}
    for group in groups(frame):
        if text := tables.unmatched(group.frame):
            way = words.setting("match", group.settings.get("match"))
            tasks = told.setdefault((group.settings["level"], way, text), {})
            tasks |= {group.settings["task"]: None} if group.settings["task"] else {}
    return [
        Finding(f"Parameters ({', '.join(filter(None, [level, *tasks, way]))})", f"variants are not matched: {text}.")
        for (level, way, text), tasks in told.items()
    ]


def _about(what: str, group: Group) -> str:
    """Time, or "Time (forward, 2 threads)" where several groups have to be told apart."""
    task = group.settings.get("task")
    head = f"{what} on {task}" if task else what
    apart = words.settings(group.settings, tuple(name for name in group.differs if name != "task"))
    return head[:1].upper() + head[1:] + (f" ({apart})" if apart else "")

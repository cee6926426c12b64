"""The short answer at the head of a report, in sentences made from the measured cells and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pandas import DataFrame

from attnbench.analyse.crossover import Crossover, crossovers
from attnbench.analyse.points import ACCURACY, MEMORY, TIME, Group, Measure, asked, groups, points
from attnbench.report import tables, words


class Finding(NamedTuple):
    """What one group of cells shows."""

    about: str
    text: str


def answer(frame: DataFrame, baseline: str) -> list[Finding]:
    """Where variants overtake the baseline, per d, and how far back they reach."""
    found = [
        Finding(_about(measure.name, group), _compared(group, measure, baseline))
        for measure in (TIME, MEMORY)
        for group in groups(asked(frame, measure))
    ]
    found += [Finding(_about("accuracy", group), _learned(group)) for group in groups(asked(frame, ACCURACY))]
    return [finding for finding in found if finding.text]


def comparison(label: str, found: Sequence[Crossover], sides: Mapping[str, str], baseline: str) -> str:
    """One variant in one sentence: "linear is faster than fused from T ≈ 310 (d = 64), 420 (d = 128)."."""
    parts: dict[str, list[str]] = {}
    for crossover in found:
        outcome, at = _outcome(crossover, sides, baseline)
        parts.setdefault(outcome, []).append(f"{at} (d = {crossover.d_model})".strip())
    return f"{label} {'; '.join(f'{outcome} {_listed(ends)}' for outcome, ends in parts.items())}."


def _outcome(crossover: Crossover, sides: Mapping[str, str], baseline: str) -> tuple[str, str]:
    """What happens, and at which T."""
    sizes = [words.whole(at.T) for at in crossover.crossings]
    if len(sizes) == 1:
        return f"is {sides[crossover.crossings[0].to]} than {baseline} from T ≈", sizes[0]
    if sizes:
        return f"changes places with {baseline} at T ≈", " and ".join(sizes)
    if crossover.n_sizes < 2:
        return f"was not measured beside {baseline} at two sizes", ""
    if crossover.side is None:
        return f"equals {baseline} at every measured T", ""
    return f"is {sides[crossover.side]} than {baseline} at every measured T", ""


def _listed(ends: Sequence[str]) -> str:
    """Widths alone are joined in one bracket, places with their widths by commas."""
    if all(end.startswith("(") for end in ends):
        return f"(d = {', '.join(end.removeprefix('(d = ').removesuffix(')') for end in ends)})"
    return ", ".join(ends)


def _compared(group: Group, measure: Measure, baseline: str) -> str:
    by_label: dict[str, list[Crossover]] = {}
    for found in crossovers(points(group.frame, measure), baseline):
        by_label.setdefault(found.label, []).append(found)
    sides = tables.SIDES[measure.name]
    return " ".join(comparison(label, found, sides, baseline) for label, found in by_label.items())


def _learned(group: Group) -> str:
    """Per width, at the largest T: the reach of each variant, or its accuracy where the task has no slices."""
    largest = group.frame["T"].max()
    merged = points(group.frame, ACCURACY)
    merged = merged[merged["T"] == largest].sort_values("d_model", kind="stable")
    reach = tables.reaches(tables.gaps(group.frame))
    by_width: dict[int, list[str]] = {}
    for point in merged.itertuples():
        told = reach.get((point.label, point.d_model, point.T)) if reach else f"{point.value:.3f}"
        by_width.setdefault(point.d_model, []).append(f"{point.label} {told if point.n_good else point.status}")
    what = f"the gap up to which it stays above {tables.REACH:g}" if reach else "its mean"
    ends = "; ".join(f"d = {d}: {', '.join(told)}" for d, told in by_width.items())
    return f"At T = {largest}, {what}: {ends}."


def _about(what: str, group: Group) -> str:
    """Time, or "Time (forward, 2 threads)" where several groups have to be told apart."""
    task = group.settings.get("task")
    head = f"{what} on {task}" if task else what
    apart = words.settings(group.settings, tuple(name for name in group.differs if name != "task"))
    return head[:1].upper() + head[1:] + (f" ({apart})" if apart else "")

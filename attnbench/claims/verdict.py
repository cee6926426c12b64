"""From the rows of a run to findings, and from findings to the verdict on a claim."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from attnbench.analyse.seeds import Interval, difference, interval
from attnbench.claims.pack import MARGIN, Expectation, Where, matching

State = Literal["holds", "contradicted", "open", "missing"]
Verdict = Literal["reproduced", "trend reproduced", "refuted", "not resolvable at this size", "not finished"]
Row = Mapping[str, Any]
AT_FLOOR = 0.05  # a control that is no further above its floor has learnt nothing
ALONE = 0.1  # by which one seed has to miss a limit to contradict it
SETTING = (  # all that decides a cell but its seed
    *("label", "options", "task", "task_options", "role", "T", "S", "d_model", "n_heads", "n_layers", "d_ff"),
    *("embedding_std", "positions", "max_T", "dtype", "device", "threads", "n_training", "pretrain", "match"),
)
NAMED = (
    "task",
    "T",
    "d_model",
    "n_heads",
    "n_layers",
    "d_ff",
    "positions",
    "n_training",
    "pretrain",
    "match",
)  # told where they differ


class Finding(NamedTuple):
    """One expectation of one setting: in words, and whether what was measured agrees.

    holds, contradicted: the whole interval lies inside, or outside. open: it does not decide. missing: no numbers.
    """

    what: str
    expected: str
    measured: str
    state: State
    is_order: bool = False


def judged(expectation: Expectation, rows: Sequence[Row]) -> list[Finding]:
    """Findings of an expectation of a sweep, one per setting that it selects. rows: of the run's frame."""
    if expectation.order is not None:
        pairs = zip(expectation.order, expectation.order[1:], strict=False)
        return [_ordered(expectation, first, second, rows) for first, second in pairs]
    groups = settings(matching(rows, expectation.where or {}))
    if not groups:
        return [Finding(_words(expectation.where or {}), "", "no such cell", "missing")]
    keys = [key for key in NAMED if len({str(group[0].get(key)) for group in groups}) > 1]
    return [_banded(expectation, group, keys) for group in groups]


def guessed(expectation: Expectation, found: Mapping[str, float]) -> Finding:
    """The finding of an expectation about a baseline; it has no seeds and no interval."""
    name, expected = expectation.baseline or "", _band(expectation.at_least, expectation.at_most)
    if name not in found:
        return Finding(name, expected, f"no such baseline; there are {', '.join(found)}", "missing")
    value = found[name]
    low, high = expectation.at_least, expectation.at_most
    inside = (low is None or value >= low) and (high is None or value <= high)
    return Finding(name, expected, f"{value:.3f}", "holds" if inside else "contradicted")


def verdict(findings: Sequence[Finding], *, controlled: bool = True, pending: bool = False) -> Verdict:
    """The verdict on a claim. controlled: the control has learnt something. pending: cells are still to be run."""
    states = [finding.state for finding in findings]
    orders = [finding.state for finding in findings if finding.is_order]
    if pending:
        return "not finished"
    if not controlled or "missing" in states or not states:
        return "not resolvable at this size"
    if all(state == "holds" for state in states):
        return "reproduced"
    if orders and all(state == "holds" for state in orders):
        return "trend reproduced"
    return "refuted" if "contradicted" in states else "not resolvable at this size"


def control_failed(control: Where | None, rows: Sequence[Row]) -> str:
    """Why nothing can be said: the control has no score, or has learnt nothing, in some setting; "" else."""
    groups = settings(matching(rows, control)) if control else []
    scores = [_numbers(group, "accuracy", None) for group in groups]
    if not all(scores):
        return "the control has no score"
    at_floor = (statistics.fmean(own) <= _floor(group) + AT_FLOOR for own, group in zip(scores, groups, strict=True))
    return "the control is at its floor" if any(at_floor) else ""


def state_of(found: Interval, at_least: float | None, at_most: float | None) -> State:
    """Whether the interval lies within the limits, beyond one of them, or across.

    One seed has no interval: it holds where it lies within, and contradicts where it is off by more than ALONE.
    """
    low, high = (found.mean, found.mean) if found.n < 2 else (found.low, found.high)
    slack = ALONE if found.n < 2 else 0.0
    if (at_least is not None and high < at_least - slack) or (at_most is not None and low > at_most + slack):
        return "contradicted"
    inside = (at_least is None or low >= at_least) and (at_most is None or high <= at_most)
    return "holds" if inside else "open"


def settings(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows that differ by their seed alone, together."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.get(key)) for key in SETTING), []).append(row)
    return list(groups.values())


def _banded(expectation: Expectation, group: Sequence[Row], keys: Sequence[str]) -> Finding:
    """One setting against a band. keys: what else than its label tells it from others of the expectation."""
    at_most = expectation.at_most
    if expectation.near_floor is not None:
        floor = _floor(group) + expectation.near_floor
        at_most = floor if at_most is None else min(at_most, floor)
    what = ", ".join([str(group[0].get("label") or group[0]["variant"]), *(f"{key} {group[0][key]}" for key in keys)])
    what, expected = what + _value(expectation), _band(expectation.at_least, at_most)
    lacking = _lacking(group, expectation)
    if lacking:
        return Finding(what, expected, lacking, "missing")
    found = interval(_numbers(group, expectation.value, expectation.slice))
    return Finding(what, expected, _shown(found), state_of(found, expectation.at_least, at_most))


def _ordered(expectation: Expectation, first: Where, second: Where, rows: Sequence[Row]) -> Finding:
    """Whether the first setting is above the second by the margin; open where it only has the higher floor."""
    by = MARGIN if expectation.by is None else expectation.by
    what = f"{_words(first)} less {_words(second)}{_value(expectation)}"
    sides = [settings(matching(rows, where)) for where in (first, second)]
    for where, groups in zip((first, second), sides, strict=True):
        lacking = _lacking(groups[0], expectation) if len(groups) == 1 else f"{_words(where)}: {len(groups)} settings"
        if lacking:
            return Finding(what, _band(by, None), lacking, "missing", is_order=True)
    a, b = (_numbers(groups[0], expectation.value, expectation.slice) for groups in sides)
    found = difference(a, b)
    state = state_of(found, by, None)
    if state == "holds" and expectation.value == "accuracy" and statistics.fmean(a) <= _floor(sides[0][0]) + AT_FLOOR:
        return Finding(what, _band(by, None), f"{_shown(found)}, both at their floors", "open", is_order=True)
    return Finding(what, _band(by, None), _shown(found), state, is_order=True)


def _lacking(group: Sequence[Row], expectation: Expectation) -> str:
    """Why not every seed of a setting has a number: "1 of 3 cells: 1 timeout"; "" where all have."""
    n = len(_numbers(group, expectation.value, expectation.slice))
    if n == len(group):
        return ""
    words = [str(row["status"]) for row in group if row["status"] != "ok"]
    told = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    return f"{n} of {len(group)} cells{f': {told}' if told else f': no {expectation.slice or expectation.value}'}"


def _numbers(group: Iterable[Row], value: str, slice_: str | None) -> list[float]:
    """The value of each row that has one."""
    return [number for row in group for number in _number(row, value, slice_)]


def _number(row: Row, value: str, slice_: str | None) -> Iterator[float]:
    """The value of a row, or nothing; only a trained model has one."""
    home: Any = row
    if slice_ is not None:
        slices = row.get("slices")
        home = slices.get(slice_, {}) if isinstance(slices, Mapping) else {}
    number = home.get(value)
    if row["status"] in ("ok", "diverged") and isinstance(number, int | float) and math.isfinite(number):
        yield float(number)


def _floor(group: Sequence[Row]) -> float:
    """The larger of chance and floor, 0 where a task tells none; a seed that failed tells none."""
    known = [row.get(key) for row in group for key in ("chance", "floor")]
    return max([float(one) for one in known if isinstance(one, int | float) and math.isfinite(one)], default=0.0)


def _value(expectation: Expectation) -> str:
    parts = [] if expectation.value == "accuracy" else [expectation.value]
    parts += [] if expectation.slice is None else [f"slice {expectation.slice}"]
    return "".join(f", {part}" for part in parts)


def _words(where: Where) -> str:
    return ", ".join(str(value) if key == "variant" else f"{key} {value}" for key, value in where.items()) or "all"


def _band(at_least: float | None, at_most: float | None) -> str:
    limits = [("≥", at_least), ("≤", at_most)]
    return ", ".join(f"{sign} {limit:.3g}" for sign, limit in limits if limit is not None)


def _shown(found: Interval) -> str:
    if found.n < 2:
        return f"{found.mean:.3f} (one seed)"
    return f"{found.mean:.3f} ± {(found.high - found.low) / 2:.3f} ({found.n} seeds)"

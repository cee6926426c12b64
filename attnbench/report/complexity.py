"""What an audit found: a line for each claim, and the table of complexities, claimed and measured side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pandas import DataFrame

from attnbench.analyse.audit import Axis, Cost, Growth, Verdict
from attnbench.analyse.audited import CLAIMS, N_HEADS, SHORT, STATE_T, WIDTH, Audited
from attnbench.report import words
from attnbench.report.writers import Table

NONE = "–"
NAME = "table1"
NOTE = (
    f"time and memory: forward and backward, in T at level core (layer for a mixer without one) and d = {WIDTH}; in d, "
    f"time at level layer and T = {SHORT}, memory as what the second {SHORT // 2} of {SHORT} positions add; "
    f"H = {N_HEADS}, B = 1, float32, one CPU thread",
    "measured powers: over the largest sizes, a factor of 4, with 95 % intervals; a claim is an upper bound",
    "steps: operators that torch dispatches in one forward pass, one after the other; a fused kernel counts once, "
    "whatever it does inside, so they bound sequential operations from below",
    "path: layers until each position has seen all it may, by gradients that are not 0; through a state: decoding "
    "keeps one of fixed size, so that one layer hands everything on from step to step",
    f"state: of decoding, one sequence and layer, d = {WIDTH}",
    "predicted: time by the fitted terms where nothing was measured; in brackets the error at which such a fit, made "
    "without the largest T, predicts it",
)


def lines(found: Audited) -> list[str]:
    """What to print: one line per claim, or one that says why there are none."""
    name = found.claimed.name
    if found.trouble:
        return [f"{name}: not measured: {found.trouble}"]
    if found.claimed.claim is None:
        return [f"{name}: makes no claim, so there is no verdict", *_seen(found)]
    claim = found.claimed.claim
    head = f'{name} claims time "{claim["time"]}" and memory "{claim["memory"]}"'
    return [head, *(_line(found, verdict) for verdict in found.verdicts)]


def table(audits: Sequence[Audited]) -> Table:
    """Complexity per layer, sequential operations, path and state, claimed and measured: one row per variant."""
    rows = [_row(found) for found in audits]
    lengths = next((found.probe_T for found in audits if found.probe_T), ())
    probe, state = (" and ".join(map(str, sizes)) for sizes in (lengths, STATE_T))
    heads = ["variant", "time", "measured in T", "in d", "memory", "measured in T ", "in d "]
    heads += ["sequential", f"steps at T = {probe}", "path", f"layers at T = {probe}"]
    heads += [f"state at T = {state}", "predicted"]
    shown = DataFrame(rows, columns=heads, dtype="object")
    return Table(NAME, "Complexity, claimed and measured", shown, _data(audits), "; ".join(NOTE))


def _line(found: Audited, verdict: Verdict) -> str:
    """ "time in T: confirmed: claimed T^2, measured T^1.94 [1.91, 1.97] over T = 512 to 2048 (...)"."""
    told = f"claimed {_power(verdict.axis, verdict.claimed)}"
    if verdict.growth is not None:
        first, last = (words.whole(size) for size in (verdict.growth.smallest, verdict.growth.largest))
        told += f", measured {_measured(verdict)} over {verdict.axis} = {first} to {last} ({_where(found, verdict)})"
    if verdict.why:
        told += f"; {verdict.why}"
    larger = f"{verdict.axis} = {words.whole(verdict.resolved_from)}" if verdict.resolved_from is not None else ""
    if would := " or ".join(filter(None, ("more visits on a quieter machine" if verdict.noisy else "", larger))):
        told += f"; {would} would tell"
    return f"{verdict.cost} in {verdict.axis}: {verdict.status}: {told}"


def _seen(found: Audited) -> list[str]:
    """What was measured of a variant that claims nothing."""
    told = []
    for cost, axis in CLAIMS:
        growth = found.growth(cost, axis)
        if growth is not None:
            told.append(f"{cost} in {axis}: no claim: measured {_grown(axis, cost, growth)}")
    return told


def _where(found: Audited, verdict: Verdict) -> str:
    """At which level and other size a growth was measured."""
    level = "layer" if (verdict.cost, verdict.axis) == ("time", "d") else found.claimed.level
    return f"{level}, {f'd = {WIDTH}' if verdict.axis == 'T' else f'T = {SHORT}'}"


def _measured(verdict: Verdict) -> str:
    return NONE if verdict.growth is None else _grown(verdict.axis, verdict.cost, verdict.growth)


def _grown(axis: Axis, cost: Cost, growth: Growth) -> str:
    """ "T^1.94 [1.91, 1.97]"; bytes repeat, so that there is no interval to tell."""
    interval = f" [{growth.low:.2f}, {growth.high:.2f}]" if cost == "time" else ""
    return f"{axis}^{growth.exponent:.2f}{interval}"


def _power(axis: Axis, power: float) -> str:
    return "1" if power == 0 else axis if power == 1 else f"{axis}^{power:g}"


def _row(found: Audited) -> list[str]:
    """One variant's line of the table: what it says of itself beside what was measured."""
    claim, name = found.claimed.claim or {}, found.claimed.name
    said = [str(claim.get(one) or NONE) for one in ("time", "memory", "sequential", "path")]
    if found.trouble:
        return [name, said[0], found.trouble, NONE, said[1], NONE, NONE, said[2], NONE, said[3], *[NONE] * 3]
    cells = {one: _cell(found, *one) for one in CLAIMS}
    return [
        name,
        *(said[0], cells["time", "T"], cells["time", "d"]),
        *(said[1], cells["memory", "T"], cells["memory", "d"]),
        *(said[2], _two(found.probe.get("calls", []))),
        *(said[3], _layers(found)),
        _state(found),
        _prediction(found),
    ]


def _cell(found: Audited, cost: Cost, axis: Axis) -> str:
    """Measured growth with its verdict; growth alone where nothing is claimed."""
    verdict = next((one for one in found.verdicts if (one.cost, one.axis) == (cost, axis)), None)
    if verdict is not None:
        return f"{_measured(verdict)} {verdict.status}"
    growth = found.growth(cost, axis)
    return NONE if growth is None else _grown(axis, cost, growth)


def _two(numbers: Sequence[int | None]) -> str:
    return ", ".join(NONE if n is None else f"{n:,}" for n in numbers) or NONE


def _layers(found: Audited) -> str:
    """How many layers a path takes, and whether what one of them sees must have come through a state of fixed size."""
    layers, state = found.probe.get("layers", []), found.state_bytes
    tried = any(n is not None for n in found.probe.get("calls", []))
    if tried and all(n is None for n in layers):
        return "never"
    fixed = state[0] > 0 and state[0] == state[1]
    return _two(layers) + (", through a state" if fixed and set(layers) == {1} else "")


def _state(found: Audited) -> str:
    known = [words.scaled(value, words.BYTE_UNITS) for value in found.state_bytes if math.isfinite(value)]
    return ", ".join(known) or NONE


def _prediction(found: Audited) -> str:
    """The predicted time with the error of such predictions: "1.2 ms at T = 4096, d = 96 [+3 %]"."""
    one = found.predicted
    if one is None:
        return NONE
    errors = ", ".join(f"{100 * error:+.0f} %" for error in one.errors)
    told = f"{words.scaled(one.time_s, words.TIME_UNITS)} at T = {words.whole(one.T)}, d = {words.whole(one.d_model)}"
    return told + (f" [{errors}]" if errors else "")


def _data(audits: Sequence[Audited]) -> DataFrame:
    """One row per variant, cost and axis, with the bare numbers."""
    rows = []
    for found in audits:
        for verdict in found.verdicts if not found.trouble else []:
            growth = verdict.growth or Growth(*[np.nan] * 5)
            text = (found.claimed.claim or {}).get(verdict.cost)
            about = {"variant": found.claimed.name, "cost": verdict.cost, "axis": verdict.axis, "claim": text}
            rows.append(about | {"claimed": verdict.claimed, "status": verdict.status} | growth._asdict())
    return DataFrame(rows)

"""What a cost is made of, by its fitted terms: a table, a sentence, and the data of a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame

from attnbench.analyse.fit import FIT, LEVEL, NOISE, ROUNDING, Fit, Term, fits
from attnbench.analyse.points import FLOPS, MEMORY, TIME, Group, Measure, asked, groups, points
from attnbench.analyse.terms import BYTE_TERMS, TERMS
from attnbench.report import notes, words
from attnbench.report.tables import NOT_ASKED
from attnbench.report.writers import Table

# A coefficient of T² d is far below a nanosecond.
UNITS = {
    "time": (("fs", 1e-15), ("ps", 1e-12), *words.TIME_UNITS),
    "memory": words.BYTE_UNITS,
    "operations": words.COUNT_UNITS,
}
BOOTSTRAP = f"intervals of {100 * LEVEL:.0f} % by residual bootstrap"
JACKKNIFE = "intervals: range of the fits that leave out one point"
HELD_OUT = "largest T predicted"
N_STEPS = 60  # points of a drawn curve


class Fitted(NamedTuple):
    """The fits of one measure of one group of cells, by label; at least one of them has terms. points: by FIT."""

    group: Group
    measure: Measure
    points: DataFrame
    fits: Mapping[str, Fit]

    @property
    def terms(self) -> list[str]:
        """The names of all fitted terms, by their powers of T, d and H."""
        known = {term.name: term.powers for fit in self.fits.values() for term in fit.terms}
        return sorted(known, key=lambda name: known[name])

    @property
    def at(self) -> tuple[float, float]:
        """The largest T, then d_model, to which a fit refers its shares."""
        return max((fit.T, fit.d_model) for fit in self.fits.values() if fit.terms)

    @property
    def shares_title(self) -> str:
        """To which sizes the shares of all variants refer."""
        alike = len({(fit.T, fit.d_model) for fit in self.fits.values() if fit.terms}) == 1
        return f"share of each term at {_place(self.at) if alike else 'the largest T and d of each variant'}"


def fitted(frame: DataFrame, measures: Sequence[Measure] = (TIME, MEMORY)) -> Iterator[Fitted]:
    """The fits of every group that has any, one measure after the other.

    A step of decoding passes over no T positions, so that these are not its terms: it is left out.
    """
    for measure in measures:
        for group in groups(_asked(frame, measure)):
            merged = points(group.frame, measure, FIT)
            terms = BYTE_TERMS if measure is MEMORY else TERMS
            found = fits(merged, terms=terms, deterministic=measure is not TIME)
            if any(fit.terms for fit in found.values()) and group.settings.get("phase") != "decode":
                yield Fitted(group, measure, merged, found)


def sentence(one: Fitted) -> str:
    """The largest term of each variant: "Largest at T = 2048, d = 256: fused T² d 71 %, linear T d² 66 %."."""
    told: dict[str, list[str]] = {}
    for label, fit in one.fits.items():
        if fit.terms:
            term = fit.largest
            said = "not resolvable" if term.seen == "unresolved" else f"{term.name} {_percent(term.share)}"
            said += f" (residuals of {_percent(fit.noise)})" if fit.noise > NOISE else ""
            told.setdefault(_place((fit.T, fit.d_model)), []).append(f"{label} {said}")
    return f"Largest at {'; at '.join(f'{at}: ' + ', '.join(parts) for at, parts in told.items())}."


def tables(frame: DataFrame) -> list[Table]:
    """One table per measure and group: variant × terms, how well they fit, and what they predict."""
    return [_table(one) for one in fitted(frame, (TIME, MEMORY, FLOPS))]


def curves(one: Fitted) -> DataFrame:
    """Fitted costs over T, between the smallest and the largest measured one: label, d_model, x, value."""
    parts = []
    measured = one.points[one.points["value"].notna()]
    for (label, d_model), part in measured.groupby(["label", "d_model"], sort=False):
        if one.fits[label].terms:
            T = np.geomspace(part["T"].min(), part["T"].max(), N_STEPS)
            cost = one.fits[label].predict(T, d_model, part["n_heads"].fillna(1).iloc[0])
            parts.append(DataFrame({"label": label, "d_model": d_model, "x": T, "value": cost}))
    return pd.concat(parts, ignore_index=True)


def shares(one: Fitted) -> DataFrame:
    """The share of each term at the largest T and d of its fit: label, term, share, seen."""
    rows = [(label, term.name, term.share, term.seen) for label, fit in one.fits.items() for term in fit.terms]
    return DataFrame(rows, columns=["label", "term", "share", "seen"])


def _asked(frame: DataFrame, measure: Measure) -> DataFrame:
    """The cells that have this measure by request; operations go with either of the other two."""
    if measure is not FLOPS:
        return asked(frame, measure)
    return frame.loc[asked(frame, TIME).index.union(asked(frame, MEMORY).index, sort=False)]


def _place(at: tuple[float, float]) -> str:
    return f"T = {words.whole(at[0])}, d = {words.whole(at[1])}"


def _table(one: Fitted) -> Table:
    """Variant × terms for one measure of one group."""
    group, name = one.group, one.measure.name
    shared = _shared(one)
    rows = [[label, *_row(one, fit, shared)] for label, fit in one.fits.items()]
    shown = DataFrame(rows, columns=["variant", *one.terms, "R²", HELD_OUT, "note"], dtype="object")
    intervals = BOOTSTRAP if one.measure is TIME else JACKKNIFE
    note = [
        notes.measured(group.frame, one.measure),
        f"share of each term at {_place(one.at)}, then its coefficient, {intervals}",
        "≤: not resolvable at these sizes, its share is not above this",
        f"{HELD_OUT}: by a fit to all smaller T, at the largest d, less what was measured",
        *shared,
    ]
    title = words.title(f"{name} by term", group.settings)
    file_name = words.file_name(f"fits_{name}", group.settings, group.differs)
    return Table(file_name, title, shown, _data(one), "; ".join(note))


def _shared(one: Fitted) -> list[str]:
    """Notes that are true of every variant with terms: they stand under the table, once."""
    notes = [fit.notes for fit in one.fits.values() if fit.terms]
    return [note for note in notes[0] if all(note in others for others in notes)]


def _row(one: Fitted, fit: Fit, shared: list[str]) -> list[str]:
    """The cells of one variant, its own notes in the last one."""
    terms = {term.name: _term(term, one.measure) for term in fit.terms}
    r2 = f"{fit.r2:.3f}" if fit.terms else NOT_ASKED
    elsewhere = fit.terms and (fit.T, fit.d_model) != one.at
    dropped = f"{fit.n_dropped} of {fit.n_points + fit.n_dropped} points without value" if fit.n_dropped else ""
    notes = [f"shares at {_place((fit.T, fit.d_model))}" if elsewhere else "", *fit.notes, dropped]
    note = "; ".join(note for note in notes if note and note not in shared)
    return [*(terms.get(name, NOT_ASKED) for name in one.terms), r2, _held_out(fit), note or NOT_ASKED]


def _term(term: Term, measure: Measure) -> str:
    """The share and the coefficient, "71 % · 141 ps [130, 152]", or below what its share lies."""
    if term.seen == "unresolved":
        return f"≤ {math.ceil(100 * term.share_high - ROUNDING)} %"
    return f"{_percent(term.share)} · {words.scaled(term.coefficient, UNITS[measure.name], term.low, term.high)}"


def _held_out(fit: Fit) -> str:
    """The error of the prediction at the largest d, with its interval: "-6 % [-11, +1]"."""
    if not fit.held_out:
        return NOT_ASKED
    last = fit.held_out[-1]
    middle, low, high = (round(100 * (end / last.measured - 1)) for end in (last.predicted, last.low, last.high))
    return f"{middle:+d} % [{low:+d}, {high:+d}]"


def _percent(share: float) -> str:
    return "< 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _data(one: Fitted) -> DataFrame:
    """One row per variant and term, and one for a variant without terms."""
    known = {name: value for name, value in one.group.settings.items() if value is not None}
    rows = []
    for label, fit in one.fits.items():
        last = fit.held_out[-1] if fit.held_out else None
        about = {
            "T": fit.T,
            "d_model": fit.d_model,
            "r2": fit.r2,
            "noise": fit.noise,
            "n_points": fit.n_points,
            "n_dropped": fit.n_dropped,
            "held_out_T": last and last.T,
            "held_out_d_model": last and last.d_model,
            "predicted": last and last.predicted,
            "predicted_low": last and last.low,
            "predicted_high": last and last.high,
            "measured": last and last.measured,
            "note": "; ".join(fit.notes),
        }
        rows += [{**known, "variant": label, **_numbers(term), **about} for term in fit.terms or (None,)]
    return DataFrame(rows)


def _numbers(term: Term | None) -> dict[str, object]:
    names = ("name", "coefficient", "low", "high", "share", "share_low", "share_high", "most", "seen")
    return {"term" if name == "name" else name: term and getattr(term, name) for name in names}

"""Where two variants change places, as a search found it, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pandas import DataFrame

from attnbench.analyse.crossover import Crossover
from attnbench.report import tables, words
from attnbench.report.writers import Table


def table(
    found: Mapping[Any, Crossover],
    baseline: str,
    other: str,
    spent: Collection[Any] = (),
    reasons: Mapping[Any, str] | None = None,
) -> Table:
    """One row per width and batch, one column per measure. Keys are places: measure, d_model, B.

    spent: where time was over before the search was done. reasons: of places without any ratio, why.
    """
    rows = []
    for (measure, d_model, B), one in found.items():
        text = _text(one, measure) if one.n_sizes else (reasons or {}).get((measure, d_model, B), "not measured")
        late = "; the time was spent before more could be tried" if (measure, d_model, B) in spent else ""
        rows.append((d_model, B, measure, other, text + late))
    long = DataFrame(rows, columns=["d_model", "B", "measure", "label", "text"])
    shown = tables.spread(long, ["d_model", "B"], "measure", list(dict.fromkeys(long["measure"])))
    shown = shown if shown["B"].nunique() > 1 else shown.drop(columns="B")
    return Table("crossover", f"{other} beside {baseline}", shown, long, tables.RULE)


def _text(one: Crossover, measure: str) -> str:
    """ "faster from T ≈ 271 [260, 280], 4.2 d"."""
    text = tables.crossover_text(one, tables.SIDES[measure])
    if len(one.crossings) != 1:
        return text
    return f"{text}, {words.significant(one.crossings[0].T / one.d_model, 2)} d"

"""Whether variants that are compared have as many parameters as each other, and as themselves at another T."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from pandas import DataFrame, Series

SPREAD = 0.10  # from where on variants of one width are said not to match


@dataclass(frozen=True)
class Spread:
    """The variants with the fewest and the most parameters at one d_model, embeddings and head left out."""

    d_model: int
    least: tuple[str, int]
    most: tuple[str, int]


def spreads(frame: DataFrame) -> list[Spread]:
    """One per d_model where the most exceed the fewest by more than SPREAD, ascending. frame: cells of one group.

    A variant whose parameters depend on T counts with its most.
    """
    known = frame.dropna(subset=["n_params_body"])
    found = []
    for d_model, part in known.groupby("d_model"):
        n = part.groupby("label", sort=False)["n_params_body"].max().astype(int)
        if n.max() > (1 + SPREAD) * n.min():
            ends = ((str(label), int(n[label])) for label in (n.idxmin(), n.idxmax()))
            found.append(Spread(int(d_model), *ends))
    return found


def grows(counts: DataFrame, column: str, same: list[str]) -> Series:
    """Whether a count takes several values over the rows that agree in the columns `same`, for each row."""
    numbers = counts.assign(count=pd.to_numeric(counts[column], errors="coerce"))
    grown: Series = numbers.groupby(same, dropna=False, sort=False)["count"].transform("nunique") > 1
    return grown

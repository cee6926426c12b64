"""Accuracy by the slices of a task (gaps, lengths), and how far it reaches."""

from __future__ import annotations

import numpy as np
from pandas import DataFrame, Series

from attnbench.analyse.points import POINT

REACH = 0.9
FEW = 100  # answers


def by_slice(frame: DataFrame) -> DataFrame:
    """Accuracy slice by slice: label, d_model, T, slice, place (in the task's order), accuracy, low, high, n_seeds, n.

    accuracy is the mean over seeds, low to high their range (NaN for one seed), n the answers of all of them. Cells
    and slices without a score are left out.
    """
    rows = [
        (*key, name, place, float(score["accuracy"]), score.get("n", 0))
        for *key, slices in frame[[*POINT, "slices"]].itertuples(index=False)
        if isinstance(slices, dict)
        for place, (name, score) in enumerate(slices.items())
        if score.get("accuracy") is not None
    ]
    long = DataFrame(rows, columns=[*POINT, "slice", "place", "accuracy", "n"])
    long = long.astype({"accuracy": float, "place": int, "n": int})
    found = (
        long.groupby([*POINT, "slice"], sort=False)
        .agg(
            place=("place", "min"),
            accuracy=("accuracy", "mean"),
            low=("accuracy", "min"),
            high=("accuracy", "max"),
            n_seeds=("accuracy", "count"),
            n=("n", "sum"),
        )
        .reset_index()
    )
    found.loc[found["n_seeds"] < 2, ["low", "high"]] = np.nan
    return found


def slice_unit(frame: DataFrame) -> str:
    """What the names of the slices of one group count, as its task says it: "gap", "length"; "slice" where it does not.

    Several cells of one task agree, unless its source was changed between them; the first then speaks for all.
    """
    known = frame["slice_unit"].dropna()
    return str(known.iloc[0]) if len(known) else "slice"


def reaches(slices: DataFrame) -> dict[tuple[str, int, int], str]:
    """Per (label, d_model, T): the slice up to which accuracy stays above 0.9, or "nowhere". slices: of `by_slice`.

    A slice of few answers decides nothing where there are others: one wrong answer of a handful is no end of a reach.
    """
    found = {}
    for key, part in slices.sort_values("place", kind="stable").groupby(POINT, sort=False):
        counted = part[~few(part)]
        n_solved = int(np.cumprod(counted["accuracy"] > REACH).sum())
        found[key] = str(counted["slice"].iloc[n_solved - 1]) if n_solved else "nowhere"
    return found


def few(slices: DataFrame) -> Series:
    """Which slices have fewer than FEW answers; none where all have."""
    found = slices["n"] < FEW
    return found & ~found.all()

"""How many training sequences a variant needs: the smallest N, of those that were tried, at which it has learnt."""

from __future__ import annotations

import numpy as np
import pandas as pd
from pandas import DataFrame, Series

from attnbench.analyse.points import ACCURACY, POINT, Group, asked, good, groups
from attnbench.protocol import LEARNED

CURVE = ["pretrain", *POINT]  # what one curve of accuracy against N belongs to
SCRATCH = "none"  # the pretraining of a cell that has none


def over_n(frame: DataFrame) -> list[Group]:
    """The cells whose N is one of several, in groups that differ in N and pretraining besides what groups differ in.

    Their column pretrain says "none" where they were trained from scratch.
    """
    counted = asked(frame, ACCURACY)
    counted = counted[counted["n_training"].notna()]
    counted = counted.assign(pretrain=counted["pretrain"].astype("object").fillna(SCRATCH))
    found = groups(counted, together=("n_training", "pretrain"))
    return [group for group in found if group.frame["n_training"].nunique() > 1]


def off_curves(frame: DataFrame) -> DataFrame:
    """The cells that no group of `over_n` has."""
    return frame.drop(index=[cell for group in over_n(frame) for cell in group.frame.index])


def needed(frame: DataFrame) -> DataFrame:
    """Columns CURVE, n, low, high, n_learnt, n_seeds, largest: one row per curve of a frame of `over_n`.

    n: the median over seeds of the smallest N at which accuracy is LEARNED or more, infinite where it never is; of an
    even number of seeds the upper of both in the middle. low, high: of the fewest and the most. n_learnt: seeds that
    get there at all. largest: the N up to which this was tried. Seeds without any accuracy are not counted.
    """
    known = frame.assign(accuracy=good(frame["accuracy"], positive=False)).dropna(subset=["accuracy"])
    rows = [
        (*key, *_middle(part.groupby("seed", sort=False)[["n_training", "accuracy"]].apply(_smallest)))
        for key, part in known.groupby(CURVE, sort=False)
    ]
    found = DataFrame(rows, columns=[*CURVE, "n", "low", "high", "n_learnt", "n_seeds"])
    largest = known.groupby(CURVE, sort=False)["n_training"].max().rename("largest").reset_index()
    return pd.merge(found, largest, on=CURVE)


def _smallest(seed: DataFrame) -> float:
    """The smallest N at which one seed has learnt, or infinity."""
    learnt = seed.loc[seed["accuracy"] >= LEARNED, "n_training"]
    return float(learnt.min()) if len(learnt) else np.inf


def _middle(of_seeds: Series) -> tuple[float, float, float, int, int]:
    """The upper median, the smallest, the largest, how many are finite, and how many there are."""
    ordered = sorted(of_seeds)
    n_learnt = int(np.isfinite(ordered).sum())
    return ordered[len(ordered) // 2], ordered[0], ordered[-1], n_learnt, len(ordered)

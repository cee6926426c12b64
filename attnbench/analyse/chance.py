"""Whether an accuracy is a result at all, or what guessing gives."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from pandas import DataFrame
from scipy.special import bdtrc

from attnbench.analyse.points import POINT

LEVEL = 0.01  # an accuracy that guessing reaches more often than this is not above chance


def guessed(accuracy: ArrayLike, n: ArrayLike, guess: ArrayLike) -> np.ndarray:
    """How often n independent guesses, each right with probability `guess`, are right as often as `accuracy` or more.

    The p-value of a one-sided binomial test, element by element.
    """
    n_right = np.rint(np.asarray(accuracy, dtype=float) * n)
    found: np.ndarray = bdtrc(n_right - 1, np.asarray(n, dtype=int), np.asarray(guess, dtype=float))
    return found


def at_chance(frame: DataFrame) -> set[tuple[str, int, int]]:
    """The (label, d_model, T) whose accuracy, all seeds together, is not above both chance and floor at LEVEL.

    Answers of one sequence are not independent of each other, so a test sequence counts as one answer, however many
    are scored in it: the test is then cautious about calling an accuracy a result. Points without an accuracy, or
    without anything to compare it with, are not among them.
    """
    cells = frame[POINT].assign(
        accuracy=frame["accuracy"].astype(float),
        n=frame[["n_scored", "n_test"]].astype(float).min(axis=1),
        guess=frame[["chance", "floor"]].astype(float).max(axis=1),
    )
    cells = cells.dropna()
    cells["accuracy"] *= cells["n"]
    merged = cells.groupby(POINT, sort=False).agg({"accuracy": "sum", "n": "sum", "guess": "max"})
    p = guessed(merged["accuracy"] / merged["n"], merged["n"], merged["guess"])
    return set(merged.index[p >= LEVEL])

"""Least squares with coefficients that are never below zero, for many right-hand sides at once."""

from __future__ import annotations

from itertools import product

import numpy as np

FEASIBLE = -1e-12


def solve(columns: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Minimise |columns @ x - target| over x >= 0 for each column of targets: (n, k), (n, m) -> (k, m).

    Columns are independent and few, at most about 8, and of like length. The problem is convex, so its solution is the
    best of the ordinary least-squares solutions over all sets of columns that have no coefficient below zero
    (Lawson and Hanson 1974, chapter 23, find the set step by step; trying all 2^k serves every target at one stroke).
    """
    gram, right = columns.T @ columns, columns.T @ targets
    found = _inverses(gram) @ right  # (2^k, k, m)
    gain = (found * right).sum(axis=1)  # by how much |target|² falls
    gain[(found < FEASIBLE).any(axis=1)] = -np.inf
    best: np.ndarray = found[gain.argmax(axis=0), :, np.arange(targets.shape[1])]
    return best.T.clip(min=0)


def _inverses(gram: np.ndarray) -> np.ndarray:
    """Per set of columns the inverse of its part of `gram`, zero elsewhere: (2^k, k, k)."""
    k = len(gram)
    inverses = np.zeros((2**k, k, k))
    for i, chosen in enumerate(product([False, True], repeat=k)):
        part = np.ix_(chosen, chosen)
        inverses[i][part] = np.linalg.inv(gram[part])
    return inverses

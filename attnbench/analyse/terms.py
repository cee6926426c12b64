"""The terms of a layer's cost, a + b·T + c·T·d + e·T·d² + f·H·T² + g·T²·d, and which of them given sizes tell apart.

Bytes have one more, d²: the gradients of weights, whatever T is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

SAME = 1e-7  # columns of length 1 that are nearer than this to each other are one and the same


class Powers(NamedTuple):
    """The powers of T, d_model and n_heads in one term."""

    T: float
    d_model: float
    n_heads: float


TERMS = {
    "1": Powers(0, 0, 0),
    "T": Powers(1, 0, 0),
    "T d": Powers(1, 1, 0),
    "T d²": Powers(1, 2, 0),
    "H T²": Powers(2, 0, 1),
    "T² d": Powers(2, 1, 0),
}
BYTE_TERMS = {"1": TERMS["1"], "d²": Powers(0, 2, 0)} | TERMS
ALONE: Mapping[float, tuple[str, Powers]] = {
    0: ("1", Powers(0, 0, 0)),
    1: ("T", Powers(1, 0, 0)),
    2: ("T²", Powers(2, 0, 0)),
}  # terms that are one where neither d nor H changes


@dataclass(frozen=True)
class Sizes:
    """T, d_model and n_heads of n measured points, each (n,) floats."""

    T: np.ndarray
    d_model: np.ndarray
    n_heads: np.ndarray

    def where(self, chosen: np.ndarray) -> Sizes:
        """Some of the points."""
        return Sizes(self.T[chosen], self.d_model[chosen], self.n_heads[chosen])

    def column(self, powers: Powers) -> np.ndarray:
        """T^a · d^b · H^c of each point, (n,)."""
        found: np.ndarray = self.T**powers.T * self.d_model**powers.d_model * self.n_heads**powers.n_heads
        return found


@dataclass(frozen=True)
class Distinct:
    """The terms that some sizes tell apart, by name, and in `notes` what became of the others."""

    terms: dict[str, Powers]
    notes: tuple[str, ...] = ()


def distinct(sizes: Sizes, terms: Mapping[str, Powers] = TERMS) -> Distinct | None:
    """Which of these terms can be fitted: those that grow alike are one, and a mixture of others is left out.

    With one d, T, T d and T d² are one term; with two, T d is a mixture of T and T d². Names of terms that are one are
    joined, unless T alone varies: then they are called by their power of T. None where the sizes tell too little even
    then.
    """
    alike = _alike(sizes, terms)
    known = dict(_joined({name: terms[name] for name in names}, sizes) for names in alike)
    notes = [f"{_listed(names)} are one term with these sizes" for names in alike if len(names) > 1]
    for name in list(known):
        if of := _mixed(name, _unit(sizes, known)):
            notes.append(f"{name} is a mixture of {_listed(of)} with these sizes and counts among them")
            del known[name]
    columns = np.stack(list(_unit(sizes, known).values()), axis=1)
    return Distinct(known, tuple(notes)) if np.linalg.matrix_rank(columns, tol=SAME) == len(known) else None


def _unit(sizes: Sizes, terms: Mapping[str, Powers]) -> dict[str, np.ndarray]:
    """Columns of length 1, each point weighed by its own mean over all terms, so that small sizes count too."""
    columns = {name: sizes.column(powers) for name, powers in terms.items()}
    scale = np.exp(np.mean([np.log(column) for column in columns.values()], axis=0))
    return {name: (column / scale) / np.linalg.norm(column / scale) for name, column in columns.items()}


def _alike(sizes: Sizes, terms: Mapping[str, Powers]) -> list[list[str]]:
    """All names of terms, those whose columns are proportional together."""
    unit = _unit(sizes, terms)
    parts = {name: [name] for name in terms}
    for one, other in combinations(terms, 2):
        if one in parts and other in parts and np.linalg.norm(unit[one] - unit[other]) < SAME:
            parts[one] += parts.pop(other)
    return list(parts.values())


def _joined(alike: Mapping[str, Powers], sizes: Sizes) -> tuple[str, Powers]:
    """The name and the powers of terms that are one."""
    powers = {one.T for one in alike.values()}
    fixed = np.ptp(sizes.d_model) == 0 and np.ptp(sizes.n_heads) == 0
    if len(alike) > 1 and fixed and len(powers) == 1:
        return ALONE[powers.pop()]
    return " or ".join(alike), next(iter(alike.values()))


def _mixed(name: str, unit: dict[str, np.ndarray]) -> list[str]:
    """The other terms of which `name` is a sum with positive weights, if it is one."""
    others = [other for other in unit if other != name]
    if not others:
        return []
    weights, miss = nnls(np.stack([unit[other] for other in others], axis=1), unit[name])
    return [other for other, weight in zip(others, weights, strict=True) if weight > SAME] if miss < SAME else []


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))

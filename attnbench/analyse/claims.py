"""What a claim says: its terms, read from text such as "T d^2 + T^1.5 d / chunk", and the highest powers in them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from attnbench.errors import did_you_mean

SIZES: Mapping[str, str] = {"T": "T", "S": "T", "d": "d", "d_model": "d", "d_head": "d", "d_k": "d", "d_v": "d"}
HEADS = "H"
RAISED = {"²": "^2", "³": "^3"}
# A factor: a product sign or a bar before it, a name or a number, a power behind it. A logarithm has the power 0.
FACTOR = re.compile(r"\s*([*·/]?)\s*(?:(log2?\s*(?:\(\s*\w+\s*\)|\w+))|([A-Za-z_]\w*)|(\d+\.?\d*))(?:\^(\d+\.?\d*))?")


@dataclass(frozen=True)
class Product:
    """One term of a claim. T, d: the powers of the sequence length and of the width."""

    text: str
    T: float
    d: float

    def power(self, axis: str) -> float:
        """Of T or of d."""
        return self.T if axis == "T" else self.d


def products(claim: str, options: Collection[str] = ()) -> list[Product]:
    """The terms of a claim in T, S, d, H and a variant's options.

    S is T, as in self-attention; d_head is d / H, with H fixed. A logarithm, a number, H and an option have no power
    of either. Raises ValueError with what cannot be read.
    """
    return [_product(text.strip(), options) for text in claim.split("+")]


def highest(claim: str, axis: str, options: Collection[str] = ()) -> float:
    """The highest power of T or of d in a claim. Raises ValueError as `products` does."""
    return max(product.power(axis) for product in products(claim, options))


def amount(claim: str, values: Mapping[str, float]) -> float:
    """What a claim comes to where T, S, d, H and the options have these values and every constant is 1.

    A letter without a value, and a logarithm, count as 1. Raises ValueError as `products` does.
    """
    products(claim, [*values, *re.findall(r"[A-Za-z_]\w*", claim)])
    for sign, raised in RAISED.items():
        claim = claim.replace(sign, raised)
    return sum(math.prod(_factor(part, values) for part in FACTOR.finditer(term)) for term in claim.split("+"))


def _factor(found: re.Match[str], values: Mapping[str, float]) -> float:
    """The value of one factor of a term."""
    bar, _, name, number, power = found.groups()
    value = float(number) if number else values.get(name, 1.0) if name else 1.0
    return float(value ** (float(power or 1) * (-1 if bar == "/" else 1)))


def _product(text: str, options: Collection[str]) -> Product:
    """One term, with its powers of T and d. Raises ValueError where it cannot be read."""
    plain, powers, at = text, {"T": 0.0, "d": 0.0}, 0
    for sign, raised in RAISED.items():
        plain = plain.replace(sign, raised)
    while at < len(plain) or not plain:
        found = FACTOR.match(plain, at)
        if found is None:
            raise ValueError(f'expected terms like "T^2 d" joined by +, got "{text}"')
        bar, _, name, _, power = found.groups()
        if name is not None and (axis := _axis(name, options)):
            powers[axis] += float(power or 1) * (-1 if bar == "/" else 1)
        at = found.end()
    return Product(text, powers["T"], powers["d"])


def _axis(name: str, options: Collection[str]) -> str | None:
    """The size that a letter stands for; None for one that stays while T and d grow."""
    if name in SIZES:
        return SIZES[name]
    if name == HEADS or name in options:
        return None
    raise ValueError(f'unknown letter "{name}"{did_you_mean(name, [*SIZES, HEADS, *options])}')

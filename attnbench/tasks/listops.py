"""ListOps: what a nested expression of digits comes to. Nangia and Bowman 2018, arXiv 1804.06028; with lengths of 500
to 2,000 it is the first task of Long Range Arena, Tay et al. 2020, arXiv 2011.04006.

[MAX 4 3 [MIN 2 3 ] 1 0 ] comes to 4. Brackets are kept: without them an expression has no one value.

Answers are not uniform, and the first operator alone tells much: [MAX of many arguments is a 9 more often than not.
Models that have learnt no structure stand at `floor`, the score of that guess.

Departures: short expressions by default. For the original size: min_length = 501, max_length = 1999, max_depth = 10,
max_args = 10, T = 2000.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, Le
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, slice_of
from attnbench.tasks.trees import CLOSE, N_DIGITS, OPERATORS, PADDING, Shape, grow, values

_WORDS = (*map(str, range(N_DIGITS)), *(f"[{name}" for name in OPERATORS), "]", "", "=")
_EQUALS = PADDING + 1
_TRIES, _ROUND_TOKENS = 2**15, 2**23  # trees, and tokens, grown at a time at most
_PATIENCE = 64  # rounds without one expression of a legal length
_MEASURED_TOKENS = 2**21  # from which the floor is found


class ListOps(Task):
    """Tell what an expression comes to, at a query token at the end.

    A sequence is the expression, padding, and = at the last position, whose label is the answer; nothing else is
    scored. Operators: MIN, MAX, MED (median, rounded down) and SM (sum modulo 10).
    min_length, max_length: tokens of an expression, brackets counted, an operator and its opening bracket as one; 0: as
    long as fits, T - 1. Trees of other lengths are drawn again, never cut.
    max_depth: levels of a tree, digits included. max_args: arguments of an operator are 2 to max_args.
    p_operator: probability that an argument above the lowest level is an operator.
    Tokens: digits, [MIN, [MAX, [MED, [SM, ], padding, =.
    chance is 1/10. floor is the score of the commonest answer to each first operator, measured once on drawn
    expressions of a fixed seed: 2²¹ tokens' worth, within a point.
    Slices are octaves of the length, named by their lower edge.
    Raises ValueError when T ≤ min_length, max_length ≥ T or max_length < min_length, and from `sample` when trees of
    these lengths are too rare.
    """

    title: ClassVar[str] = "evaluate nested lists of digits"
    slice_unit: ClassVar[str] = "length"
    floor_from: ClassVar[str] = "the first operator"
    chance = 1 / N_DIGITS
    vocab_size = len(_WORDS)

    def __init__(
        self,
        T: int,
        *,
        min_length: Annotated[int, Ge(4)] = 21,
        max_length: Annotated[int, Ge(0)] = 0,
        max_depth: Annotated[int, Ge(2)] = 6,
        max_args: Annotated[int, Ge(2)] = 5,
        p_operator: Annotated[float, Gt(0), Le(1)] = 0.25,
    ) -> None:
        super().__init__(
            T,
            min_length=min_length,
            max_length=max_length,
            max_depth=max_depth,
            max_args=max_args,
            p_operator=p_operator,
        )
        smallest = self.min_T(min_length=min_length, max_length=max_length)
        if smallest > T:
            raise ValueError(f"listops needs T of at least {smallest}, got {T}")
        if 0 < max_length < min_length:
            raise ValueError(f"max_length must be 0 or at least min_length = {min_length}, got {max_length}")
        self.shape = Shape(max_depth, max_args, p_operator, min_length, max_length or T - 1)
        self.edges = edges(min_length, self.shape.max_length)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, *, min_length: int = 21, max_length: int = 0, **options: Any) -> int:
        """The longest expression, the shortest when its length is free, and the query."""
        return max(min_length, max_length) + 1

    @cached_property
    def floor(self) -> float:  # type: ignore[override]  # a cached property may be written to
        """Score of the commonest answer to each first operator."""
        return _floor(self.shape)

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        expressions = _kept(n, self.shape, generator)
        tokens = torch.full((n, self.T), PADDING)
        tokens[:, : self.shape.max_length] = expressions
        tokens[:, -1] = _EQUALS
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, -1] = values(expressions, self.shape.max_depth)
        slices[:, -1] = slice_of((expressions != PADDING).sum(1), self.edges)
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: each expression read once, with a stack of lists."""
        answers = torch.zeros_like(batch.tokens)
        answers[:, -1] = torch.tensor([_value(tokens) for tokens in batch.tokens.tolist()], dtype=torch.int64)
        return answers

    @staticmethod
    def decode(tokens: Tensor) -> str:
        """One sequence (T,) as text, padding left out: "[MAX 4 3 [MIN 2 3 ] 1 0 ] ="."""
        return " ".join(_WORDS[token] for token in tokens.tolist() if token != PADDING)


def _kept(n: int, shape: Shape, generator: Generator) -> Tensor:
    """(n, max_length) expressions. A round draws as many trees as n needs at one in 32."""
    tries = max(1024, min(32 * n, _TRIES, _ROUND_TOKENS // shape.max_length))
    found, barren, missing = [torch.empty(0, shape.max_length, dtype=torch.int64)], 0, n
    while missing > 0:
        found.append(grow(tries, shape, generator)[:missing])
        missing -= len(found[-1])
        barren = 0 if len(found[-1]) else barren + 1
        if barren == _PATIENCE:
            raise ValueError(
                f"listops with {shape} finds no expression: take other lengths, or deeper trees with more arguments"
            )
    return torch.cat(found)


def _value(tokens: list[int]) -> int:
    open_lists: list[list[int]] = [[]]
    for token in tokens:
        if token < N_DIGITS:
            open_lists[-1].append(token)
        elif token < CLOSE:
            open_lists.append([token])
        elif token == CLOSE:
            operator, *arguments = open_lists.pop()
            open_lists[-1].append(_apply(OPERATORS[operator - N_DIGITS], sorted(arguments)))
    return open_lists[0][0]


def _apply(operator: str, arguments: list[int]) -> int:
    """arguments: in ascending order."""
    middle = len(arguments) // 2
    results = {
        "MIN": arguments[0],
        "MAX": arguments[-1],
        "MED": (arguments[middle] + arguments[-middle - 1]) // 2,
        "SM": sum(arguments) % 10,
    }
    return results[operator]


@lru_cache
def _floor(shape: Shape) -> float:
    n = max(2048, min(16_384, _MEASURED_TOKENS // shape.max_length))
    expressions = _kept(n, shape, Generator().manual_seed(0))
    table = torch.zeros(len(OPERATORS), N_DIGITS)
    first = expressions[:, 0] - N_DIGITS
    table.index_put_((first, values(expressions, shape.max_depth)), torch.ones(()), accumulate=True)
    return float(table.amax(1).sum()) / n

"""Dyck-k: which bracket closes next? Bounded depth as in Hewitt et al. 2020, arXiv 2010.07515, and Yao et al. 2021,
arXiv 2105.11115.

A sequence is the start of a well-nested string over n_types pairs of brackets. A fair coin opens or closes; at depth 0
a bracket always opens, at max_depth one always closes. Where a closing bracket comes next, the label is that bracket:
its type is that of the last bracket still open. A model without a stack can tell which types are open, by counting, but
not which of them was opened last.

Departure: only closing brackets are scored, and that one closes is given; the papers ask for all that may come next.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.settings import Role
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, randint, slice_of
from attnbench.tasks.guesses import commonest_share


class Dyck(Task):
    """Name the closing bracket that comes next.

    n_types: of brackets. max_depth: brackets open at once, at most. Tokens: opening brackets, then closing ones.
    chance is 1 / n_types. floor, exact, is the score of the best guess from the last token and from how many brackets
    of each type are open: right behind an opening bracket, and elsewhere the commonest type among those open.
    Slices are octaves of the distance from a closing bracket back to the one it closes, named by their lower edge.
    The distance is odd, and 1 where nothing has to be remembered.
    Raises ValueError when T < max_depth + 1: a shorter sequence may close no bracket.
    """

    title: ClassVar[str] = "close nested brackets of several types"
    slice_unit: ClassVar[str] = "gap"
    roles: ClassVar[tuple[Role, ...]] = ("causal",)
    floor_from: ClassVar[str] = "the last token and the number of open brackets of each type"

    def __init__(self, T: int, *, n_types: Annotated[int, Ge(2)] = 8, max_depth: Annotated[int, Ge(2)] = 8) -> None:
        super().__init__(T, n_types=n_types, max_depth=max_depth)
        smallest = self.min_T(max_depth=max_depth)
        if smallest > T:
            raise ValueError(f"dyck with max_depth = {max_depth} needs T of at least {smallest}, got {T}")
        self.n_types, self.max_depth, self.vocab_size = n_types, max_depth, 2 * n_types
        self.chance, self.floor = 1 / n_types, _floor(T, n_types, max_depth)
        self.edges = edges(1, T - 1)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, *, max_depth: int = 8, **options: Any) -> int:
        """One more than can be opened."""
        return max_depth + 1

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        drawn = randint(2 * self.n_types, (self.T, n), generator).int()  # a coin and a type
        parts = self._nested(drawn < self.n_types, drawn % self.n_types)
        tokens, labels, slices = (part.T.contiguous().long() for part in parts)
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: the bracket that would close next, wherever one is open; each sequence read with a stack."""
        rows = [self._closing(row) for row in batch.inputs.tolist()]
        return torch.tensor(rows, dtype=torch.int64).view(-1, self.T)

    def _closing(self, row: list[int]) -> list[int]:
        stack, answers = [IGNORE], []
        for token in row:
            if token < self.n_types:
                stack.append(token + self.n_types)
            else:
                stack.pop()
            answers.append(stack[-1])
        return answers

    def _nested(self, coins: Tensor, types: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, labels and slices, (T, n) int32 each, of coins (T, n) that open a bracket where that is free, and of
        the type (T, n) of each bracket that opens."""
        octave = slice_of(torch.arange(self.T), self.edges).int()  # of each distance
        depth = torch.zeros(1, types.shape[1], dtype=torch.int64)
        stack = types.new_zeros(self.max_depth, types.shape[1])  # of each open bracket: its position · n_types + type
        tokens, labels, slices = types.clone(), torch.full_like(types, IGNORE), torch.full_like(types, -1)
        for t in range(self.T):
            opens = ((depth == 0) | coins[t]) & (depth < self.max_depth)
            last = stack.gather(0, (depth - 1).clamp_(min=0))[0]
            stack.scatter_(0, depth.clamp(max=self.max_depth - 1), (t * self.n_types + types[t])[None])
            depth += 2 * opens.long() - 1  # where it falls, what was put on the stack just now lies above it
            if t:
                closing, back = self.n_types + last % self.n_types, t - last // self.n_types
                tokens[t] = torch.where(opens[0], types[t], closing)
                labels[t - 1] = closing.masked_fill(opens[0], IGNORE)
                slices[t - 1] = octave[back].masked_fill(opens[0], -1)
        return tokens, labels, slices


@lru_cache
def _floor(T: int, n_types: int, max_depth: int) -> float:
    """Closing brackets that the guess gets right, over all closing brackets, both in the mean of T positions.

    Given how many of each type are open, every order of them is as likely unless the last token has just opened one.
    """
    share = torch.tensor([0.0] + [commonest_share(d, n_types) for d in range(1, max_depth + 1)], dtype=torch.float64)
    closing = torch.tensor([0.0] + [0.5] * (max_depth - 1) + [1.0], dtype=torch.float64)  # P(closes) by depth
    opened, closed = torch.zeros_like(closing), torch.zeros_like(closing)  # P(depth, last token)
    opened[1] = 1.0
    right = scored = 0.0
    for _ in range(T - 1):
        right += float((closing * (opened + closed * share)).sum())
        scored += float((closing * (opened + closed)).sum())
        both = opened + closed
        opened, closed = ((1 - closing) * both).roll(1), (closing * both).roll(-1)
    return right / scored

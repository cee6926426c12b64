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
        tokens, back = self._brackets(n, generator)
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        opens = tokens[:, 1:] < self.n_types
        labels[:, :-1] = tokens[:, 1:].masked_fill(opens, IGNORE)
        slices[:, :-1] = slice_of(back, self.edges)[:, 1:].masked_fill(opens, -1)
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

    def _brackets(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Tokens (n, T), and how far back the bracket stands that each closing one closes (n, T)."""
        drawn = randint(2 * self.n_types, (self.T, n), generator).int()  # a coin and a type
        heads, kinds = drawn < self.n_types, drawn % self.n_types
        depth = torch.zeros(1, n, dtype=torch.int64)
        stack = torch.zeros(self.max_depth, n, dtype=torch.int32)  # t · n_types + type, by depth
        tokens, back = torch.empty_like(kinds), torch.empty_like(kinds)
        for t in range(self.T):
            opens = ((depth == 0) | heads[t]) & (depth < self.max_depth)
            last = stack.gather(0, (depth - 1).clamp_(min=0))[0]
            back[t] = t - last // self.n_types
            tokens[t] = torch.where(opens[0], kinds[t], self.n_types + last % self.n_types)
            new = (t * self.n_types + kinds[t])[None]
            stack.scatter_(0, depth.clamp(max=self.max_depth - 1), new)  # where a bracket closes, nobody reads it
            depth += 2 * opens.long() - 1
        return tokens.T.contiguous().long(), back.T.contiguous()


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

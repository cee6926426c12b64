"""Random ListOps expressions, grown token by token for many at once, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

OPERATORS = ("MIN", "MAX", "MED", "SM")  # the least, the greatest, the median rounded down, the sum modulo 10
N_DIGITS = 10
CLOSE = N_DIGITS + len(OPERATORS)  # tokens: digits, operators with their opening bracket, the closing bracket
PADDING = CLOSE + 1


@dataclass(frozen=True)
class Shape:
    """What expressions are drawn and kept.

    max_depth: levels of a tree, its digits included. max_args: most arguments of an operator, two at least.
    p_operator: probability that an argument above the lowest level is an operator.
    min_length, max_length: tokens of an expression that is kept, both brackets of an operator counted as two.
    """

    max_depth: int
    max_args: int
    p_operator: float
    min_length: int
    max_length: int


def grow(n: int, shape: Shape, generator: Generator) -> Tensor:
    """Draw n trees and keep those of a legal length: (m, max_length) int64 in order of writing, then PADDING.

    One token of every tree at a time; to_come counts the arguments that are due at each level of the open operators.
    """
    tokens = torch.full((n, shape.max_length), PADDING)
    to_come = torch.zeros(n, shape.max_depth, dtype=torch.int64)
    row, level = torch.arange(n), torch.zeros(n, dtype=torch.int64)  # of the trees that still grow
    tokens[:, 0] = _operators(n, generator)
    to_come[:, 0] = _arguments(n, shape, generator)
    kept = []
    for at in range(1, shape.max_length):
        due = to_come[row, level]
        opens = (level + 2 < shape.max_depth) & (torch.rand(len(row), generator=generator) < shape.p_operator)
        digit = torch.randint(N_DIGITS, (len(row),), generator=generator)
        token = torch.where(opens, _operators(len(row), generator), digit)
        closes, opens = due == 0, opens & (due > 0)
        tokens[row, at] = torch.where(closes, CLOSE, token)
        to_come[row, level] = due - (~closes).long()
        level = level + opens.long() - closes.long()
        to_come[row[opens], level[opens]] = _arguments(int(opens.sum()), shape, generator)
        if at + 1 >= shape.min_length:
            kept.append(row[level < 0])
        row, level = row[level >= 0], level[level >= 0]
        if not len(row):
            break
    return tokens[torch.cat(kept).sort().values] if kept else tokens[:0]


def _operators(n: int, generator: Generator) -> Tensor:
    return N_DIGITS + torch.randint(len(OPERATORS), (n,), generator=generator)


def _arguments(n: int, shape: Shape, generator: Generator) -> Tensor:
    return torch.randint(2, shape.max_args + 1, (n,), generator=generator)


def values(tokens: Tensor, max_depth: int) -> Tensor:
    """(n,) int64: what expressions (n, length) come to. It counts, per open operator, how often each digit occurs."""
    n = len(tokens)
    counts = torch.zeros(n, max_depth + 1, N_DIGITS, dtype=torch.int64)  # level 0 holds the result
    operator = torch.zeros(n, max_depth + 1, dtype=torch.int64)
    level = torch.zeros(n, dtype=torch.int64)
    for token in tokens.T:
        (digit,) = (token < N_DIGITS).nonzero(as_tuple=True)
        counts[digit, level[digit], token[digit]] += 1
        (opens,) = ((token >= N_DIGITS) & (token < CLOSE)).nonzero(as_tuple=True)
        level[opens] += 1
        operator[opens, level[opens]] = token[opens] - N_DIGITS
        (closes,) = (token == CLOSE).nonzero(as_tuple=True)
        inner = level[closes]
        value = _apply(operator[closes, inner], counts[closes, inner])
        counts[closes, inner] = 0
        level[closes] -= 1
        counts[closes, inner - 1, value] += 1
    return counts[:, 0].argmax(1)


def _apply(operator: Tensor, counts: Tensor) -> Tensor:
    """(m,) int64: what each operator makes of arguments that are counted by digit, (m, 10)."""
    so_far = counts.cumsum(1)
    total = so_far[:, -1:]

    def ranked(rank: Tensor) -> Tensor:
        """The argument of a rank, from 1 on."""
        return (so_far < rank).sum(1)

    median = (ranked((total + 1) // 2) + ranked(total // 2 + 1)) // 2
    summed = (counts * torch.arange(N_DIGITS)).sum(1) % 10
    results = torch.stack((ranked(torch.ones_like(total)), ranked(total), median, summed), dim=1)
    return results.gather(1, operator[:, None])[:, 0]

"""What the tasks over a running state share: moves, the state after each, training on short ones."""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, randint, slice_of


class Running(Task):
    """A move per position, uniform among the task's; the label there is the state after it, from state 0 on.

    moves: what each token adds to the state, modulo n_states. Tokens: one per move, then padding.
    train_max_T: training and validation sequences have moves in their first train_max_T positions alone, padding behind
    them, which is not scored; 0: all positions. Test sequences have T moves either way.
    chance is 1 / n_states. floor, exact, is the score over T moves of a guess from the position and the last move: the
    likeliest state of the position before, one move on. It knows the first state.
    Slices are octaves of the position, counted from 1 and named by their lower edge, with one more edge where training
    ends.
    Raises ValueError when T < 1.
    """

    slice_unit: ClassVar[str] = "position"
    floor_from: ClassVar[str] = "the position and the last move"

    def __init__(self, T: int, moves: tuple[int, ...], n_states: int, options: dict[str, int]) -> None:
        super().__init__(T, **options)
        if self.min_T() > T:
            raise ValueError(f"{type(self).__name__} needs T of at least {self.min_T()}, got {T}")
        self.moves, self.n_states = moves, n_states
        self.n_moves_drawn, self.train_max_T = T, options["train_max_T"]
        self.padding = max(n_states, len(moves))
        self.vocab_size = self.padding + 1
        self.chance, self.floor = 1 / n_states, _floor(T, moves, n_states)
        self.edges = edges(1, T, self.train_max_T)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, **options: Any) -> int:
        """One move."""
        return 1

    def for_training(self) -> Self:
        """The same with train_max_T moves at most."""
        if not self.train_max_T:
            return self
        shorter = copy(self)
        shorter.n_moves_drawn = min(self.T, self.train_max_T)
        return shorter

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        n_drawn = self.n_moves_drawn
        move = randint(len(self.moves), (n, n_drawn), generator)
        tokens = torch.full((n, self.T), self.padding)
        tokens[:, :n_drawn] = move
        labels = torch.full_like(tokens, IGNORE)
        labels[:, :n_drawn] = torch.tensor(self.moves)[move].cumsum(1) % self.n_states
        slices = torch.full_like(tokens, -1)
        slices[:, :n_drawn] = slice_of(torch.arange(1, n_drawn + 1), self.edges)
        return Batch(tokens, labels, slices)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64, a table of transitions followed from position to position."""
        table = torch.tensor([[(s + move) % self.n_states for s in range(self.n_states)] for move in self.moves])
        state, states = torch.zeros(len(batch), dtype=torch.int64), []
        for token in batch.tokens.clamp(max=len(self.moves) - 1).T:
            state = table[token, state]
            states.append(state)
        return torch.stack(states, dim=1)


@lru_cache
def _floor(T: int, moves: tuple[int, ...], n_states: int) -> float:
    """Mean over T positions of the likeliest state's probability at the position before."""
    probability, total = [1.0] + [0.0] * (n_states - 1), 0.0
    for _ in range(T):
        total += max(probability)
        probability = [sum(probability[(s - move) % n_states] for move in moves) / len(moves) for s in range(n_states)]
    return total / T

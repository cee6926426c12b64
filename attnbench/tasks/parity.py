"""Parity at each position: whether the number of ones so far is odd. Delétang et al. 2023, arXiv 2207.02098.

A finite automaton of two states solves it; self-attention of one depth cannot at every length (Hahn 2020, arXiv
1906.06755). Each bit counts as much as each other, so nothing short of the whole prefix tells the answer.

Departures: a label at each position, not at the end alone, which makes it learnable in hundreds of steps; longer test
sequences lie in the same T as the training ones, which are padded.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Ge

from attnbench.tasks.running import Running


class Parity(Running):
    """The exclusive or of all bits so far. Scores, slices and `train_max_T` as in `Running`. Tokens: 0, 1, padding."""

    title: ClassVar[str] = "tell whether the number of ones so far is odd"

    def __init__(self, T: int, *, train_max_T: Annotated[int, Ge(0)] = 0) -> None:
        super().__init__(T, moves=(0, 1), n_states=2, options={"train_max_T": train_max_T})

"""Counting up and down modulo n_states. The cycle navigation of Delétang et al. 2023, arXiv 2207.02098, appendix A.

Departures: a label at each position, not at the end alone; longer test sequences lie in the same T as the training
ones, which are padded.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from annotated_types import Ge

from attnbench.tasks.running import Running


class ModularCounting(Running):
    """The place on a cycle of n_states after each move. Scores, slices and `train_max_T` as in `Running`.

    Tokens: 0 one back, 1 stay, 2 one on, then padding, above all labels.
    """

    title: ClassVar[str] = "count up and down modulo a number"

    def __init__(self, T: int, *, n_states: Annotated[int, Ge(2)] = 5, train_max_T: Annotated[int, Ge(0)] = 0) -> None:
        super().__init__(T, (-1, 0, 1), n_states, options={"n_states": n_states, "train_max_T": train_max_T})

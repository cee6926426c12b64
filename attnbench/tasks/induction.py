"""Induction: what followed this token before? Olsson et al. 2022, arXiv 2209.11895; with one trigger, Fu et al. 2022,
arXiv 2212.14052 (H3), section 3.

`repeat`: a random string is repeated to the end of the sequence. From its second run on, the label at each position is
the token that followed the same token before. No symbol comes twice in a string, so a token alone says where it stood,
and the first one that comes again says that the repeat has begun. The length of the string is random: with a fixed one
the answer would stand at one fixed distance.
`trigger`: random symbols with one trigger among them, and the trigger once more at the end. The label there is the
symbol behind the first one: one answer per sequence, which attention is slow to learn from.

Departures: strings of different symbols and of random length; in `trigger` only the answer is scored, no next tokens.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Generator, Tensor

from attnbench.settings import Role
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.draw import edges, randint, slice_of

Form = Literal["trigger", "repeat"]
_SHORTEST = 4  # of strings; with two symbols, whoever knows both has the answer
_SMALLEST: dict[Form, int] = {"trigger": 3, "repeat": 2 * _SHORTEST}


class Induction(Task):
    """Find the earlier place of a token and say what came next.

    form: `repeat` scores every position from the second run of the string on; `trigger` the last position.
    n_symbols: symbols to draw from. The strings of `repeat` are 4 … min(T // 2, n_symbols) long, each length as likely.
    Tokens: symbols, then the trigger, which only `trigger` uses.
    chance is 1 / n_symbols. floor in `repeat` is the score of guessing among the other symbols of the string; in
    `trigger` it is chance.
    Slices are octaves of the distance from a token back to its answer, named by their lower edge.
    Raises ValueError when T < 8, or T < 3 for `trigger`.
    """

    title: ClassVar[str] = "say what followed this token before"
    slice_unit: ClassVar[str] = "gap"
    roles: ClassVar[tuple[Role, ...]] = ("causal",)
    floor_from: ClassVar[str] = "another symbol of the string, or chance with one trigger"

    def __init__(self, T: int, *, form: Form = "repeat", n_symbols: Annotated[int, Ge(4)] = 32) -> None:
        super().__init__(T, form=form, n_symbols=n_symbols)
        smallest = self.min_T(form=form)
        if smallest > T:
            raise ValueError(f'induction with form = "{form}" needs T of at least {smallest}, got {T}')
        self.form, self.n_symbols = form, n_symbols
        self.trigger, self.vocab_size = n_symbols, n_symbols + 1
        self.max_length = min(T // 2, n_symbols)
        self.chance = 1 / n_symbols
        self.floor = self._guess_of_string() if form == "repeat" else self.chance
        self.edges = edges(_SHORTEST - 1, self.max_length - 1) if form == "repeat" else edges(1, T - 2)
        self.slice_names = tuple(map(str, self.edges))

    @classmethod
    def min_T(cls, *, form: Form = "repeat", **options: Any) -> int:
        """The shortest string twice; or a trigger, a symbol and the trigger."""
        return _SMALLEST[form]

    def sample(self, n: int, generator: Generator) -> Batch:
        """Draw n sequences; the same generator state gives the same tensors."""
        return self._repeats(n, generator) if self.form == "repeat" else self._triggers(n, generator)

    def solve(self, batch: Batch) -> Tensor:
        """(N, T) int64: each sequence read from left to right, with a note of what followed each token last."""
        rows = batch.inputs.tolist()
        asked = (self.trigger,) if self.form == "trigger" else range(self.n_symbols)
        return torch.tensor([_followers(row, asked) for row in rows], dtype=torch.int64).view(len(rows), self.T)

    def _repeats(self, n: int, generator: Generator) -> Batch:
        length = _SHORTEST + randint(self.max_length - _SHORTEST + 1, (n, 1), generator)
        order = torch.rand(n, self.n_symbols, generator=generator).topk(self.max_length, dim=1).indices
        t = torch.arange(self.T)
        tokens, follower = order.gather(1, t % length), order.gather(1, (t + 1) % length)
        again = t >= length
        slices = slice_of(length - 1, self.edges).expand(tokens.shape)
        return Batch(tokens, follower.masked_fill(~again, IGNORE), torch.where(again, slices, -1))

    def _triggers(self, n: int, generator: Generator) -> Batch:
        at = randint(self.T - 2, (n, 1), generator)  # of the first trigger
        tokens = randint(self.n_symbols, (n, self.T), generator).scatter_(1, at, self.trigger)
        tokens[:, -1] = self.trigger
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, -1:] = tokens.gather(1, at + 1)
        slices[:, -1:] = slice_of(self.T - 2 - at, self.edges)
        return Batch(tokens, labels, slices)

    def _guess_of_string(self) -> float:
        """Right in one of length - 1 cases at each of the T - length scored positions, over all lengths."""
        lengths = range(_SHORTEST, self.max_length + 1)
        scored = sum(self.T - length for length in lengths)
        return sum((self.T - length) / (length - 1) for length in lengths) / scored


def _followers(row: list[int], asked: range | tuple[int, ...]) -> list[int]:
    """At each place of an asked token that came before: what followed it then; elsewhere IGNORE."""
    followed: dict[int, int] = {}
    answers = []
    for t, token in enumerate(row):
        answers.append(followed.get(token, IGNORE) if token in asked else IGNORE)
        if t + 1 < len(row):
            followed[token] = row[t + 1]
    return answers

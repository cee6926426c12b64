"""A task and a mixer of one plugin file: say at the end which token came first."""

from typing import Annotated, ClassVar

import torch
from annotated_types import Ge

from attnbench import Mixer
from attnbench.tasks import IGNORE, Batch, Task


class FirstToken(Task):
    """The label at the last position is the first token."""

    title: ClassVar[str] = "name the first token"

    def __init__(self, T: int, *, n_tokens: Annotated[int, Ge(2)] = 8) -> None:
        super().__init__(T, n_tokens=n_tokens)
        if n_tokens > 100:
            raise ValueError("n_tokens may be 100 at most")
        self.vocab_size, self.chance, self.floor, self.slice_names = n_tokens, 1 / n_tokens, 1 / n_tokens, ("all",)

    def sample(self, n, generator):
        tokens = torch.randint(self.vocab_size, (n, self.T), generator=generator)
        last = torch.arange(self.T) == self.T - 1
        return Batch(tokens, torch.where(last, tokens[:, :1], IGNORE), torch.where(last, 0, -1).expand(n, -1))

    @classmethod
    def min_T(cls, **options):
        return 2


class RunningSum(Mixer):
    """The sum so far."""

    def forward(self, x, *, context=None, key_mask=None):
        return x.cumsum(1)

    @classmethod
    def unsupported(cls, spec, use, **options):
        if spec.role != "causal" or use.decodes:
            return "sums in one direction only"
        return "sums all that came before" if use.mask == "any" else None

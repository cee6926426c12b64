"""Mixers that say odd things of themselves, or end the process when they are built."""

import os
from typing import Annotated

import torch
from annotated_types import Ge

from attnbench import Mixer, Spec


class Odd(Mixer):
    def __init__(self, spec: Spec, *, gamma: Annotated[float, Ge(0)] = 0.5, name: str = "x") -> None:
        super().__init__(spec)
        self.gamma = torch.nn.Parameter(torch.tensor(gamma))
        self.name = lambda: name

    def forward(self, x, *, context=None, key_mask=None):
        return x * self.gamma

    def extra_record(self):
        return {"status": "fast path", "measure": "mine", "tile": self}


class Suicidal(Mixer):
    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        os._exit(7)

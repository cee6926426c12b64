"""Takes 256 MiB to be built and 16 MiB to run; at one length it takes 800 MiB and gives up."""

from typing import Annotated

import torch
from annotated_types import Ge

from attnbench import Mixer, Spec

MIB = 2**20


class Hungry(Mixer):
    def __init__(self, spec: Spec, *, fail_at: Annotated[int, Ge(0)] = 0) -> None:
        super().__init__(spec)
        self.fail_at = fail_at
        torch.ones(256 * MIB // 4)

    def forward(self, x, *, context=None, key_mask=None):
        if self.fail_at == x.shape[1]:
            torch.ones(800 * MIB // 4)
            raise torch.OutOfMemoryError("out of memory, says a device")
        torch.ones(16 * MIB // 4)
        return x.clone()

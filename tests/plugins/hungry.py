"""Takes 64 MiB to build, 16 MiB to run; at one length takes 800 MiB and gives up, in backward where there is one."""

from typing import Annotated

import torch
from annotated_types import Ge

from attnbench import Mixer, Spec

MIB = 2**20


def give_up():
    torch.ones(800 * MIB // 4)
    raise torch.OutOfMemoryError("out of memory, says a device")


class GiveUpLater(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, *grads):
        give_up()


class Hungry(Mixer):
    def __init__(self, spec: Spec, *, fail_at: Annotated[int, Ge(0)] = 0) -> None:
        super().__init__(spec)
        self.fail_at = fail_at
        torch.ones(64 * MIB // 4)

    def forward(self, x, *, context=None, key_mask=None):
        if self.fail_at == x.shape[1]:
            return GiveUpLater.apply(x) if torch.is_grad_enabled() else give_up()
        torch.ones(16 * MIB // 4)
        return x.clone()

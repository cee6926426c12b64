"""A variant with a bad day at certain lengths; a sweep must keep each to its own cell."""

import math
import os
import signal
import time

import torch

from attnbench import Attention

WHAT_AT = {96: "out of memory", 192: "too much memory", 384: "killed", 768: "asleep", 1536: "not a number", 80: "error"}


class Disasters(Attention):
    def attend(self, q, k, v, *extra, key_mask=None):
        self.happen(WHAT_AT.get(q.shape[2], "nothing"))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.d_k)
        if key_mask is not None:
            scores = scores.masked_fill(~key_mask[:, None, None], -math.inf)
        T, S = scores.shape[-2:]
        if self.spec.role == "causal":
            scores = scores.masked_fill(torch.ones(T, S, dtype=torch.bool).triu(S - T + 1), -math.inf)
        blind = (scores == -math.inf).all(-1, keepdim=True)
        weights = scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0)
        return weights @ v * (math.nan if WHAT_AT.get(T) == "not a number" else 1)

    def happen(self, what):
        if what == "out of memory":
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
        if what == "too much memory":
            torch.ones(2**30)
        if what == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "asleep":
            time.sleep(3600)
        if what == "error":
            raise KeyError("nothing is well at this length")

"""torch.cuda as attnbench uses it, over a clock of its own: calls return at once and are done later, errors stick."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from attnbench.measure.device import CUDA

LAUNCH_S = 1e-5


class FakeCuda:
    """wait_s: what a wait costs beyond the work. log: what happened, in order."""

    def __init__(self, *, wait_s=0.0, l2_bytes=4096, total_memory=2**30):
        self.now_s = self.done_s = 0.0
        self.wait_s, self.l2_bytes, self.total_memory = wait_s, l2_bytes, total_memory
        self.log, self.error, self.fraction = [], None, None

    def launch(self, cost_s):
        """A call: it returns at once and is done cost_s after whatever was given before it."""
        self.log.append("call")
        self.now_s += LAUNCH_S
        self.done_s = max(self.now_s, self.done_s) + cost_s

    def launch_bad(self):
        """A call that fails on the device: every wait from now on says so."""
        self.log.append("call")
        self.error = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported"

    def clock(self):
        self.log.append("clock")
        return self.now_s

    def synchronize(self):
        self.log.append("synchronize")
        if self.error:
            raise torch.AcceleratorError(self.error)
        self.now_s = max(self.now_s, self.done_s) + self.wait_s

    def Event(self, enable_timing=False):
        assert enable_timing
        return FakeEvent(self)

    def current_device(self):
        return 0

    def get_device_properties(self, device):
        return SimpleNamespace(L2_cache_size=self.l2_bytes, total_memory=self.total_memory)

    def get_device_name(self):
        return "Fake GPU"

    def set_per_process_memory_fraction(self, fraction):
        assert isinstance(fraction, float)
        self.fraction = fraction


class FakeEvent:
    """Marks the time at which the device gets there."""

    def __init__(self, cuda):
        self.cuda, self.at_s = cuda, None

    def record(self):
        self.cuda.log.append("record")
        self.at_s = max(self.cuda.now_s, self.cuda.done_s)

    def elapsed_time(self, end):
        assert self.cuda.now_s >= end.at_s, "the device has not been waited for"
        return (end.at_s - self.at_s) * 1e3


class Logged(CUDA):
    """The real device over a fake API, its tensors on the CPU, each flush in the log."""

    def __init__(self, cuda):
        super().__init__(cuda, place="cpu")
        self.log = cuda.log

    def flush(self):
        self.log.append("flush")
        super().flush()

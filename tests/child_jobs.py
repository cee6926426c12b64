"""What the tests of fresh processes run in them."""

import os
import subprocess
import sys
import time


def add(a, b):
    return a + b


def pid_and_group():
    return os.getpid(), os.getpgrp()


def torch_is_loaded():
    return "torch" in sys.modules


def raise_(kind, message):
    raise kind(message)


def kill_self(number):
    os.kill(os.getpid(), number)
    time.sleep(60)


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def sleep_with_child(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    with open(path, "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(300)


def leave(status):
    os._exit(status)


def say_and_leave(text):
    os.write(2, text.encode())
    os._exit(1)


def allocate(mib):
    import torch

    return torch.ones(mib * 2**18).numel()


def allocate_under_limit(mib, limit_mib):
    from attnbench.measure.device import open_device

    open_device("cpu").limit_memory(limit_mib * 2**20)
    return allocate(mib)


def main_file():
    return getattr(sys.modules["__main__"], "__file__", None)


def stay_at(stage):
    from attnbench.execute import stages

    for n in range(20):
        stages.at(f"step {n}")
    stages.at(stage)
    time.sleep(60)


def die_at(stage, status):
    from attnbench.execute import stages

    stages.at("importing another.py")
    stages.at(stage)
    os._exit(status)


def time_on_fake_gpu(bad_call):
    """Seconds of a call on a GPU that breaks at the bad_call-th call, if any."""
    import itertools

    from fake_cuda import FakeCuda, Logged

    from attnbench.measure.clock import time_call
    from attnbench.settings import TimingSettings

    cuda, numbers = FakeCuda(), itertools.count(1)

    def call():
        return cuda.launch_bad() if next(numbers) == bad_call else cuda.launch(0.05)

    return time_call(call, TimingSettings(), device=Logged(cuda), clock=cuda.clock).samples_s


def device_context():
    """Whether there is one, and whether this process may still make one."""
    import torch

    return {"live": torch.cuda.is_initialized(), "can_be_made": not torch.cuda._is_in_bad_fork()}


def own_peak():
    """The resident peak of this process, as a visit reads it."""
    from attnbench.measure.memory import resident_peak_bytes

    return resident_peak_bytes(lambda: None)


def inherited_peak():
    """The same from an account that goes on over a process's birth."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_rise():
    """By how many bytes a call that takes 64 MiB lifts the resident peak, after one of 256 MiB; None if not told."""
    import torch

    from attnbench.measure.memory import resident_peak_bytes, status_bytes

    torch.ones(64 * 2**20)
    before, peak = status_bytes("VmRSS"), resident_peak_bytes(lambda: torch.ones(16 * 2**20))
    return None if before is None or peak is None else peak - before


def resident_rise_without_reset():
    """The same, when the peak is not reset before the call."""
    import tempfile
    from pathlib import Path

    from attnbench.measure import memory

    memory._CLEAR_REFS = Path(tempfile.mkdtemp()) / "clear_refs"
    return resident_rise()

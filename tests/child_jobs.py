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
    from attnbench.execute.cell import limit_memory

    limit_memory(limit_mib * 2**20, 1)
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

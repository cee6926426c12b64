"""What holds for all tests: one thread, and signals that end the suite whatever a command did with them."""

import signal

import pytest
import torch

# The suite shares its machine, and two threads that wait for a core are slower than one.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_signals():
    """A command that runs in this process has handlers of its own; they go with the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)

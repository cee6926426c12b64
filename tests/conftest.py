"""What holds for all tests: one thread, no deadline, signals that end the suite, and one look at the machine."""

import signal

import pytest
import torch
from hypothesis import settings
from remembered import Remembered

# The suite shares its machine, and two threads that wait for a core are slower than one.
torch.set_num_threads(1)

# No test is timed, by hypothesis neither: on a busy machine any example may take long.
settings.register_profile("attnbench", deadline=None)
settings.load_profile("attnbench")


@pytest.fixture(autouse=True)
def _own_signals():
    """A command that runs in this process has handlers of its own; they go with the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="session")
def _remembered():
    """Runs of this process measure the machine and try the package's own variants once."""
    with pytest.MonkeyPatch.context() as patch:
        Remembered().put_in(patch)
        yield

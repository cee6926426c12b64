"""What else the machine does: whether it is quiet, and a neighbour that keeps one core busy on purpose."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from attnbench.measure.quiet import SLOWDOWN, sentinel_s
from attnbench.statistics import median

OTHERS = 0.1  # the share of the machine that others may use while it is called quiet
LOOK_S = 0.3
N_SENTINELS = 3
_SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(100_000))"


class Watch:
    """Tells whether the machine is quiet now, by the sentinel of `measure.quiet` and by what others use of it.

    A sentinel alone would not see a neighbour on a core of its own. others: the share of all cores in use while this
    process does nothing.
    """

    def __init__(self, sentinel: Callable[[], float] = sentinel_s, others: Callable[[], float] | None = None) -> None:
        self._sentinel, self._others, self._best_s = sentinel, others or used_share, math.inf

    def quiet(self) -> bool:
        """Look for less than a second. The best sentinel is learnt as it goes."""
        others = self._others()
        taken = [self._sentinel() for _ in range(N_SENTINELS)]
        self._best_s = min(self._best_s, *taken)
        return others <= OTHERS and median(taken) <= SLOWDOWN * self._best_s


def used_share() -> float:
    """The share of all cores that is in use while this process sleeps."""
    return float(psutil.cpu_percent(interval=LOOK_S)) / 100


@contextmanager
def busy_neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """A process that keeps one core busy and ends with this block, or with this process if that ends first.

    Raises RuntimeError when it has ended before, so that what was measured had no neighbour.
    """
    with subprocess.Popen([sys.executable, "-c", _SPIN, str(os.getpid())]) as process:
        try:
            yield process
            if process.poll() is not None:
                raise RuntimeError(f"the busy neighbour ended by itself with status {process.returncode}")
        finally:
            process.kill()

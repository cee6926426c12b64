"""The clock beside torch.utils.benchmark: one callable, one process, one thread, timed by both in turns."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.utils.benchmark import Timer

from attnbench.measure.clock import time_call
from attnbench.measure.device import CPU
from attnbench.settings import TimingSettings
from attnbench.statistics import median

Call = Callable[[], object]
WIDTH = 96  # a product of square matrices of this width takes some tens of microseconds
N_CALLS = 5  # a pair samples at least so many


def ratios(target_s: float, n_pairs: int, least_s: float) -> list[float]:
    """Our median over torch's, n_pairs times, of a callable that takes about target_s. Runs in a fresh process.

    least_s: seconds that each clock samples for at least, where N_CALLS calls take less.
    """
    torch.set_num_threads(1)
    call, seconds = products(target_s), max(least_s, N_CALLS * target_s)
    return in_turns(lambda: ours_s(call, seconds), lambda: theirs_s(call, seconds), n_pairs)


def in_turns(ours: Callable[[], float], theirs: Callable[[], float], n_pairs: int) -> list[float]:
    """The ratio of each pair; who comes first changes from pair to pair, so that a drift favours neither."""
    found = []
    for pair in range(n_pairs):
        if pair % 2:
            below = theirs()
            found.append(ours() / below)
        else:
            above = ours()
            found.append(above / theirs())
    return found


def products(target_s: float) -> Call:
    """As many matrix products as take about target_s."""
    x = torch.ones(WIDTH, WIDTH)
    once_s = ours_s(lambda: x @ x, 0.05)
    n = max(1, math.ceil(target_s / once_s))

    def call() -> None:
        for _ in range(n):
            x @ x

    return call


def ours_s(call: Call, seconds: float) -> float:
    """Seconds per call, by the clock of a visit."""
    settings = TimingSettings(warmup_s=seconds / N_CALLS, max_s=seconds, precision=1e-9)
    return median(time_call(call, settings, device=CPU()).samples_s)


def theirs_s(call: Call, seconds: float) -> float:
    """Seconds per call, by torch.utils.benchmark."""
    taken = Timer("call()", globals={"call": call}, num_threads=1).blocked_autorange(min_run_time=seconds)
    return median([raw_s / taken.number_per_run for raw_s in taken.raw_times])

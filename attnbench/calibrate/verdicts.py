"""Whether verdicts say what is there: nothing between one implementation and itself, a tenth where it is a tenth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pandas import DataFrame

from attnbench.analyse import compare
from attnbench.analyse.compare import FASTER, SLOWER
from attnbench.analyse.points import TIME, points
from attnbench.calibrate.rows import Line, Row
from attnbench.calibrate.runs import ran

SHARE_WRONG, SHARE_FOUND = 0.05, 0.9
D_MODEL, N_HEADS = 64, 4
TWIN = '''"""Fused attention, and then nothing for a tenth of its time."""

import time
from importlib.metadata import entry_points

(fused,) = entry_points(group="attnbench.variants", name="fused")


class Twin(fused.load()):
    def forward(self, x, **more):
        start_s = time.perf_counter()
        y = super().forward(x, **more)
        end_s = start_s + 1.1 * (time.perf_counter() - start_s)
        while time.perf_counter() < end_s:
            pass
        return y
'''


def null_test(n_runs: int) -> Row[list[str]]:
    """One implementation under two labels; half of the runs beside a neighbour."""
    variants = ["fused", {"name": "fused", "n_kv_heads": N_HEADS}]
    grid = {"variant": variants, "T": [128, 512], "d_model": D_MODEL, "n_heads": N_HEADS}
    allowed = max(1, int(SHARE_WRONG * n_runs))
    line = Line[list[str]](
        "null test: one implementation under two labels is called faster or slower",
        f"at most {allowed} of {n_runs}",
        lambda runs: f"{_n_different(runs)} of {len(runs)} runs",
        lambda idle, busy: _n_different([*idle, *busy]) <= allowed,
    )
    return Row(lambda: verdicts(ran(grid).frame), (line,), n_runs - n_runs // 2, n_runs // 2)


def power_test(n_idle: int, n_busy: int) -> Row[list[str]]:
    """A twin that does the same work and then waits for a tenth of the time it took."""
    grid = {"variant": ["fused", "twin"], "T": 256, "d_model": D_MODEL, "n_heads": N_HEADS}
    needed = math.ceil(SHARE_FOUND * n_idle)
    line = Line[list[str]](
        "power test: a twin 10 % slower is called slower",
        f"at least {needed} of {n_idle} idle, never faster",
        lambda runs: f"slower in {_n(runs, SLOWER)} of {len(runs)} runs, faster in {_n(runs, FASTER)}",
        lambda idle, busy: _n(idle, SLOWER) >= needed and not _n([*idle, *busy], FASTER),
    )
    return Row(lambda: verdicts(ran(grid, plugin=TWIN).frame), (line,), n_idle, n_busy)


def verdicts(frame: DataFrame) -> list[str]:
    """What is said of the other label, at each T, corrected over all of them."""
    found = compare.verdicts(points(frame, TIME), "fused")
    return [str(verdict) for verdict in found["verdict_corrected"]]


def _n(runs: Sequence[list[str]], verdict: str) -> int:
    return sum(verdict in run for run in runs)


def _n_different(runs: Sequence[list[str]]) -> int:
    return sum(not {FASTER, SLOWER}.isdisjoint(run) for run in runs)

"""Rows about the clock beside another, and about what a visit costs beyond what it measures."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.calibrate.rows import Line, Row
from attnbench.calibrate.runs import Ran, ran
from attnbench.execute.local import FreshProcesses
from attnbench.statistics import median

WITHIN = 0.03
DURATIONS_S = {50e-6: "50 µs", 500e-6: "500 µs", 5e-3: "5 ms", 50e-3: "50 ms", 500e-3: "500 ms"}
OVERHEAD_S, WALL_RATIO = 0.06, 1.25
TIMEOUT_S = 300.0


def agreement(target_s: float, n_pairs: int, least_s: float) -> Row[float]:
    """Time by our clock over time by torch's, of something that takes about target_s."""
    line = Line[float](
        f"time over that of torch.utils.benchmark, at {DURATIONS_S[target_s]}",
        f"{1 - WITHIN:.2f} to {1 + WITHIN:.2f} idle",
        lambda found: f"{median(found):.3f}",
        lambda idle, busy: abs(median(idle) - 1) <= WITHIN,
    )
    return Row(lambda: median(_ratios(target_s, n_pairs, least_s)), (line,))


def _ratios(target_s: float, n_pairs: int, least_s: float) -> list[float]:
    with FreshProcesses() as processes:
        arguments = target_s, n_pairs, least_s
        outcome = processes.call("attnbench.calibrate.clocks:ratios", *arguments, timeout_s=TIMEOUT_S)
    if outcome.status != "ok":
        raise RuntimeError(f"two clocks: {outcome.reason or outcome.status}")
    ratios: list[float] = outcome.value
    return ratios


def cost_of_visits(lengths: Sequence[int]) -> Row[tuple[float, float]]:
    """What a run takes beyond samples and warm-up, of cells that sample for half a second."""
    grid = {"variant": ["fused", "linear"], "T": list(lengths), "d_model": 64}
    timing = {"visits": 3, "warmup_s": 0.1, "max_s": 0.5, "precision": 1e-9}
    overhead = Line[tuple[float, float]](
        "cost of a visit beside samples and warm-up, median",
        f"at most {OVERHEAD_S:g} s idle",
        lambda found: f"{found[0][0]:.3f} s",
        lambda idle, busy: idle[0][0] <= OVERHEAD_S,
    )
    wall = Line[tuple[float, float]](
        "wall time of a whole run over its samples and warm-up, cells that sample for 0.5 s",
        f"at most {WALL_RATIO:g} idle",
        lambda found: f"{found[0][1]:.2f}",
        lambda idle, busy: idle[0][1] <= WALL_RATIO,
    )
    return Row(lambda: costs(ran(grid, timing=timing)), (overhead, wall))


def costs(run: Ran) -> tuple[float, float]:
    """The median of what visits took beside measuring, in seconds, and wall time over that of measuring."""
    measuring_s = sum(record["sampled_s"] + record["warmup_s"] for record in run.records)
    return median([record["overhead_s"] for record in run.records]), run.wall_s / measuring_s

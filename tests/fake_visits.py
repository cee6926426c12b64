"""Runs whose visits are made up: no process starts, and time passes only when a visit says so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from run_rows import tiny_cell

from attnbench.execute import runner
from attnbench.execute.listener import Listener
from attnbench.execute.local import Outcome
from attnbench.execute.orders import Judgement
from attnbench.execute.plan import Plan
from attnbench.registry import Source
from attnbench.run_folder import RunFolder
from attnbench.sweep import Sweep

LEVEL_S = 4e-3


def timed(*samples_s, slow=1.0, **more):
    """What a visit of a quiet machine gives; slow: by which factor its sentinels were slower than the level."""
    return {
        "status": "ok",
        "reason": None,
        "samples_s": [*samples_s] or [1.0] * 6,
        "sampled_s": 1.0,
        "warmup_s": 0.2,
        "device": "cpu",
        "threads": 1,
        "cpu_s": 1.0,
        "switches": 0,
        "steal_s": 0.0,
        "sentinel_before_s": LEVEL_S,
        "sentinel_after_s": LEVEL_S * slow,
        "flags": [],
    } | more


class FakeProcesses:
    """visit(T, n): the fields, or the Outcome, of the n-th visit of a cell. made: T and measure, in order."""

    def __init__(self, visit, clock):
        self.visit, self.clock, self.made, self.calls = visit, clock, [], []

    def call(self, function, *arguments, timeout_s=None):
        self.calls.append(function)
        return Outcome("ok", LEVEL_S)

    def run(self, jobs, at_once):
        for job in jobs:
            if job.function.endswith(":check"):
                yield job, Outcome("ok")
                continue
            (order,) = job.arguments  # one job, one process, one visit
            self.made.append((order.cell.T, order.measure))
            self.clock.now_s += 1.0
            gave = self.visit(order.cell.T, self.made.count(self.made[-1]))
            yield job, gave if isinstance(gave, Outcome) else Outcome("ok", gave, seconds=1.3)

    @property
    def lengths(self):
        return [T for T, _ in self.made]


class FakeClock:
    """Stands in for the module time in the runner."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s


def conduct(
    monkeypatch,
    path,
    visit,
    *,
    lengths=(8, 9, 10, 11),
    measures=("time",),
    budget_s=float("inf"),
    narrow=True,
    reason=None,
    **timing,
):
    """A run over cells that differ in T; every visit takes a second. Gives the processes, and the listener's count.

    reason: why the cells cannot run.
    """
    clock = FakeClock()
    monkeypatch.setattr(runner, "time", clock)
    cells = tuple(tiny_cell(T=T, S=T, max_T=T, digest=f"{T:x}", measures=measures) for T in lengths)
    sweep = Sweep.model_validate({"grid": [{}], "timing": timing})
    catalogue = SimpleNamespace(variant_sources={"dense": Source("dense", "here", "dense:Dense")}, task_sources={})
    plan = Plan(Path("s.toml"), sweep, cells, (), (Judgement(reason),) * len(cells), catalogue, "dense", 60.0, {})
    processes, listener, folder = FakeProcesses(visit, clock), Counter(), RunFolder.create(path)
    folder.begin("", (cell.row() for cell in cells), {})
    try:
        asked = runner.Conduct(1, (), False, budget_s, narrow and budget_s < float("inf"))
        runner._Work(plan, folder, processes, asked, listener).do()
    finally:
        folder.close()
    return processes, listener


class Counter(Listener):
    """announced, settled: visits. narrowed: cells of each further round."""

    def __init__(self):
        self.announced = self.settled_visits = 0
        self.narrowed = []

    def started(self, *, run, n_cells, expected_s):
        self.announced = len(expected_s)

    def ended(self, *, cell, record, n_visits, took_s, expected_s, detail):
        self.settled_visits += n_visits

    def narrowing(self, *, n_cells):
        self.narrowed.append(n_cells)

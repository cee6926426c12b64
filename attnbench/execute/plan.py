"""What would run: a sweep file looked up, validated and expanded, and every cell judged, before anything is spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnbench import plugin_files
from attnbench.catalogue import Catalogue
from attnbench.cells import Cell, expand, repeated
from attnbench.errors import RequestError, did_you_mean
from attnbench.execute.local import FreshProcesses, Job
from attnbench.execute.orders import Judgement, Visit
from attnbench.measure.machine import package_version, usable_cores
from attnbench.settings import Measure
from attnbench.sweep import Sweep, VariantUse, timeout_of, validate, wanted_tasks, wanted_variants

QUESTION_TIMEOUT_S = 120.0  # a sweep's own timeout bounds it when smaller
SHORTEST_TIMEOUT_S = 10.0  # but a good variant needs so long for an answer on a busy machine
FLOPS_PER_S = {"cpu": 5e10, "cuda": 2e13}  # a guess at one core, and at a GPU; what visits really take corrects it
START_S = {"cpu": 0.1, "cuda": 2.0}  # the same of what a visit takes before it measures
COMPILE_S = 20.0  # and of compiling
GPU_WORKERS = 4  # each process on a GPU keeps some of its memory


@dataclass(frozen=True)
class Plan:
    """A validated request: what would run, and what cannot.

    repeated: points that ask again for an earlier one. plugins: as `plugin_files.find` gives them.
    """

    path: Path
    sweep: Sweep
    cells: tuple[Cell, ...]
    repeated: tuple[Cell, ...]
    judgements: tuple[Judgement, ...]
    catalogue: Catalogue
    baseline: str
    timeout_s: float
    plugins: Mapping[str, Path]

    def order(self, cell: Cell, measure: Measure, weights: Path | None = None) -> Visit:
        """What a process is sent to do. weights: the folder where weights of pretraining are kept, if anywhere."""
        sources, sweep = self.catalogue, self.sweep
        task = sources.task_sources[cell.task_name] if cell.task_name else None
        variants = tuple(sources.variant_sources[part.name] for part in cell.parts)
        cross = sources.variant_sources[cell.cross] if cell.cross else None
        pretrain = sources.task_sources[cell.pretrain_name] if cell.pretrain_name else None
        training = sweep.train.model_copy(update={"n_training": cell.n_training})
        return Visit(
            cell.built, measure, variants, task, sweep.timing, training, sweep.memory_limit, cross, pretrain, weights
        )

    def expected_s(self, cell: Cell, measure: Measure, flops: float | None) -> float:
        """A guess at what one visit takes, from the cost formula."""
        call_s = (flops or 1e8) / FLOPS_PER_S[cell.device] / cell.threads
        start_s = START_S[cell.device] + (COMPILE_S if cell.compile else 0.0)
        if measure == "memory":
            return start_s + 4 * call_s
        if measure == "accuracy":
            n_trainings = len(self.sweep.train.lr) + (cell.pretrain is not None)
            return 1.0 + start_s + self.sweep.train.steps * n_trainings * call_s
        timing = self.sweep.timing
        return start_s + max(timing.warmup_s, 2 * call_s) + max(timing.max_s, call_s)

    def n_visits(self, measure: Measure) -> int:
        """Processes for this measure of one cell."""
        return self.sweep.timing.visits if measure == "time" else 1

    def wanted(self, cell: Cell) -> dict[Measure, int]:
        """How many visits each measure of a cell is to have."""
        return {measure: self.n_visits(measure) for measure in cell.measures}

    def total_s(self, workers: int) -> float:
        """A guess at what all that can run takes, with so many visits side by side where that is allowed."""
        return sum(
            self.n_visits(measure) * self.expected_s(cell, measure, judged.flops) / at_once([cell], measure, workers)
            for cell, judged in zip(self.cells, self.judgements, strict=True)
            for measure in cell.measures
            if judged.reason is None
        )


def at_once(cells: Sequence[Cell], measure: Measure | None, workers: int) -> int:
    """How many visits (without a measure: checks) run side by side; one for time, and for memory on a GPU."""
    on_gpu = any(cell.device != "cpu" for cell in cells)
    if measure == "time" or (measure == "memory" and on_gpu):
        return 1
    threads = max((cell.threads for cell in cells if measure), default=1)
    return max(1, (min(workers, GPU_WORKERS) if on_gpu else workers) // threads)


def make_plan(
    processes: FreshProcesses,
    path: Path,
    tables: dict[str, Any],
    *,
    plugins: plugin_files.Files = (),
    timeout_s: float | None = None,
) -> Plan:
    """Validate and expand what a sweep file says. Raises RequestError with every mistake; nothing has run then."""
    files = plugin_files.find(tables, path, plugin_files.listed(plugins))
    limit_s = timeout_s or timeout_of(tables)
    processes.warm_up()
    asked = processes.call(
        "attnbench.execute.describe:catalogue",
        wanted_variants(tables),
        wanted_tasks(tables),
        [str(file) for file in files.values()],
        timeout_s=bounded(QUESTION_TIMEOUT_S, limit_s),
    )
    if asked.status != "ok":
        raise RequestError([f"{path}: what it names cannot be looked up: {asked.reason}"])
    catalogue: Catalogue = asked.value
    sweep = validate(tables, str(path), catalogue)
    context = f"torch {package_version('torch')}"
    asking_s = bounded(QUESTION_TIMEOUT_S, limit_s)
    cells, unmatched = _matched(processes, sweep, expand(sweep, catalogue, context), catalogue, path, asking_s)
    again = tuple(repeated(sweep, catalogue, context))
    judged = zip(cells, _judged(processes, cells, catalogue, asking_s), strict=True)
    judgements = tuple(one if one.reason else replace(one, reason=unmatched.get(cell.id)) for cell, one in judged)
    baseline = _baseline(sweep, cells, path)
    return Plan(path, sweep, cells, again, judgements, catalogue, baseline, limit_s, files)


def bounded(longest_s: float, timeout_s: float) -> float:
    """The limit of what is not a visit: as long as a visit may take, within reason."""
    return min(longest_s, max(timeout_s, SHORTEST_TIMEOUT_S))


def _judged(
    processes: FreshProcesses, cells: Sequence[Cell], catalogue: Catalogue, timeout_s: float
) -> tuple[Judgement, ...]:
    """Ask about the cells of each variant in a process of its own; one that dies over it leaves its cells to try."""
    by_variant: dict[str, list[Cell]] = {}
    for cell in cells:
        by_variant.setdefault(cell.variant, []).append(cell)
    sources = catalogue.variant_sources, catalogue.task_sources
    jobs = [
        Job("attnbench.execute.describe:judge", ([cell.built for cell in own], *sources), timeout_s, tag=own)
        for own in by_variant.values()
    ]
    judged: dict[str, Judgement] = {}
    for job, outcome in processes.run(jobs, usable_cores()):
        if outcome.status == "ok":
            judged |= {cell.id: judgement for cell, judgement in zip(job.tag, outcome.value, strict=True)}
    return tuple(judged.get(cell.id, Judgement()) for cell in cells)


def _matched(
    processes: FreshProcesses, sweep: Sweep, cells: Sequence[Cell], catalogue: Catalogue, path: Path, timeout_s: float
) -> tuple[tuple[Cell, ...], dict[str, str]]:
    """The cells at the sizes that make each like the reference in what it asks for; and by id, why one cannot be.

    The cells of each variant are solved in a process of their own; where it dies, they cannot be matched.
    """
    parts = _reference(sweep, cells, path)
    by_variant: dict[str, list[int]] = {}
    for i, cell in enumerate(cells):
        if cell.match != "none":
            by_variant.setdefault(cell.variant, []).append(i)
    sources, done, reasons = (catalogue.variant_sources, catalogue.task_sources), [*cells], dict[str, str]()
    jobs = [
        Job("attnbench.execute.match:matched", ([cells[i] for i in own], parts, *sources), timeout_s, tag=own)
        for own in by_variant.values()
    ]
    for job, outcome in processes.run(jobs, usable_cores()):
        failed = [(cells[i], f"cannot be matched: {outcome.reason}") for i in job.tag]
        for i, (cell, why) in zip(job.tag, outcome.value if outcome.status == "ok" else failed, strict=True):
            done[i] = cell
            reasons |= {cell.id: why} if why else {}
    return tuple(done), reasons


def _reference(sweep: Sweep, cells: Sequence[Cell], path: Path) -> tuple[VariantUse, ...]:
    """What fills the layers of the variant that others are matched to. Raises RequestError where there is none."""
    if sweep.match_to and all(cell.match == "none" for cell in cells):
        raise RequestError([f'{path}: match_to: has no effect without match = ["params"] or the like in a grid'])
    wanted = label_of(sweep.match_to, cells, f"{path}: match_to") or _baseline(sweep, cells, path)
    return next(cell.parts for cell in cells if cell.label == wanted)


def _baseline(sweep: Sweep, cells: Sequence[Cell], path: Path) -> str:
    """The label that ratios are taken against: fused if present, else the first, where the sweep names none."""
    usual = next((cell.label for cell in cells if cell.variant == "fused"), cells[0].label)
    return label_of(sweep.baseline, cells, f"{path}: baseline") or usual


def label_of(wanted: str | None, cells: Sequence[Cell], key: str) -> str | None:
    """The label of a variant that a sweep names by it or by its name. Raises RequestError where there is none."""
    labels = dict.fromkeys(cell.label for cell in cells)
    by_variant = {cell.variant: cell.label for cell in reversed(cells)}
    if wanted is None or wanted in labels:
        return wanted
    if wanted in by_variant:
        return by_variant[wanted]
    raise RequestError([f'{key}: "{wanted}" is not among the variants{did_you_mean(wanted, labels)}'])

"""A whole run: from a sweep file to a folder of records. Decides what is visited, in which order, and nothing else.

    read ─▶ ask what the names mean ─▶ validate ─▶ expand ─▶ ask what can run ─▶ check promises ─▶ visit ─▶ record

Time is measured one visit after the other; checks, memory and accuracy visits run side by side.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench import plugin_files
from attnbench.catalogue import Catalogue
from attnbench.cells import Cell, expand
from attnbench.errors import RequestError, did_you_mean
from attnbench.execute.listener import Listener, Quiet
from attnbench.execute.local import FreshProcesses, Job, Outcome
from attnbench.execute.orders import Judgement, Visit
from attnbench.measure.machine import environment, package_version, processor, usable_cores
from attnbench.records import AS_ASKED, Record, Run, RunFolder, read_records, visits_left
from attnbench.settings import Measure, size
from attnbench.sweep import Sweep, read_toml, timeout_of, validate, wanted_tasks, wanted_variants

CHECK_TIMEOUT_S = 60.0  # a sweep's own timeout bounds it when smaller, and the next one too
QUESTION_TIMEOUT_S = 120.0
SHORTEST_TIMEOUT_S = 10.0  # but a good variant needs so long for them on a busy machine
FLOPS_PER_S = 2e10  # a guess at one core, to expect times by; what visits really take corrects it


@dataclass(frozen=True)
class Plan:
    """A validated request: what would run, and what cannot. plugins: as `plugin_files.find` gives them."""

    path: Path
    sweep: Sweep
    cells: tuple[Cell, ...]
    judgements: tuple[Judgement, ...]
    catalogue: Catalogue
    baseline: str
    timeout_s: float
    plugins: Mapping[str, Path]

    def order(self, cell: Cell, measure: Measure) -> Visit:
        """What a process is sent to do."""
        sources, sweep = self.catalogue, self.sweep
        task = sources.task_sources[cell.task] if cell.task else None
        variant = sources.variant_sources[cell.variant]
        cross = sources.variant_sources[cell.cross] if cell.cross else None
        return Visit(cell, measure, variant, task, sweep.timing, sweep.train, sweep.memory_limit, cross)

    def expected_s(self, cell: Cell, measure: Measure, flops: float | None) -> float:
        """A guess at what one visit takes, from the cost formula."""
        call_s = (flops or 1e8) / FLOPS_PER_S / cell.threads
        if measure == "memory":
            return 0.1 + 4 * call_s
        if measure == "accuracy":
            return 1.0 + self.sweep.train.steps * len(self.sweep.train.lr) * call_s
        timing = self.sweep.timing
        return 0.1 + max(timing.warmup_s, 2 * call_s) + max(timing.max_s, call_s)


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
        timeout_s=_bounded(QUESTION_TIMEOUT_S, limit_s),
    )
    if asked.status != "ok":
        raise RequestError([f"{path}: what it names cannot be looked up: {asked.reason}"])
    catalogue: Catalogue = asked.value
    sweep = validate(tables, str(path), catalogue)
    context = f"torch {package_version('torch')} on {processor()}"
    cells = tuple(expand(sweep, catalogue, context))
    judgements = _judged(processes, cells, catalogue, _bounded(QUESTION_TIMEOUT_S, limit_s))
    return Plan(path, sweep, cells, judgements, catalogue, _baseline(sweep, cells, path), limit_s, files)


def _bounded(longest_s: float, timeout_s: float) -> float:
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
    jobs = [Job("attnbench.execute.describe:judge", (own, *sources), timeout_s, tag=own) for own in by_variant.values()]
    judged: dict[str, Judgement] = {}
    for job, outcome in processes.run(jobs, usable_cores()):
        if outcome.status == "ok":
            judged |= {cell.id: judgement for cell, judgement in zip(job.tag, outcome.value, strict=True)}
    return tuple(judged.get(cell.id, Judgement()) for cell in cells)


def run(
    sweep: str | Path,
    *,
    out: str | Path | None = None,
    overrides: Iterable[str] = (),
    plugins: plugin_files.Files = (),
    resume: bool = False,
    overwrite: bool = False,
    timeout_s: float | None = None,
    workers: int | None = None,
    retry: Collection[str] = (),
    fail_fast: bool = False,
    start_method: str | None = None,
    listener: Listener | None = None,
) -> Run:
    """Run a sweep file and return its run folder (`out`, else a new one under results/).

    overrides: `KEY=VALUE` strings as for --set. plugins: a file or several. resume: work only on what an earlier run
    of this folder left. timeout_s: seconds for each visit, instead of the file's. workers: visits side by side where
    that is allowed, default the number of usable cores. retry: statuses that a resumed run tries again. fail_fast:
    stop at the first cell that goes wrong; what is left stays pending. Raises RequestError before anything runs when
    the request is wrong.
    """
    path, overrides = Path(sweep), list(overrides)
    tables = read_toml(path, overrides)
    with FreshProcesses(start_method, training=bool(wanted_tasks(tables))) as processes:
        plan = make_plan(processes, path, tables, plugins=plugins, timeout_s=timeout_s)
        folder = _open(plan, out, overrides, resume=resume, overwrite=overwrite)
        try:
            options = (workers or usable_cores(), listener or Quiet(), retry, fail_fast)
            _Work(plan, folder, processes, *options).do()
        finally:
            folder.close()
    return Run(folder.path)


def answer(outcome: Outcome) -> Any:
    """The value of a question that must be answered; raises RequestError with the reason when there is none."""
    if outcome.status != "ok":
        raise RequestError([outcome.reason or outcome.status])
    return outcome.value


class _Work:
    """The visits of one run."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        processes: FreshProcesses,
        workers: int,
        listener: Listener,
        retry: Collection[str],
        fail_fast: bool,
    ) -> None:
        self.plan, self.folder, self.processes, self.workers, self.listener = plan, folder, processes, workers, listener
        records, _ = read_records(folder.path)
        self.left = visits_left(records, self._wanted(), retry)
        self.fail_fast, self.stop = fail_fast, False
        self.flops = {cell.id: judged.flops for cell, judged in zip(plan.cells, plan.judgements, strict=True)}

    def do(self) -> None:
        """Everything that is still to do, in the order: what cannot run, checks, time, memory, accuracy."""
        expected_s = [(measure, self._expected_s(cell, measure)) for cell, measure in self._pending()]
        self.listener.started(self.folder.path, len(self.plan.cells), expected_s)
        self._refuse_unsupported()
        self._check()
        for measure in ("time", "memory", "accuracy"):
            pairs = [pair for pair in self._pending() if pair[1] == measure]
            threads = max((cell.threads for cell, _ in pairs), default=1)
            self._visit(pairs, 1 if measure == "time" else max(1, self.workers // threads))

    def _wanted(self) -> dict[tuple[str, Measure], int]:
        """How many visits each cell and measure is to have."""
        visits = self.plan.sweep.timing.visits
        return {
            (cell.id, measure): visits if measure == "time" else 1
            for cell in self.plan.cells
            for measure in cell.measures
        }

    def _pending(self) -> list[tuple[Cell, Measure]]:
        """Each visit that is still to be made."""
        return [
            (cell, measure)
            for cell in self.plan.cells
            for measure in cell.measures
            for _ in range(self.left[cell.id, measure])
        ]

    def _refuse_unsupported(self) -> None:
        for cell, judged in zip(self.plan.cells, self.plan.judgements, strict=True):
            if judged.reason:
                self._settle(cell, "unsupported", judged.reason)

    def _check(self) -> None:
        """Try each variant's promises once per options, role and dtype; a broken one settles all cells of its group."""
        groups: dict[str, list[Cell]] = {}
        for cell, _ in self._pending():
            groups.setdefault(_check_key(cell), []).append(cell)
        jobs = [self._check_job(cells) for cells in groups.values()]
        for job, outcome in self.processes.run(jobs, self.workers):
            status, reason = _verdict(outcome)
            if status:
                self.listener.settled(job.tag, status, reason, outcome.detail)
            for cell in job.tag if status else ():
                self._settle(cell, status, reason, outcome)

    def _check_job(self, cells: Sequence[Cell]) -> Job:
        smallest = min(cells, key=lambda cell: (cell.d_model, cell.n_heads))
        lengths = {length for cell in cells for length in (cell.T, cell.S)}
        source = self.plan.catalogue.variant_sources[smallest.variant]
        arguments = (smallest, source, lengths)
        return Job(
            "attnbench.execute.cell:check",
            arguments,
            _bounded(CHECK_TIMEOUT_S, self.plan.timeout_s),
            tag=list({cell.id: cell for cell in cells}.values()),
        )

    def _visit(self, pairs: list[tuple[Cell, Measure]], at_once: int) -> None:
        jobs = (
            Job("attnbench.execute.cell:visit", (self.plan.order(cell, measure),), self.plan.timeout_s, (cell, measure))
            for cell, measure in _in_rounds(pairs)
            if self.left[cell.id, measure] and not self.stop  # an earlier visit may have gone wrong
        )
        for job, outcome in self.processes.run(jobs, at_once):
            cell, measure = job.tag
            if self.stop:
                return  # visits side by side with the one that went wrong stay pending
            limit = self.plan.sweep.memory_limit if cell.device == "cpu" else None
            self._record(cell, measure, _measured(outcome, limit), outcome)

    def _settle(self, cell: Cell, status: str, reason: str, outcome: Outcome | None = None) -> None:
        """Give all that is left of a cell a status without a visit."""
        for measure in cell.measures:
            if self.left[cell.id, measure]:
                self._record(cell, measure, {"status": status, "reason": reason}, outcome)

    def _record(self, cell: Cell, measure: Measure, fields: Record, outcome: Outcome | None) -> None:
        record = {"cell": cell.id, "measure": measure, "variant": cell.variant} | fields
        self.folder.append(record)
        before = self.left[cell.id, measure]
        self.left[cell.id, measure] = before - 1 if fields["status"] == "ok" else 0
        n_visits = before - self.left[cell.id, measure]
        self.stop = self.stop or (self.fail_fast and fields["status"] not in AS_ASKED)
        took_s, detail = (outcome.seconds * self._share(measure), outcome.detail) if outcome else (0.0, None)
        self.listener.ended(cell, record, n_visits, took_s, n_visits * self._expected_s(cell, measure), detail)

    def _expected_s(self, cell: Cell, measure: Measure) -> float:
        return self.plan.expected_s(cell, measure, self.flops[cell.id]) * self._share(measure)

    def _share(self, measure: Measure) -> float:
        """The part of a visit's duration by which it delays the run."""
        return 1.0 if measure == "time" else 1.0 / self.workers


def _check_key(cell: Cell) -> str:
    key = [cell.variant, cell.options, cell.mixer_roles, cell.dtype, cell.device]
    return json.dumps(key, sort_keys=True, default=str)


def _in_rounds(pairs: list[tuple[Cell, Measure]]) -> Iterator[tuple[Cell, Measure]]:
    """All cells once in shuffled order, then again, so that no drift of the machine meets one variant only."""
    for _, round_ in itertools.groupby(sorted(_numbered(pairs), key=lambda item: item[0]), key=lambda item: item[0]):
        members = [pair for _, pair in round_]
        random.Random(0).shuffle(members)
        yield from members


def _numbered(pairs: list[tuple[Cell, Measure]]) -> Iterator[tuple[int, tuple[Cell, Measure]]]:
    seen: dict[tuple[str, Measure], int] = {}
    for cell, measure in pairs:
        seen[cell.id, measure] = seen.get((cell.id, measure), 0) + 1
        yield seen[cell.id, measure], (cell, measure)


def _verdict(outcome: Outcome) -> tuple[str, str]:
    """Status and reason for all cells of a checked variant; an empty status when they may run.

    A check that only fails to run (an import that raises, say) leaves each cell to fail for its own reason.
    """
    if outcome.status == "ok":
        return ("nonconformant", outcome.value) if outcome.value else ("", "")
    if outcome.status == "failed":
        return "", ""
    return outcome.status, f"in its conformance check: {outcome.reason}"


def _measured(outcome: Outcome, memory_limit: int | None) -> Record:
    """A visit's fields, and what the process around it cost. memory_limit: in force, in bytes."""
    if outcome.status == "oom" and memory_limit is not None:
        return {"status": "oom", "reason": f"{outcome.reason}; under memory_limit {size(memory_limit)}"}
    if outcome.status != "ok":
        return {"status": outcome.status, "reason": outcome.reason}
    fields: Record = dict(outcome.value)
    inside_s = fields.get("warmup_s", 0.0) + fields.get("sampled_s", 0.0)
    return fields | ({"overhead_s": outcome.seconds - inside_s} if "sampled_s" in fields else {})


def _baseline(sweep: Sweep, cells: Sequence[Cell], path: Path) -> str:
    """The label that ratios are taken against: as asked, else fused if present, else the first."""
    labels = list(dict.fromkeys(cell.label for cell in cells))
    by_variant = {cell.variant: cell.label for cell in reversed(cells)}
    wanted = sweep.baseline or ("fused" if "fused" in by_variant else labels[0])
    if wanted in labels:
        return wanted
    if wanted in by_variant:
        return by_variant[wanted]
    raise RequestError([f'{path}: baseline: "{wanted}" is not among the variants{did_you_mean(wanted, labels)}'])


def _open(plan: Plan, out: str | Path | None, overrides: list[str], *, resume: bool, overwrite: bool) -> RunFolder:
    """Lock and begin the run folder. Raises RequestError when it holds another run and nobody said what to do."""
    folder = _new_folder(plan.path.stem) if out is None else RunFolder.create(Path(out))
    try:
        text, sources = plan.path.read_bytes().decode(), plugin_files.contents(plan.plugins)
        if overwrite:
            folder.clear()
        elif folder.used:
            _check_going_on(folder, plan, text, overrides, resume)
        facts = {"baseline": plan.baseline, "question": plan.sweep.question, "overrides": overrides}
        folder.begin(text, (cell.row() for cell in plan.cells), facts | environment(), sources)
    except BaseException:
        folder.close()
        raise
    return folder


def _check_going_on(folder: RunFolder, plan: Plan, sweep: str, overrides: list[str], resume: bool) -> None:
    """A run is gone on with when it is asked for: by the sweep that began it, or one that shares cells with it."""
    same_sweep = folder.holds(sweep)
    if not resume:
        whose = "this sweep" if same_sweep else "another sweep"
        raise RequestError([f"{folder.path}: holds a run of {whose} already; say --resume or --overwrite"])
    same = same_sweep and Run(folder.path).environment.get("overrides") == overrides
    held = set() if same else folder.cells
    if held and held.isdisjoint(cell.id for cell in plan.cells):
        what = f"no cell of {plan.path} is in the run that it holds"
        raise RequestError([f"{folder.path}: {what}; choose another --out, or say --overwrite"])


def _new_folder(stem: str) -> RunFolder:
    """A folder of its own under results/, also for runs that start in the same second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for n in itertools.count(1):
        path = Path("results") / f"{stem}-{stamp}{'' if n == 1 else f'-{n}'}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return RunFolder.create(path)
    raise AssertionError("unreachable: itertools.count does not end")

"""A whole run: from a sweep file to a folder of records. Decides what is visited, in which order, and nothing else.

    read ─▶ ask what the names mean ─▶ validate ─▶ expand ─▶ ask what can run ─▶ check promises ─▶ visit ─▶ record

Time is measured one visit after the other; checks, memory and accuracy visits run side by side.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench import plugin_files
from attnbench.cells import Cell
from attnbench.errors import RequestError
from attnbench.execute.listener import Listener, Quiet
from attnbench.execute.local import FreshProcesses, Job, Outcome
from attnbench.execute.peaks import peaks, timed
from attnbench.execute.plan import Plan, bounded, make_plan
from attnbench.measure.machine import environment, usable_cores
from attnbench.records import AS_ASKED, Record, Run, RunFolder, read_records, visits_left
from attnbench.settings import Measure, size
from attnbench.sweep import read_toml, wanted_tasks

CHECK_TIMEOUT_S = 60.0  # a sweep's own timeout bounds it when smaller
GPU_WORKERS = 4  # each process on a GPU keeps some of its memory


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
    budget_s: float | None = None,
    start_method: str | None = None,
    listener: Listener | None = None,
) -> Run:
    """Run a sweep file and return its run folder (`out`, else a new one under results/).

    overrides: `KEY=VALUE` strings as for --set. plugins: a file or several. resume: work only on what an earlier run
    of this folder left. timeout_s: seconds for each visit, instead of the file's. workers: visits side by side where
    that is allowed, default the number of usable cores. retry: statuses that a resumed run tries again. fail_fast:
    stop at the first cell that goes wrong; budget_s: begin no visit after so many seconds; either leaves the rest
    pending. Raises RequestError before anything runs when the request is wrong.
    """
    path, overrides = Path(sweep), list(overrides)
    tables = read_toml(path, overrides)
    with FreshProcesses(start_method, training=bool(wanted_tasks(tables))) as processes:
        plan = make_plan(processes, path, tables, plugins=plugins, timeout_s=timeout_s)
        folder = _open(plan, processes, out, overrides, resume=resume, overwrite=overwrite)
        try:
            conduct = Conduct(workers or usable_cores(), retry, fail_fast, math.inf if budget_s is None else budget_s)
            _Work(plan, folder, processes, conduct, listener or Quiet()).do()
        finally:
            folder.close()
    return Run(folder.path)


def answer(outcome: Outcome) -> Any:
    """The value of a question that must be answered; raises RequestError with the reason when there is none."""
    if outcome.status != "ok":
        raise RequestError([outcome.reason or outcome.status])
    return outcome.value


@dataclass(frozen=True)
class Conduct:
    """How a run goes about its visits. The arguments of `run` that are named so; budget_s is infinite without one."""

    workers: int
    retry: Collection[str]
    fail_fast: bool
    budget_s: float


class _Work:
    """The visits of one run."""

    def __init__(
        self,
        plan: Plan,
        folder: RunFolder,
        processes: FreshProcesses,
        conduct: Conduct,
        listener: Listener,
    ) -> None:
        self.plan, self.folder, self.processes, self.listener = plan, folder, processes, listener
        self.workers, self.fail_fast, self.failed = conduct.workers, conduct.fail_fast, False
        self.deadline_s = time.monotonic() + conduct.budget_s
        records, _ = read_records(folder.path)
        self.left = visits_left(records, self._wanted(), conduct.retry)
        self.flops = {cell.id: judged.flops for cell, judged in zip(plan.cells, plan.judgements, strict=True)}

    def do(self) -> None:
        """Everything that is still to do, in the order: what cannot run, checks, time, memory, accuracy."""
        expected_s = [(measure, self._expected_s(cell, measure)) for cell, measure in self._pending()]
        self.listener.started(self.folder.path, len(self.plan.cells), expected_s)
        self._refuse_unsupported()
        self._check()
        for measure in ("time", "memory", "accuracy"):
            pairs = [pair for pair in self._pending() if pair[1] == measure]
            self._visit(pairs, self._at_once([cell for cell, _ in pairs], measure))

    def _at_once(self, cells: Sequence[Cell], measure: Measure | None = None) -> int:
        """How many visits (without a measure: checks) run side by side; one for time, and for memory on a GPU."""
        on_gpu = any(cell.device != "cpu" for cell in cells)
        if measure == "time" or (measure == "memory" and on_gpu):
            return 1
        threads = max((cell.threads for cell in cells if measure), default=1)
        return max(1, (min(self.workers, GPU_WORKERS) if on_gpu else self.workers) // threads)

    def _wanted(self) -> dict[tuple[str, Measure], int]:
        """How many visits each cell and measure is to have."""
        return {
            (cell.id, measure): self.plan.n_visits(measure) for cell in self.plan.cells for measure in cell.measures
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
        groups: dict[str, list[tuple[Cell, int]]] = {}
        for cell in {cell.id: cell for cell, _ in self._pending()}.values():
            for part in range(len(cell.parts)):
                groups.setdefault(_check_key(cell, part), []).append((cell, part))
        jobs = [self._check_job(members) for members in groups.values()]
        for job, outcome in self.processes.run(jobs, self._at_once(self.plan.cells)):
            status, reason = _verdict(outcome)
            if status:
                self.listener.settled([cell for cell, _ in job.tag], status, reason, outcome.detail)
            for cell, part in job.tag if status else ():
                where = f"{cell.parts[part].name}: " if len(cell.parts) > 1 else ""
                self._settle(cell, status, f"{where}{reason}", outcome)

    def _check_job(self, members: Sequence[tuple[Cell, int]]) -> Job:
        """members: cells, each with the part of its stack that is to be checked, the same for all."""
        smallest, part = min(members, key=lambda member: (member[0].d_model, member[0].n_heads))
        lengths = {length for cell, _ in members for length in (cell.T, cell.S)}
        source = self.plan.catalogue.variant_sources[smallest.parts[part].name]
        arguments = (smallest, part, source, lengths)
        limit_s = bounded(CHECK_TIMEOUT_S, self.plan.timeout_s)
        return Job("attnbench.execute.cell:check", arguments, limit_s, tag=members)

    def _visit(self, pairs: list[tuple[Cell, Measure]], at_once: int) -> None:
        jobs = (
            Job("attnbench.execute.cell:visit", (self.plan.order(cell, measure),), self.plan.timeout_s, (cell, measure))
            for cell, measure in _in_rounds(pairs)
            if self.left[cell.id, measure] and not self._over  # an earlier visit may have gone wrong
        )
        for job, outcome in self.processes.run(jobs, at_once):
            cell, measure = job.tag
            if self.failed:
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
        self.failed = self.failed or (self.fail_fast and fields["status"] not in AS_ASKED)
        took_s, detail = (outcome.seconds * self._share(cell, measure), outcome.detail) if outcome else (0.0, None)
        self.listener.ended(cell, record, n_visits, took_s, n_visits * self._expected_s(cell, measure), detail)

    @property
    def _over(self) -> bool:
        """Whether no further visit may begin."""
        return self.failed or time.monotonic() >= self.deadline_s

    def _expected_s(self, cell: Cell, measure: Measure) -> float:
        return self.plan.expected_s(cell, measure, self.flops[cell.id]) * self._share(cell, measure)

    def _share(self, cell: Cell, measure: Measure) -> float:
        """The part of a visit's duration by which it delays the run."""
        return 1.0 / self._at_once([cell], measure)


def _check_key(cell: Cell, part: int) -> str:
    use = cell.parts[part]
    key = [use.name, use.options, cell.mixer_roles, cell.dtype, cell.device]
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


def _open(
    plan: Plan,
    processes: FreshProcesses,
    out: str | Path | None,
    overrides: list[str],
    *,
    resume: bool,
    overwrite: bool,
) -> RunFolder:
    """Lock and begin the run folder. Raises RequestError when it holds another run and nobody said what to do."""
    folder = _new_folder(plan.path.stem) if out is None else RunFolder.create(Path(out))
    try:
        text, sources = plan.path.read_bytes().decode(), plugin_files.contents(plan.plugins)
        if overwrite:
            folder.clear()
        elif folder.used:
            _check_going_on(folder, plan, text, overrides, resume)
        sweep = plan.sweep
        facts: dict[str, Any] = {"baseline": plan.baseline, "question": sweep.question, "overrides": overrides}
        facts |= {"timing": sweep.timing.model_dump(), "train": sweep.train.model_dump()}
        can_run = [cell for cell, judged in zip(plan.cells, plan.judgements, strict=True) if not judged.reason]
        machine = environment() | {"gpu": plan.catalogue.devices.get("cuda"), "peaks": peaks(processes, timed(can_run))}
        folder.begin(text, (cell.row() for cell in plan.cells), facts | machine, sources)
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

"""A whole run: from a sweep file to a folder of records. Decides what is visited, in which order, and nothing else.

    read ─▶ ask what the names mean ─▶ validate ─▶ expand ─▶ ask what can run ─▶ check promises ─▶ visit ─▶ record

Time is measured one visit after the other; checks, memory and accuracy visits run side by side. Cells are visited in
rounds, each in an order of its own. A time visit that something disturbed (see `measure.quiet`) is flagged, and a later
round makes one more of its cell, `timing.repeats` at most. What is left of a budget goes to further rounds of the cells
whose time has too wide an interval.
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
from attnbench.errors import RequestError, did_you_mean
from attnbench.execute.listener import Listener
from attnbench.execute.local import FreshProcesses, Job, Outcome
from attnbench.execute.peaks import peaks, timed
from attnbench.execute.plan import Plan, at_once, bounded, make_plan
from attnbench.intervals import widths
from attnbench.measure.machine import environment, usable_cores
from attnbench.measure.quiet import disturbance, sentinels
from attnbench.records import AS_ASKED, STATUSES, Record, Run, read_records
from attnbench.run_folder import RunFolder
from attnbench.settings import Measure, size
from attnbench.sweep import wanted_tasks
from attnbench.sweep_file import read_toml
from attnbench.visits import DISTURBED, Agenda, counted

CHECK_TIMEOUT_S = 60.0  # a sweep's own timeout bounds it when smaller
LEVEL_TIMEOUT_S = 10.0


def run(
    sweep: str | Path,
    *,
    out: str | Path | None = None,
    overrides: str | Iterable[str] = (),
    plugins: plugin_files.Files = (),
    resume: bool = False,
    overwrite: bool = False,
    timeout_s: float | None = None,
    workers: int | None = None,
    retry: str | Iterable[str] = (),
    fail_fast: bool = False,
    budget_s: float | None = None,
    narrow: bool = True,
    start_method: str | None = None,
    listener: Listener | None = None,
) -> Run:
    """Run a sweep file and return its run folder (`out`, else a new one under results/).

    overrides: `KEY=VALUE` strings as for --set. plugins: a file or several. resume: work only on what an earlier run
    of this folder left. timeout_s: seconds for each visit, instead of the file's. workers: visits side by side where
    that is allowed, default the number of usable cores. retry: statuses that a resumed run tries again. fail_fast:
    stop at the first cell that goes wrong; budget_s: begin no visit after so many seconds; either leaves the rest
    pending, and what a budget leaves over narrows the widest intervals of time, unless narrow is false. Raises
    RequestError before anything runs when the request is wrong.
    """
    path, overrides, retry = Path(sweep), listed(overrides), listed(retry)
    check_request(out=out, resume=resume, overwrite=overwrite, retry=retry)
    tables = read_toml(path, overrides)
    with FreshProcesses(start_method, training=bool(wanted_tasks(tables))) as processes:
        plan = make_plan(processes, path, tables, plugins=plugins, timeout_s=timeout_s)
        folder = _open(plan, processes, out, overrides, resume=resume, overwrite=overwrite)
        try:
            limit_s = math.inf if budget_s is None else budget_s
            conduct = Conduct(workers or usable_cores(), retry, fail_fast, limit_s, narrow and budget_s is not None)
            _Work(plan, folder, processes, conduct, listener or Listener()).do()
        finally:
            folder.close()
    return Run(folder.path)


def listed(words: str | Iterable[str]) -> list[str]:
    """One word, or several, as a list."""
    return [words] if isinstance(words, str) else list(words)


def check_request(*, out: str | Path | None, resume: bool, overwrite: bool, retry: Collection[str]) -> None:
    """Raise RequestError when these arguments of `run`, named as the command line names them, do not go together."""
    if resume and overwrite:
        raise RequestError(["--resume and --overwrite exclude each other"])
    if resume and out is None:
        raise RequestError(["--resume goes with --out, the folder of the run to go on with"])
    if retry and not resume:
        raise RequestError(["--retry goes with --resume"])
    known = [status for status in STATUSES if status not in (*AS_ASKED, "pending")]
    unknown = [status for status in retry if status not in known]
    if unknown:
        raise RequestError(
            f"--retry {status}: not a status to retry{did_you_mean(status, known)}" for status in unknown
        )


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
    narrow: bool


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
        self.begun = False  # however small a budget, one visit is made, so that each command gets farther
        self.narrow = conduct.narrow
        repeats = 0 if self.narrow else plan.sweep.timing.repeats  # a disturbed visit is among what is narrowed
        self.agenda = Agenda(self._wanted(), records, repeats=repeats, retry=conduct.retry)
        self.quiet_s = min((s for record in self._own(records) for s in sentinels(record)), default=math.inf)
        self.n_uncounted = len({record["cell"] for record in records} - {cell.id for cell in plan.cells})
        self.refused = {(r["cell"], r["measure"]): r["reason"] for r in records if r["status"] == "unsupported"}
        self.flops = {cell.id: judged.flops for cell, judged in zip(plan.cells, plan.judgements, strict=True)}

    def do(self) -> None:
        """Everything that is still to do, in the order: what cannot run, checks, time, memory, accuracy, narrowing."""
        self._skip_refused()
        expected_s = [(measure, self._expected_s(cell, measure)) for cell, measure in self._pending()]
        self.listener.started(run=self.folder.path, n_cells=len(self.plan.cells), expected_s=expected_s)
        if self.n_uncounted:
            self.listener.uncounted(n_cells=self.n_uncounted)
        self._refuse_unsupported()
        self._check()
        self._learn_level()
        for measure in ("time", "memory", "accuracy"):
            self._in_rounds(measure)
        self._narrow()

    def _wanted(self) -> dict[tuple[str, Measure], int]:
        """How many visits each cell and measure is to have."""
        return {(cell.id, measure): n for cell in self.plan.cells for measure, n in self.plan.wanted(cell).items()}

    def _pending(self) -> list[tuple[Cell, Measure]]:
        """Each visit that is still to be made."""
        return [
            (cell, measure)
            for cell in self.plan.cells
            for measure in cell.measures
            for _ in range(self.agenda.left[cell.id, measure])
        ]

    def _skip_refused(self) -> None:
        """What cannot run for the reason that its record gives needs no second one."""
        for cell, judged in zip(self.plan.cells, self.plan.judgements, strict=True):
            for measure in cell.measures:
                if judged.reason and self.refused.get((cell.id, measure)) == judged.reason:
                    self.agenda.left[cell.id, measure] = 0

    def _refuse_unsupported(self) -> None:
        for cell, judged in zip(self.plan.cells, self.plan.judgements, strict=True):
            if judged.reason:
                self._settle(cell, "unsupported", judged.reason)

    def _check(self) -> None:
        """Try each variant's promises once per options, role and dtype; a broken one settles all cells of its group."""
        groups: dict[str, list[tuple[Cell, int]]] = {}
        for cell in {cell.id: cell for cell, _ in self._pending()}.values():
            for part in range(len(cell.parts)):
                groups.setdefault(_check_key(cell.built, part), []).append((cell, part))
        jobs = [self._check_job(members) for members in groups.values()]
        for job, outcome in self.processes.run(jobs, at_once(self.plan.cells, None, self.workers)):
            status, reason = _verdict(outcome)
            if status:
                self._settle_all(job.tag, status, reason, outcome)
            if self.failed:
                return

    def _settle_all(self, members: Sequence[tuple[Cell, int]], status: str, reason: str, outcome: Outcome) -> None:
        """Give all cells of a checked part its status; in a stack the reason says which part it is."""
        (first, part), cells = members[0], [cell for cell, _ in members]
        if any(len(cell.parts) > 1 for cell in cells):
            reason = f"{first.parts[part].name}: {reason}"
        self.listener.settled(cells=cells, status=status, reason=reason, detail=outcome.detail)
        for cell in cells:
            self._settle(cell, status, reason, outcome)

    def _check_job(self, members: Sequence[tuple[Cell, int]]) -> Job:
        """members: cells, each with the part of its stack that is to be checked, the same for all."""
        built = [(cell.built, part) for cell, part in members]
        smallest, part = min(built, key=lambda member: (member[0].d_model, member[0].n_heads))
        lengths = {length for cell, _ in members for length in (cell.T, cell.S)}
        source = self.plan.catalogue.variant_sources[smallest.parts[part].name]
        arguments = (smallest, part, source, lengths)
        limit_s = bounded(CHECK_TIMEOUT_S, self.plan.timeout_s)
        return Job("attnbench.execute.cell:check", arguments, limit_s, tag=members)

    def _learn_level(self) -> None:
        """Learn what a sentinel takes on this machine when it is quiet, in a process like those of visits."""
        if any(measure == "time" for _, measure in self._pending()) and not self._over:
            outcome = self.processes.call("attnbench.measure.quiet:level_s", timeout_s=LEVEL_TIMEOUT_S)
            self.quiet_s = min(self.quiet_s, outcome.value) if outcome.status == "ok" else self.quiet_s

    def _in_rounds(self, measure: Measure) -> None:
        """Visit all cells once in shuffled order, then again those of which visits are left.

        So no drift of the machine meets one variant only, and each round has an order of its own.
        """
        for n in itertools.count():
            cells = [cell for cell in self.plan.cells if self.agenda.left.get((cell.id, measure))]
            if self._over or not cells:
                return
            random.Random(n).shuffle(cells)
            self._visit(cells, measure)

    def _narrow(self) -> None:
        """Spend what a budget leaves over on the cells whose time is known less well than asked, the widest first."""
        while self.narrow and not self._over and (cells := self._wide()):
            self.listener.narrowing(n_cells=len(cells))
            self._visit(cells, "time")

    def _wide(self) -> list[Cell]:
        """The cells whose interval of time is wider than `timing.precision`, the widest first."""
        made: dict[str, list[Record]] = {}
        for record in self._own(read_records(self.folder.path)[0]):
            if record["measure"] == "time":
                made.setdefault(record["cell"], []).append(record)
        good = {cell: counted(visits) for cell, visits in made.items() if visits[-1]["status"] == "ok"}
        width = widths({cell: [visit["samples_s"] for visit in visits] for cell, visits in good.items()})
        cells = [cell for cell in self.plan.cells if width.get(cell.id, 0.0) > 2 * self.plan.sweep.timing.precision]
        return sorted(cells, key=lambda cell: width[cell.id], reverse=True)

    def _own(self, records: Iterable[Record]) -> list[Record]:
        """The records of what this run wants."""
        wanted = self._wanted()
        return [record for record in records if (record["cell"], record["measure"]) in wanted]

    def _visit(self, cells: Sequence[Cell], measure: Measure) -> None:
        for job, outcome in self.processes.run(self._jobs(cells, measure), at_once(cells, measure, self.workers)):
            if self.failed:
                return  # visits side by side with the one that went wrong stay pending
            limit = self.plan.sweep.memory_limit if job.tag.device == "cpu" else None
            self._record(job.tag, measure, self._judged(_measured(outcome, limit)), outcome)

    def _jobs(self, cells: Sequence[Cell], measure: Measure) -> Iterator[Job]:
        """A visit of each, for as long as visits may begin."""
        for cell in cells:
            if self._over:
                return
            self.begun = True
            order = self.plan.order(cell, measure, self.folder.weights)
            yield Job("attnbench.execute.cell:visit", (order,), self.plan.timeout_s, cell)

    def _judged(self, fields: Record) -> Record:
        """The fields of a visit, flagged where something disturbed it; the run's best sentinel is learnt as it goes."""
        self.quiet_s = min([self.quiet_s, *sentinels(fields)])
        why = disturbance(fields, self.quiet_s)
        return fields | ({"flags": [*fields["flags"], f"{DISTURBED}{why}"]} if why else {})

    def _settle(self, cell: Cell, status: str, reason: str, outcome: Outcome | None = None) -> None:
        """Give all that is left of a cell a status without a visit."""
        for measure in cell.measures:
            if self.agenda.left[cell.id, measure]:
                self._record(cell, measure, {"status": status, "reason": reason}, outcome)

    def _record(self, cell: Cell, measure: Measure, fields: Record, outcome: Outcome | None) -> None:
        record = {"cell": cell.id, "measure": measure, "variant": cell.variant} | fields
        self.folder.append(record)
        n_visits = self.agenda.settle(record)
        self.failed = self.failed or (self.fail_fast and fields["status"] not in AS_ASKED)
        took_s, detail = (outcome.seconds * self._share(cell, measure), outcome.detail) if outcome else (0.0, None)
        self.listener.ended(
            cell=cell,
            record=record,
            n_visits=n_visits,
            took_s=took_s,
            expected_s=n_visits * self._expected_s(cell, measure),
            detail=detail,
        )

    @property
    def _over(self) -> bool:
        """Whether no further visit may begin."""
        return self.failed or (self.begun and time.monotonic() >= self.deadline_s)

    def _expected_s(self, cell: Cell, measure: Measure) -> float:
        return self.plan.expected_s(cell, measure, self.flops[cell.id]) * self._share(cell, measure)

    def _share(self, cell: Cell, measure: Measure) -> float:
        """The part of a visit's duration by which it delays the run."""
        return 1.0 / at_once([cell], measure, self.workers)


def _check_key(cell: Cell, part: int) -> str:
    use = cell.parts[part]
    layers = [part, len(cell.parts), min(cell.n_layers or 1, part + len(cell.parts) + 1)]  # the first two that it fills
    key = [use.name, use.options, cell.mixer_roles, cell.dtype, cell.device, layers]
    return json.dumps(key, sort_keys=True, default=str)


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
        facts |= {"memory_limit": sweep.memory_limit, "timeout": plan.timeout_s}
        can_run = [cell for cell, judged in zip(plan.cells, plan.judgements, strict=True) if not judged.reason]
        machine = environment() | {"gpu": plan.catalogue.devices.get("cuda"), "peaks": peaks(processes, timed(can_run))}
        rows = (cell.row() | {"wanted": plan.wanted(cell)} for cell in plan.cells)
        folder.begin(text, rows, facts | machine, sources)
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

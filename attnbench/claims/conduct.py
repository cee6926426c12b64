"""How a pack is carried out: its sweep in a run folder that is gone on with, its baselines, or its statement."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from attnbench import registry
from attnbench.claims.pack import Found, Guesses, matching
from attnbench.claims.verdict import Finding, Verdict, control_failed, guessed, judged, settings, verdict
from attnbench.errors import RequestError
from attnbench.settings import as_list
from attnbench.theory import rules, statements

if TYPE_CHECKING:
    from attnbench.execute.listener import Listener
    from attnbench.execute.local import FreshProcesses
    from attnbench.records import Run

GUESSES_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Conduct:
    """How all packs are carried out: the folder of their runs, and the arguments of `run`."""

    out: Path
    quick: bool = False
    overwrite: bool = False
    workers: int | None = None


@dataclass(frozen=True)
class Result:
    """What became of a pack. reason: why it has no better verdict, "" where the findings say all.

    cells: "6 of 6 cells ok". note: what a quick look made smaller. as_asked: nothing failed, nothing is left to run.
    """

    found: Found
    findings: tuple[Finding, ...]
    verdict: Verdict
    reason: str = ""
    cells: str = ""
    note: str = ""
    seconds: float = 0.0
    as_asked: bool = True
    counts: Mapping[str, int] = field(default_factory=dict)


def check(processes: FreshProcesses, found: Found, quick: bool) -> None:
    """Raise RequestError with every mistake of a pack: of its sweep, and clauses that select no cell, or too many."""
    pack = found.pack
    if pack.sweep is not None:
        rows = planned(processes, found, quick)
        clauses = [(f"expect[{i}]", where) for i, one in enumerate(pack.expect) for where in one.clauses]
        clauses += [("control", pack.control)] if pack.control else []
        lost = [f"{found.path}: {place}: no cell has {where}" for place, where in clauses if not matching(rows, where)]
        if lost := [*lost, *_ambiguous(found, rows)]:
            raise RequestError(lost)
    if pack.baselines is not None:
        registry.find(pack.baselines.task, registry.installed(registry.TASKS), "task")


def _ambiguous(found: Found, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line per clause of an order that selects several settings, of which none could be said to be above."""
    for i, one in enumerate(found.pack.expect):
        for where in one.order or ():
            if (n := len(settings(matching(rows, where)))) > 1:
                yield f"{found.path}: expect[{i}].order: expected one setting for {where}, got {n}; name what differs"


def planned(processes: FreshProcesses, found: Found, quick: bool) -> list[dict[str, Any]]:
    """The cells that a pack's sweep asks for, as rows of cells.jsonl."""
    from attnbench.execute.plan import make_plan
    from attnbench.sweep_file import read_toml

    with _sweep_file(found) as file:
        tables = read_toml(file, found.pack.quick if quick else ())
        plan = make_plan(processes, file, tables, plugins=_plugins(found))
    return [cell.row() for cell in plan.cells]


def carry_out(
    processes: FreshProcesses, found: Found, conduct: Conduct, budget_s: float | None, listener: Listener | None = None
) -> Result:
    """Run a pack, or go on with its run, and judge it. budget_s: begin no visit after so many seconds."""
    began_s = time.monotonic()
    if found.pack.theory is not None:
        return _of_statement(found, statements.show_apart(processes, found.pack.theory, quick=conduct.quick))
    if found.pack.baselines is not None:
        return _of_guesses(processes, found, found.pack.baselines, began_s)
    made = _run(found, conduct, budget_s, listener)
    return of_run(found, made, conduct.quick, time.monotonic() - began_s)


def of_run(found: Found, made: Run, quick: bool, seconds: float = 0.0) -> Result:
    """Judge what a run holds."""
    rows, pack, counts = made.frame.to_dict("records"), found.pack, made.counts
    findings = tuple(finding for one in pack.expect for finding in judged(one, rows))
    failed = control_failed(pack.control, rows)
    told = verdict(findings, controlled=not failed, pending=bool(counts.get("pending")))
    others = "".join(f"; {n} {status}" for status, n in counts.items() if status != "ok")
    return Result(
        found,
        findings,
        told,
        reason=failed,
        cells=f"{counts.get('ok', 0)} of {len(rows)} cells ok{others}",
        note="; ".join(pack.quick) if quick else "",
        seconds=seconds,
        as_asked=made.as_asked,
        counts=counts,
    )


def not_run(found: Found, reason: str) -> Result:
    """A pack that nothing was run of."""
    return Result(found, (), "not finished", reason=reason, as_asked=False)


def standing(found: Found, conduct: Conduct, reason: str) -> Result:
    """A pack for which no time is left: what an earlier call found, or `not_run` with this reason."""
    from attnbench.records import Run

    folder = run_folder(found, conduct)
    if conduct.overwrite or not (folder / "cells.jsonl").is_file():
        return not_run(found, reason)
    return of_run(found, Run(folder), conduct.quick)


def run_folder(found: Found, conduct: Conduct) -> Path:
    """Where the run of a pack lies; a quick one beside the whole one."""
    return conduct.out / (f"{found.name}-quick" if conduct.quick else found.name)


def written(tables: Mapping[str, Any]) -> str:
    """Tables as the text of a TOML file, one line per key."""
    return "".join(f"{_text(key)} = {_toml(value)}\n" for key, value in tables.items())


def _run(found: Found, conduct: Conduct, budget_s: float | None, listener: Listener | None) -> Run:
    from attnbench.execute.runner import run

    folder = run_folder(found, conduct)
    with _sweep_file(found) as file:
        return run(
            file,
            out=folder,
            overrides=found.pack.quick if conduct.quick else (),
            plugins=_plugins(found),
            resume=folder.exists() and not conduct.overwrite,
            overwrite=conduct.overwrite,
            workers=conduct.workers,
            budget_s=budget_s,
            narrow=False,
            listener=listener,
        )


def _of_statement(found: Found, shown: statements.Result) -> Result:
    """A statement of theory: a miss with a known reason leaves the trend, one without refutes."""
    kept = [finding for finding in shown.findings if rules.verdict(finding) != "not run"]
    findings = tuple(
        Finding(one.what, one.expected, one.measured, "holds" if one.ok else "open" if one.reason else "contradicted")
        for one in kept
    )
    told = verdict(findings)
    if told == "not resolvable at this size" and any(finding.state == "holds" for finding in findings):
        told = "trend reproduced"
    reasons = dict.fromkeys(one.reason for one in kept if one.reason)
    return Result(found, findings, told, shown.failure or "; ".join(reasons), seconds=shown.seconds,
                  as_asked=shown.told is not None)  # fmt: skip


def _of_guesses(processes: FreshProcesses, found: Found, asked: Guesses, began_s: float) -> Result:
    source = registry.find(asked.task, registry.installed(registry.TASKS), "task")
    outcome = processes.call(
        "attnbench.claims.guesses:measure",
        source,
        asked.T,
        asked.options,
        asked.n,
        asked.seed,
        timeout_s=GUESSES_TIMEOUT_S,
    )
    seconds = time.monotonic() - began_s
    if outcome.status != "ok":
        reason = f"{outcome.status}: {outcome.reason}"
        return Result(found, (), "not resolvable at this size", reason, seconds=seconds, as_asked=False)
    findings = tuple(guessed(one, outcome.value) for one in found.pack.expect)
    return Result(found, findings, verdict(findings), cells=f"{asked.n} sequences", seconds=seconds)


def _plugins(found: Found) -> list[Path]:
    """The plugin files of a pack, whose paths are relative to it."""
    sweep = found.pack.sweep or {}
    return [found.path.parent / name for name in as_list(sweep.get("plugins", []))]


@contextmanager
def _sweep_file(found: Found) -> Iterator[Path]:
    """The sweep of a pack as a file; mistakes in it are told of the pack."""
    tables = {key: value for key, value in (found.pack.sweep or {}).items() if key != "plugins"}
    with TemporaryDirectory(prefix="attnbench-claims-") as folder:
        file = Path(folder) / f"{found.name}.toml"
        file.write_text(written({"question": found.pack.claim, **tables}), encoding="utf-8")
        try:
            yield file
        except RequestError as error:
            raise RequestError(_renamed(error.mistakes, file, found)) from error


def _renamed(mistakes: Sequence[str], file: Path, found: Found) -> list[str]:
    return [mistake.replace(str(file), f"{found.path}: sweep") for mistake in mistakes]


def _toml(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_text(key)} = {_toml(one)}" for key, one in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return _text(value) if isinstance(value, str) else repr(value)


def _text(text: str) -> str:
    """JSON's strings are TOML's, but for one character that TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

"""What was asked (cells.jsonl), what each visit gave (records.jsonl), and both as one DataFrame.

Nothing measured is ever rewritten: a later record of the same cell and measure stands beside the earlier one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from attnbench.errors import RequestError
from attnbench.intervals import interval, typical_spread
from attnbench.roofs import roofed
from attnbench.settings import Measure
from attnbench.statistics import median
from attnbench.trust import distrust
from attnbench.visits import Agenda, counted, is_disturbed

SCHEMA = 1
STATUSES = (  # from best to worst: a cell's status is the worst of its measures'
    "ok",
    "unsupported",
    "skipped",
    "pending",
    "diverged",
    "nonconformant",
    "timeout",
    "killed",
    "oom",
    "failed",
)
AS_ASKED = ("ok", "unsupported", "skipped")
MEASURED = ("ok", "diverged")  # of these, a visit's figures stand in its row
Record = dict[str, Any]
_told: set[str] = set()  # notes: a command that reads a run twice says them once

COLUMNS = (
    "cell",
    "variant",
    "label",
    "options",
    "role",
    "level",
    "phase",
    "measures",
    "T",
    "S",
    "B",
    "d_model",
    "d_used",
    "match",
    "matched",
    "match_error",
    "n_heads",
    "max_T",
    "n_layers",
    "d_ff",
    "embedding_std",
    "positions",
    "dtype",
    "device",
    "device_name",
    "threads",
    "compile",
    "task",
    "task_options",
    "cross",
    "n_training",
    "pretrain",
    "pretrain_options",
    "seed",
    "status",
    "reason",
    "visits",
    "samples_s",
    "visit_samples_s",
    "calls",
    "sampled_s",
    "warmup_s",
    "first_call_s",
    "compile_s",
    "overhead_s",
    "sentinel_before_s",
    "sentinel_after_s",
    "cpu_s",
    "switches",
    "steal_s",
    "disturbed",
    "stopped_by",
    "flags",
    "wall_ratio",
    "peak_bytes",
    "peak_bytes_formula",
    "rss_peak_bytes",
    "build_peak_bytes",
    "param_bytes",
    "optimizer_bytes",
    "saved_bytes",
    "state_bytes",
    "n_params",
    "n_params_body",
    "flops",
    "flops_executed",
    "flops_core",
    "flops_projection",
    "bytes_moved",
    "accuracy",
    "sequence_accuracy",
    "chance",
    "floor",
    "ceiling",
    "n_scored",
    "n_test",
    "loss",
    "slices",
    "slice_unit",
    "trials",
    "lr",
    "weight_decay",
    "steps_to_learn",
    "pretrain_accuracy",
    "pretrain_steps",
    "rule",
    "quick",
    "baselines",
    "tested",
    "overlap",
    "fingerprint",
    "amp",
    "backend",
    "time_s",
    "time_low_s",
    "time_high_s",
    "flops_per_s",
    "roof_flops_per_s",
    "roof_bytes_per_s",
    "roof_share",
    "run",
)


def append(path: Path, record: Record) -> None:
    """Append one record as a line; a torn line before it keeps a line of its own."""
    line = json_line({"schema": SCHEMA} | record).encode()
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            line = line if file.read(1) == b"\n" else b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read_records(run: Path) -> tuple[list[Record], list[str]]:
    """All whole records of a run folder, and a note for each line that is none."""
    return read_lines(run / "records.jsonl", ("cell", "measure", "status"))


def read_lines(path: Path, needed: tuple[str, ...] = ("cell",)) -> tuple[list[Record], list[str]]:
    """All objects of a file of lines that have the needed keys and can be trusted, and a note for each other line.

    A visit that was cut short while it wrote leaves such a line. Raises RequestError when a newer attnbench wrote one.
    """
    records, notes = list[Record](), list[str]()
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        wrong = _wrong(record, needed, f"{path}:{number}")
        if wrong:
            notes.append(f"{path}:{number}: {wrong}, left out; its visit counts as not made")
        else:
            records.append(record)
    return records, notes


def _wrong(record: Any, needed: tuple[str, ...], place: str) -> str | None:
    """Why a line is no record. Raises RequestError when it is one that only a newer attnbench can read."""
    if not isinstance(record, dict):
        return "not a whole record"
    schema = record.get("schema", SCHEMA)
    if isinstance(schema, int) and schema > SCHEMA:
        raise RequestError([f"{place}: schema {schema} of a newer attnbench; this one reads up to {SCHEMA}"])
    if not all(key in record for key in needed) or record.get("status", "ok") not in STATUSES:
        return "not a whole record"
    return distrust(record)


def read(*runs: str | Path) -> pd.DataFrame:
    """One row per requested cell of a run folder, visits merged; `time_s` is the median of the visits' medians.

    time_low_s, time_high_s: its 95 % interval, see `attnbench.intervals`. visit_samples_s: samples_s visit by visit.

    Of several folders, the rows of one after the other, told apart by the column `run`, which else is empty. Raises
    RequestError when a folder holds no run or is named twice. Torn records are left out with a note on standard error.
    """
    names = run_names(runs) if len(runs) > 1 else [None]
    rows = [row | {"run": name} for name, run in zip(names, runs, strict=True) for row in _rows(Path(run))]
    frame = pd.DataFrame(rows, columns=[*COLUMNS, *_extra_columns(rows)])
    return frame.astype({"cell": str}) if len(frame) else frame


def run_names(runs: Sequence[str | Path]) -> list[str]:
    """What several runs are called: by their folders or, where two have the same name, by their paths."""
    paths = [Path(run).resolve() for run in runs]
    if twice := [str(run) for run, path in zip(runs, paths, strict=True) if paths.count(path) > 1]:
        raise RequestError([f"{twice[0]}: is named twice"])
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]


@dataclass(frozen=True)
class Run:
    """A run folder as a person uses it from Python."""

    path: Path

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The cells and what they gave, see `read`."""
        return read(self.path)

    @property
    def environment(self) -> dict[str, Any]:
        """The machine and the versions that the run recorded; empty when its file is lost or torn."""
        with suppress(OSError, ValueError):
            environment = json.loads((self.path / "environment.json").read_text(encoding="utf-8"))
            return environment if isinstance(environment, dict) else {}
        return {}

    @property
    def counts(self) -> dict[str, int]:
        """Number of cells per status; the values add up to the number of requested cells."""
        return {str(status): int(n) for status, n in self.frame["status"].value_counts().items()}

    @property
    def n_disturbed(self) -> int:
        """Number of cells whose time comes from disturbed visits alone."""
        return sum(is_disturbed({"flags": flags}) for flags in self.frame["flags"] if isinstance(flags, list))

    @property
    def as_asked(self) -> bool:
        """Whether every cell is ok, unsupported or skipped."""
        return all(status in AS_ASKED for status in self.counts)


def _rows(path: Path) -> list[Record]:
    """The cells of one run folder, with what their visits gave."""
    if not (path / "cells.jsonl").is_file():
        raise RequestError([f"{path}: no run here (cells.jsonl is missing)"])
    cells, cell_notes = read_lines(path / "cells.jsonl", ("cell", "measures", "variant"))
    records, notes = read_records(path)
    for note in dict.fromkeys(cell_notes + notes):
        if note not in _told:
            print(f"note: {note}", file=sys.stderr)
            _told.add(note)
    by_cell: dict[str, list[Record]] = {}
    for record in records:
        by_cell.setdefault(record["cell"], []).append(record)
    rows = [_row(cell, by_cell.get(cell["cell"], [])) for cell in cells]
    _add_intervals([row for row in rows if "visit_samples_s" in row])
    peaks = Run(path).environment.get("peaks", {})
    return [roofed(row, peaks) for row in rows]


def _add_intervals(timed: list[Record]) -> None:
    """Give the rows of one run that have times their intervals; how far visits lie apart is learnt from all of them."""
    typical = typical_spread([row["visit_samples_s"] for row in timed])
    for row in timed:
        row["time_low_s"], row["time_high_s"] = interval(row["visit_samples_s"], typical)


def _row(cell: Record, records: list[Record]) -> Record:
    """Merge a cell with the visits that worked on it; what a good visit read back replaces what was requested."""
    visits = {measure: [r for r in records if r["measure"] == measure] for measure in cell["measures"]}
    latest = [_latest(measure, made, cell.get("wanted", {}).get(measure, 1)) for measure, made in visits.items()]
    worst = max(latest, key=lambda record: STATUSES.index(record["status"]))
    row: Record = {key: value for key, value in cell.items() if key != "wanted"}
    for record in latest:
        row |= {key: value for key, value in record.items() if value is not None}
    if "flags" in row:
        row["flags"] = [flag for record in latest for flag in record.get("flags") or ()]
    for name, fact in row.pop("extra", {}).items():
        row.setdefault(name, fact)  # a variant's own facts replace no column that the cell has
    row |= {"status": worst["status"], "reason": worst.get("reason"), "visits": sum(map(len, visits.values()))}
    row |= {name: _compact(row.get(name)) for name in ("options", "task_options", "pretrain_options", "matched")}
    row.setdefault("match", "none")  # as in runs from before there was a choice
    for key in ("measure", "schema", "digest", "pretrain_digest"):
        row.pop(key, None)
    return row | _times(visits.get("time", []), row)


def _latest(measure: Measure, visits: list[Record], n_wanted: int) -> Record:
    """What the latest visit gave: figures count when it was good, and the cell when all its visits were made."""
    if not visits:
        return {"status": "pending", "reason": "no visit made"}
    latest = visits[-1]
    if latest["status"] not in MEASURED:
        return {"status": latest["status"], "reason": latest.get("reason")}
    n_left = sum(Agenda({(latest["cell"], measure): n_wanted}, visits).left.values())
    missing = {"status": "pending", "reason": f"{n_wanted - n_left} of {n_wanted} visits made"}
    shown = counted(visits)[-1] if latest["status"] == "ok" else latest
    return shown | (missing if n_left else {})


def _times(visits: list[Record], row: Mapping[str, Any]) -> Record:
    """Of the visits that count, the samples, the median of their medians, and the rate of visible operations.

    A visit that samples longer weighs no more: what differs between processes is no less real for it.
    disturbed: how many of all visits were.
    """
    samples = [visit["samples_s"] for visit in counted(visits)]
    if not samples:
        return {}
    times: Record = {
        "samples_s": [sample for of_visit in samples for sample in of_visit],
        "visit_samples_s": samples,
        "time_s": (time_s := median([median(of_visit) for of_visit in samples])),
        "disturbed": sum(map(is_disturbed, visits)),
    }
    return times | ({"flops_per_s": row["flops"] / time_s} if row.get("flops") is not None else {})


def _compact(options: Mapping[str, Any] | None) -> str | None:
    return None if options is None else json.dumps(options, sort_keys=True)


def _extra_columns(rows: Iterable[Record]) -> list[str]:
    return [key for key in dict.fromkeys(key for row in rows for key in row) if key not in COLUMNS]


def json_line(row: Mapping[str, Any]) -> str:
    """One row as a line of JSON; what JSON has no form for (a plugin may put anything into a record) as text."""
    return json.dumps(row, default=str) + "\n"

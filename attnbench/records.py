"""Run folders: what was asked (cells.jsonl), what each visit gave (records.jsonl), and both as one DataFrame.

    sweep.toml        the file that was run; overrides stand in environment.json
    cells.jsonl       one line per requested cell, written before any of them runs
    environment.json  machine and versions; no host, user or path names
    records.jsonl     one flat object per visit, appended and flushed as soon as the visit ends
    plugins/          copies of the plugin files, each named in environment.json

Nothing measured is ever rewritten: a later record of the same cell and measure stands beside the earlier one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from filelock import FileLock, Timeout

from attnbench import plugin_files
from attnbench.errors import RequestError
from attnbench.roofs import roofed
from attnbench.settings import Measure
from attnbench.statistics import median, median_interval
from attnbench.trust import distrust

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
FILES = ("sweep.toml", "environment.json", "cells.jsonl", "records.jsonl")
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
    "seed",
    "status",
    "reason",
    "visits",
    "samples_s",
    "calls",
    "sampled_s",
    "warmup_s",
    "first_call_s",
    "compile_s",
    "overhead_s",
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
    "n_scored",
    "n_test",
    "loss",
    "slices",
    "slice_unit",
    "trials",
    "lr",
    "fingerprint",
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


class RunFolder:
    """A run folder open for writing, locked against a second writer until closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path / ".lock")

    @classmethod
    def create(cls, path: Path) -> RunFolder:
        """Make the folder when it is not there, and lock it.

        Raises RequestError when another run holds it, or when it holds somebody's files and no run.
        """
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if folder._holds_foreign_files():
                raise RequestError([f"{path}: is not empty and holds no run; choose another folder"])
            folder._lock.acquire(timeout=0)
        except Timeout as error:
            raise RequestError([f"{path}: another run is writing to this folder"]) from error
        except OSError as error:
            raise RequestError([f"{path}: cannot be written: {error.strerror}"]) from error
        return folder

    @property
    def used(self) -> bool:
        """Whether the folder holds a run already."""
        return (self.path / "cells.jsonl").exists() or (self.path / "records.jsonl").exists()

    def _holds_foreign_files(self) -> bool:
        ours = (".lock", *FILES, *map(_draft, FILES))
        others = {entry for entry in self.path.iterdir() if entry.name not in ours}
        others -= {entry for entry in others if entry.name == plugin_files.FOLDER and self._holds_copies_alone(entry)}
        return not self.used and bool(others)

    def _holds_copies_alone(self, plugins: Path) -> bool:
        copies = {name for copy in self._copies() for name in (copy.name, _draft(copy.name))}
        return plugins.is_dir() and all(entry.name in copies for entry in plugins.iterdir())

    def _copies(self) -> list[Path]:
        """Where the run in this folder says that it keeps plugin files."""
        names = Run(self.path).environment.get("plugins", [])
        plain = [name for name in names if isinstance(name, str) and Path(name).name == name]
        return [self.path / plugin_files.FOLDER / name for name in plain]

    def holds(self, sweep: str) -> bool:
        """Whether the run in this folder was made by this very sweep file."""
        with suppress(OSError):
            return (self.path / "sweep.toml").read_bytes() == sweep.encode()
        return False

    @property
    def cells(self) -> set[str]:
        """The cells that the run in this folder asked for, or measured."""
        asked, _ = read_lines(self.path / "cells.jsonl")
        return {line["cell"] for line in (*asked, *read_records(self.path)[0])}

    def clear(self) -> None:
        """Forget an earlier run: its measurements, its report and its copies of plugins go, nothing else does."""
        for file in (*self._copies(), *(self.path / name for name in (*FILES, "report.html"))):
            file.unlink(missing_ok=True)
        with suppress(OSError):  # somebody's files keep it
            (self.path / plugin_files.FOLDER).rmdir()
        for name in ("tables", "plots"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def begin(
        self,
        sweep: str,
        rows: Iterable[Mapping[str, Any]],
        environment: Mapping[str, Any],
        plugins: Mapping[str, bytes] | None = None,
    ) -> None:
        """Write the present request: sweep.toml, cells.jsonl, environment.json and plugin files by name.

        Records stay as they are.
        """
        plugins = plugins or {}
        copies = dict.fromkeys([*(copy.name for copy in self._copies()), *plugins])
        facts = {**environment, "plugins": [*copies]} if copies else environment
        _write(self.path / "sweep.toml", sweep)
        _write(self.path / "environment.json", json.dumps(facts, indent=2) + "\n")
        for name, source in plugins.items():
            (self.path / plugin_files.FOLDER).mkdir(exist_ok=True)
            _write(self.path / plugin_files.FOLDER / name, source)
        _write(self.path / "cells.jsonl", "".join(_line(row) for row in rows))  # last: with it, the run is whole

    def append(self, record: Record) -> None:
        """Add one record on a line of its own and see it to the disk. Raises OSError with the file when it is full."""
        with _naming(self.path / "records.jsonl") as path:
            append(path, record)

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()


def append(path: Path, record: Record) -> None:
    """Append one record as a line; a torn line before it keeps a line of its own."""
    line = _line({"schema": SCHEMA} | record).encode()
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


def visits_left(
    records: Iterable[Record], wanted: Mapping[tuple[str, Measure], int], retry: Collection[str] = ()
) -> dict[tuple[str, Measure], int]:
    """How many of the wanted visits of each (cell, measure) are still to be made.

    None after one that went wrong, all of them when it went wrong in a way (a status in `retry`) to be tried again.
    """
    left = dict(wanted)
    for record in records:
        key = (record["cell"], record["measure"])
        if key in left:
            again = wanted[key] if record["status"] in retry else 0
            left[key] = max(0, left[key] - 1) if record["status"] == "ok" else again
    return left


def read(*runs: str | Path) -> pd.DataFrame:
    """One row per requested cell of a run folder, visits merged; `time_s` is the median over all samples, in seconds.

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
    peaks = Run(path).environment.get("peaks", {})
    return [roofed(_row(cell, by_cell.get(cell["cell"], [])), peaks) for cell in cells]


def _row(cell: Record, records: list[Record]) -> Record:
    """Merge a cell with the visits that worked on it; what a visit read back replaces what was requested."""
    visits = {measure: [r for r in records if r["measure"] == measure] for measure in cell["measures"]}
    latest = [made[-1] if made else {"status": "pending", "reason": None} for made in visits.values()]
    worst = max(latest, key=lambda record: STATUSES.index(record["status"]))
    row: Record = dict(cell)
    for record in latest:
        row |= {key: value for key, value in record.items() if value is not None}
    if "flags" in row:
        row["flags"] = [flag for record in latest for flag in record.get("flags") or ()]
    for name, fact in row.pop("extra", {}).items():
        row.setdefault(name, fact)  # a variant's own facts take no column that means something else
    row |= {"status": worst["status"], "reason": worst.get("reason"), "visits": sum(map(len, visits.values()))}
    row |= {"options": _compact(row["options"]), "task_options": _compact(row["task_options"])}
    for key in ("measure", "schema", "digest"):
        row.pop(key, None)
    return row | _times([r for r in visits.get("time", []) if r["status"] == "ok"], row)


def _times(visits: list[Record], row: Mapping[str, Any]) -> Record:
    """The median of the visits' medians, the hull of their intervals, and the rate of visible operations.

    A visit that samples longer weighs no more: what differs between processes is no less real for it.
    """
    samples = [visit["samples_s"] for visit in visits]
    if not samples:
        return {}
    time_s = median([median(of_visit) for of_visit in samples])
    low_s, high_s = zip(*(median_interval(of_visit) for of_visit in samples), strict=True)
    times: Record = {
        "samples_s": [sample for of_visit in samples for sample in of_visit],
        "time_s": time_s,
        "time_low_s": min(low_s),
        "time_high_s": max(high_s),
    }
    return times | ({"flops_per_s": row["flops"] / time_s} if row.get("flops") is not None else {})


def _compact(options: Mapping[str, Any] | None) -> str | None:
    return None if options is None else json.dumps(options, sort_keys=True)


def _extra_columns(rows: Iterable[Record]) -> list[str]:
    return [key for key in dict.fromkeys(key for row in rows for key in row) if key not in COLUMNS]


def _line(row: Mapping[str, Any]) -> str:
    """One row as a line of JSON; what JSON has no form for (a plugin may put anything into a record) as text."""
    return json.dumps(row, default=str) + "\n"


def _draft(name: str) -> str:
    return f"{name}.part"


def _write(path: Path, content: str | bytes) -> None:
    """Replace a file whole, so that a full disk or a kill leaves the old one."""
    with _naming(path.with_name(_draft(path.name))) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        draft.replace(path)


@contextmanager
def _naming(path: Path) -> Iterator[Path]:
    """Let an error that comes of writing, not of opening, name the file too."""
    try:
        yield path
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or str(path)) from error

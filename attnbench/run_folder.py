"""Run folders as they are written: one at a time, each file whole, and nobody else's files touched.

sweep.toml        the file that was run; overrides stand in environment.json
cells.jsonl       one line per requested cell, written before any of them runs
environment.json  machine and versions; no host, user or path names
records.jsonl     one flat object per visit, appended and flushed as soon as the visit ends
plugins/          copies of the plugin files, each named in environment.json
weights/          trained weights that cells with `pretrain` start from; a run makes them again where they are missing
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from attnbench import plugin_files
from attnbench.errors import RequestError
from attnbench.records import Record, Run, append, json_line, read_lines, read_records

FILES = ("sweep.toml", "environment.json", "cells.jsonl", "records.jsonl")
WEIGHTS = "weights"
# What a report, and pretraining, write into a run folder.
MADE = {"tables": (".csv", ".md", ".tex"), "plots": (".svg", ".png"), WEIGHTS: (".pt", ".part")}


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

    @property
    def weights(self) -> Path:
        """Where visits keep trained weights; made by the first that has any."""
        return self.path / WEIGHTS

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
        """Forget an earlier run: its measurements, report, weights and copies of plugins go, nothing else does."""
        for file in (*self._copies(), *(self.path / name for name in (*FILES, "report.html"))):
            file.unlink(missing_ok=True)
        with suppress(OSError):  # somebody's files keep it, and the folders below
            (self.path / plugin_files.FOLDER).rmdir()
        for name, suffixes in MADE.items():
            for suffix in suffixes:
                for file in (self.path / name).glob(f"*{suffix}"):
                    file.unlink(missing_ok=True)
            with suppress(OSError):
                (self.path / name).rmdir()

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
        _write(self.path / "cells.jsonl", "".join(json_line(row) for row in rows))  # last: with it, the run is whole

    def append(self, record: Record) -> None:
        """Add one record on a line of its own and see it to the disk. Raises OSError with the file when it is full."""
        with _naming(self.path / "records.jsonl") as path:
            append(path, record)

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()


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

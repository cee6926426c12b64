"""The plugin files of a run: where a sweep's paths lead, and the copies that its folder keeps in `plugins/`.

Copies lie side by side under the name of the file; of two files with one name the later is kept as NAME-2.py. A plugin
path that leads nowhere is looked for under that name in the `plugins/` beside the sweep file, so that the sweep.toml of
a run folder runs again from there.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attnbench.errors import RequestError
from attnbench.settings import as_list

FOLDER = "plugins"
Files = str | Path | Iterable[str | Path]


def listed(files: Files) -> list[Path]:
    """One file or several, as a list: "x.py" is one file and not four letters."""
    return [Path(files)] if isinstance(files, str | Path) else [Path(file) for file in files]


def find(tables: Mapping[str, Any], sweep: Path, more: Iterable[Path]) -> dict[str, Path]:
    """Name to be kept under -> absolute path, of the plugins of a sweep (relative to it) and of `more` (to here).

    Raises RequestError for each one that is not there.
    """
    own = [sweep.parent / name for name in as_list(tables.get("plugins", [])) if isinstance(name, str)]
    found = {name: _existing(file, sweep.parent / FOLDER / name) for name, file in _kept_names([*own, *more]).items()}
    missing = [f"{file}: no such plugin file" for file in found.values() if not file.is_file()]
    if missing:
        raise RequestError(missing)
    return {name: file.resolve() for name, file in found.items()}


def contents(files: Mapping[str, Path]) -> dict[str, bytes]:
    """Name -> source, of what `find` found. Raises RequestError where a file cannot be read."""
    try:
        return {name: file.read_bytes() for name, file in files.items()}
    except OSError as error:
        raise RequestError([f"{error.filename}: {error.strerror}"]) from error


def _kept_names(files: Iterable[Path]) -> dict[str, Path]:
    """A name of its own for each file; it depends on the paths as written, not on what they lead to."""
    kept: dict[str, Path] = {}
    for file in {os.path.abspath(file): file for file in files}.values():
        names = itertools.chain([file.name], (f"{file.stem}-{n}{file.suffix}" for n in itertools.count(2)))
        kept[next(name for name in names if name not in kept)] = file
    return kept


def _existing(file: Path, copy: Path) -> Path:
    return copy if copy.is_file() and not file.is_file() else file

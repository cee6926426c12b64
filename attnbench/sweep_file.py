"""The TOML of a sweep file, with `--set KEY=VALUE` applied, before anything is known of its values."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attnbench.errors import RequestError
from attnbench.sweep import IN_ACCURACY_ALONE, NOT_IN_ACCURACY, Grid, Sweep, list_of, unknown_key


def read_toml(path: Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """The tables of a sweep file with `KEY=VALUE` overrides applied. Raises RequestError with file, line and column."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise RequestError([f"{path}: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise RequestError([f"{path}: not UTF-8 text: byte {error.object[error.start]:#x} at {error.start}"]) from error
    except ValueError as error:
        raise RequestError([f"{path}: not valid TOML: {error}"]) from error
    mistakes = [mistake for override in overrides if (mistake := _override(tables, override))]
    if mistakes:
        raise RequestError(mistakes)
    return tables


def _override(tables: dict[str, Any], override: str) -> str | None:
    """Apply one `KEY=VALUE`: a grid key goes into every grid that it can apply to, a dotted key into its table.

    Returns what is wrong with it, or None.
    """
    key, equals, text = override.partition("=")
    key, value = key.strip(), _toml_value(text.strip())
    if not equals or not key:
        return f"--set {override}: expected KEY=VALUE, for example --set T=[64,128]"
    *parents, last = key.split(".")
    if not parents and last in Grid.model_fields:
        grids = [grid for grid in list_of(tables.get("grid")) if isinstance(grid, dict)]
        meant = [grid for grid in grids if _applies(last, grid, tables)]
        for grid in meant:
            grid[last] = value
        return f"--set {override}: no [[grid]] of this file has a use for {last}" if grids and not meant else None
    first = key.partition(".")[0]
    if first not in Sweep.model_fields:
        return f"--set {override}: {unknown_key(first, {*Sweep.model_fields, *(() if parents else Grid.model_fields)})}"
    table = tables
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            return f"--set {override}: {parent} is not a table"
    table[last] = value
    return None


def _applies(key: str, grid: Mapping[str, Any], tables: Mapping[str, Any]) -> bool:
    """Whether an override means this grid: accuracy grids know no phase, level or B, the others no task."""
    defaults = tables.get("defaults")
    measure = grid.get("measure", defaults.get("measure") if isinstance(defaults, dict) else None)
    accuracy = "accuracy" in list_of(measure)
    return key not in (NOT_IN_ACCURACY if accuracy else IN_ACCURACY_ALONE)


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text  # a bare word: --set variant=linear

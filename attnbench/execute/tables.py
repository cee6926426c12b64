"""A sweep that a program makes up: written as the file that a person would write, and run like any other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.execute import runner
from attnbench.records import Run

SWEEP = "asked.toml"


def run_tables(tables: Mapping[str, Any], folder: Path, *, out: Path | None = None, **asked: Any) -> Run:
    """Run a sweep given by its tables; the file is left in `folder`, and so is the run folder, unless `out` is one.

    asked: further arguments of `runner.run`. Raises RequestError as that does.
    """
    file = folder / SWEEP
    file.write_text(toml(tables), encoding="utf-8")
    return runner.run(file, out=out or folder / "run", **asked)


def toml(tables: Mapping[str, Any]) -> str:
    """The tables as a sweep file: plain keys first, then tables, then lists of tables, each of inline values."""
    plain, single, several = [], [], []
    for key, value in tables.items():
        if isinstance(value, Mapping):
            single.append(_table(f"[{_key(key)}]", value))
        elif _is_list_of_tables(key, value):
            several += [_table(f"[[{key}]]", part) for part in value]
        else:
            plain.append(f"{_key(key)} = {_inline(value)}\n")
    return "".join([*plain, *single, *several])


def _is_list_of_tables(key: str, value: object) -> bool:
    return key == "grid" and isinstance(value, Sequence)


def _table(head: str, table: Mapping[str, Any]) -> str:
    return f"{head}\n" + "".join(f"{_key(key)} = {_inline(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if key.isascii() and key.replace("_", "").replace("-", "").isalnum() else _text(key)


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_inline(part)}" for key, part in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    """JSON's escapes are TOML's too, but for pairs of surrogates; TOML wants one more control character escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

"""Small runs in a folder that does not outlive them, by the same runner as any other."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pandas import DataFrame

from attnbench.execute import runner
from attnbench.execute.listener import Listener
from attnbench.records import Record

TIMING = {"visits": 3, "warmup_s": 0.05, "max_s": 0.15}


@dataclass(frozen=True)
class Ran:
    """What a run gave: its frame, the record of each visit, and the wall time of the whole, in seconds."""

    frame: DataFrame
    records: list[Record]
    wall_s: float


class _Ear(Listener):
    def __init__(self) -> None:
        self.records: list[Record] = []

    def ended(self, *, record: Record, **_: Any) -> None:
        self.records.append(record)


def ran(
    grid: Mapping[str, Any],
    *,
    timing: Mapping[str, Any] = TIMING,
    plugin: str | None = None,
    start_method: str | None = None,
) -> Ran:
    """Run one grid, one visit after the other. plugin: the text of a plugin file.

    Raises RuntimeError when a cell is not ok: then there is nothing to judge the instrument by.
    """
    with tempfile.TemporaryDirectory(prefix="attnbench-calibration-") as name:
        folder, ear = Path(name), _Ear()
        plugins = [folder / "plugin.py"] if plugin else []
        for path in plugins:
            path.write_text(plugin or "", encoding="utf-8")
        (folder / "sweep.toml").write_text(sweep(grid, timing), encoding="utf-8")
        start_s = time.perf_counter()
        run = runner.run(
            folder / "sweep.toml",
            out=folder / "run",
            plugins=plugins,
            workers=1,
            start_method=start_method,
            listener=ear,
        )
        wall_s = time.perf_counter() - start_s
        frame = run.frame
    _check_ok(frame)
    return Ran(frame, ear.records, wall_s)


def sweep(grid: Mapping[str, Any], timing: Mapping[str, Any]) -> str:
    """A sweep file of one grid."""
    tables = {"[[grid]]": grid, "[timing]": timing}
    return "".join(
        f"{head}\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())
        for head, table in tables.items()
    )


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def _check_ok(frame: DataFrame) -> None:
    wrong = frame[frame["status"] != "ok"]
    if len(wrong):
        first = wrong.iloc[0]
        raise RuntimeError(f"{len(wrong)} of {len(frame)} cells are not ok; {first['label']}: {first['reason']}")

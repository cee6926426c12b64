"""Small runs in a folder that does not outlive them, by the same runner as any other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pandas import DataFrame

from attnbench.execute.listener import Listener
from attnbench.execute.tables import run_tables
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
        tables = {"grid": [grid], "timing": timing}
        start_s = time.perf_counter()
        run = run_tables(tables, folder, plugins=plugins, workers=1, start_method=start_method, listener=ear)
        wall_s = time.perf_counter() - start_s
        frame = run.frame
    _check_ok(frame)
    return Ran(frame, ear.records, wall_s)


def _check_ok(frame: DataFrame) -> None:
    wrong = frame[frame["status"] != "ok"]
    if len(wrong):
        first = wrong.iloc[0]
        raise RuntimeError(f"{len(wrong)} of {len(frame)} cells are not ok; {first['label']}: {first['reason']}")

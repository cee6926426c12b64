"""Cells of a run explained: found by their ids, rebuilt as the run's sweep says, and looked at in fresh processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from attnbench import plugin_files
from attnbench.cells import Cell
from attnbench.errors import RequestError, nearest
from attnbench.execute.local import FreshProcesses
from attnbench.execute.plan import Plan, make_plan
from attnbench.records import Run, read_lines
from attnbench.sweep_file import read_toml

MEASURED = (  # what the run itself knows of a cell
    "time_s",
    "peak_bytes",
    "flops",
    "flops_executed",
    "bytes_moved",
    "roof_share",
    "roof_bytes_per_s",
    "n_params",
)
NAMES = ("cell", "digest", "label", "measures", "wanted", "device_name")  # what may differ in the same cell of later


@dataclass(frozen=True)
class Explained:
    """One cell. facts: of `execute.explain.explain`, and of the run by MEASURED. note: what weakens them, or ""."""

    id: str
    cell: Cell
    facts: dict[str, Any]
    note: str = ""

    @property
    def title(self) -> str:
        """The cell in a few words."""
        return f"{self.cell.label} {self.cell.level} {self.cell.phase} T={self.cell.T} d_model={self.cell.d_model}"


def explain(run: Path, asked: Sequence[str]) -> list[Explained]:
    """Explain cells of a run, each given by its id or the beginning of it.

    Raises RequestError when the folder holds no run, when an id is unknown or stands for several cells, when a cell
    trains, and when its variant cannot run here.
    """
    if not (run / "cells.jsonl").is_file():
        raise RequestError([f"{run}: no run here (cells.jsonl is missing)"])
    rows, _ = read_lines(run / "cells.jsonl", ("cell", "measures", "variant"))
    chosen = [find(rows, one, run) for one in asked]
    if len({row["cell"] for row in chosen}) < len(chosen):
        raise RequestError([f"{' and '.join(asked)}: expected two cells, got one twice"])
    frame = Run(run).frame.set_index("cell")
    with FreshProcesses() as processes:
        plan = _plan(processes, run)
        return [_explained(processes, plan, row, frame.loc[row["cell"]]) for row in chosen]


def find(rows: Sequence[dict[str, Any]], asked: str, run: Path) -> dict[str, Any]:
    """The one cell whose id begins so. Raises RequestError with the nearest id, or those that it could be."""
    found = [row for row in rows if row["cell"].startswith(asked)] if asked else []
    if len(found) > 1:
        raise RequestError([f"{asked}: stands for {', '.join(row['cell'] for row in found)}; expected one cell"])
    if not found:
        near = nearest(asked, known := {row["cell"][: len(asked)]: row["cell"] for row in rows})
        hint = f'did you mean "{known[near]}"?' if near else f"its {len(rows)} cells stand in cells.jsonl"
        raise RequestError([f"{run}: no cell {asked}; {hint}"])
    if "accuracy" in found[0]["measures"]:
        raise RequestError([f"{found[0]['cell']}: trains; expected a cell of time or memory"])
    return found[0]


def _plan(processes: FreshProcesses, run: Path) -> Plan:
    """What the run's own sweep asks for now, with the plugin files that its folder keeps."""
    about, sweep = Run(run).environment, run / "sweep.toml"
    copies = [run / plugin_files.FOLDER / name for name in about.get("plugins", [])]
    return make_plan(processes, sweep, read_toml(sweep, about.get("overrides", [])), plugins=copies)


def _explained(processes: FreshProcesses, plan: Plan, row: dict[str, Any], known: pd.Series) -> Explained:
    cell = next((cell for cell in plan.cells if cell.id == row["cell"]), None)
    note = "" if cell else "attnbench, torch or the variant has changed since the run; this is the cell as it is now"
    cell = cell or next((cell for cell in plan.cells if _settings(cell.row()) == _settings(row)), None)
    if cell is None:
        raise RequestError([f"{row['cell']}: the run's sweep.toml asks for no such cell any more"])
    outcome = processes.call(
        "attnbench.execute.explain:explain", plan.order(cell, cell.measures[0]), timeout_s=plan.timeout_s
    )
    if outcome.status != "ok":
        raise RequestError([f"{row['cell']}: {outcome.status}: {outcome.reason}"])
    measured = {name: None if pd.isna(known[name]) else float(known[name]) for name in MEASURED}
    return Explained(row["cell"], cell, outcome.value | measured, note)


def _settings(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in NAMES}

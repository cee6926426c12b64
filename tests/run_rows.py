"""Cells and rows of cells.jsonl and records.jsonl by hand, and a run folder made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnbench.cells import Cell
from attnbench.run_folder import RunFolder
from attnbench.sweep import VariantUse

CELL = {
    "variant": "full",
    "label": "full",
    "options": {"window": None},
    "role": "causal",
    "level": "layer",
    "phase": "forward",
    "T": 64,
    "S": 64,
    "B": 1,
    "d_model": 64,
    "n_heads": 4,
    "max_T": 64,
    "n_layers": None,
    "d_ff": None,
    "embedding_std": None,
    "positions": None,
    "dtype": "float32",
    "device": "cpu",
    "threads": 1,
    "compile": False,
    "task": None,
    "task_options": None,
    "seed": 0,
    "measures": ["time"],
    "digest": "abc",
}


def cell(name: str, **more: Any) -> dict[str, Any]:
    return CELL | {"cell": name} | more


def tiny_cell(**changes: Any) -> Cell:
    """A cell of a small mixer of the test's own."""
    sizes = {"T": 12, "S": 12, "max_T": 12, "B": 3, "d_model": 8, "n_heads": 2}
    parts = {"parts": (VariantUse("dense"),), "label": "", "measures": ("time",), "digest": ""}
    settings = {key: value for key, value in CELL.items() if key not in ("variant", "options")}
    return Cell(**settings | parts | sizes | changes)


def record(name: str, measure: str = "time", status: str = "ok", **more: Any) -> dict[str, Any]:
    return {"cell": name, "measure": measure, "variant": "full", "status": status, "reason": None} | more


def timed(name: str, *samples_s: float, **more: Any) -> dict[str, Any]:
    return record(name, samples_s=list(samples_s), flops=1e6, **more)


def run_of(path: Path, cells: list[dict[str, Any]], records: list[dict[str, Any]]) -> Path:
    folder = RunFolder.create(path)
    folder.begin("", cells, {"torch": "2"})
    for each in records:
        folder.append(each)
    folder.close()
    return path

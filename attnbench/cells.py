"""Cells: the points of a sweep, each frozen, fully resolved and named by a digest of everything that decides it."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from attnbench.catalogue import Catalogue, variant_key
from attnbench.settings import DType, Level, Measure, Phase, PositionKind, Role
from attnbench.sweep import Sweep, VariantUse, points
from attnbench.wording import printable


@dataclass(frozen=True)
class Cell:
    """One point of a sweep. A field is None where the cell's level or measure has no use for it.

    label: how tables and plots call the variant; it names options when a sweep uses one variant with several.
    digest: of the sources and settings beyond these fields that decide the numbers.
    cross: the variant that is the decoder's cross-attention, where the task is sequence to sequence.
    """

    variant: str
    options: Mapping[str, Any]
    role: Role
    level: Level
    phase: Phase | None
    T: int
    S: int
    B: int
    d_model: int
    n_heads: int
    max_T: int
    n_layers: int | None
    d_ff: int | None
    embedding_std: float | None
    positions: PositionKind | None
    dtype: DType
    device: str
    threads: int
    task: str | None
    task_options: Mapping[str, Any] | None
    seed: int
    measures: tuple[Measure, ...]
    cross: str | None = None
    digest: str = ""
    label: str = field(default="", compare=False)

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that say what the cell is; measures and label are not part of it."""
        settings = {key: value for key, value in asdict(self).items() if key not in ("measures", "label")}
        return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:12]

    @property
    def mixer_roles(self) -> tuple[Role, ...]:
        """The roles that the variant itself fills: both of an encoder-decoder, or the one that was asked for."""
        return ("bidirectional", "causal") if self.cross else (self.role,)

    def row(self) -> dict[str, Any]:
        """The cell as one line of cells.jsonl."""
        row = asdict(self)
        return {"cell": self.id} | row | {"measures": list(self.measures)}


def expand(sweep: Sweep, catalogue: Catalogue, context: str) -> list[Cell]:
    """All cells of a valid sweep, united over its grids, in the order of the file.

    context: torch's version and the kind of device; it goes into each id. A cell of two grids has the measures of both.
    """
    cells: dict[str, Cell] = {}
    for grid in sweep.grid:
        for point in points(grid, sweep.defaults):
            cell = _cell(point, sweep, catalogue, context)
            before = cells[cell.id].measures if cell.id in cells else ()
            cells[cell.id] = replace(cell, measures=tuple(dict.fromkeys((*before, *cell.measures))))
    return _labelled(list(cells.values()))


def _cell(point: Mapping[str, Any], sweep: Sweep, catalogue: Catalogue, context: str) -> Cell:
    """Resolve one point."""
    use: VariantUse = point["variant"]
    described = catalogue.variants[variant_key(use.name, {**sweep.options.get(use.name, {}), **use.options})]
    T, S, level, task = point["T"], point.get("S") or point["T"], point["level"], point.get("task")
    model, block = level == "model", level in ("block", "model")
    d_ff = point.get("d_ff")
    task_described = catalogue.tasks[variant_key(task, sweep.tasks.get(task, {}))] if task else None
    settings = sweep.train if task else sweep.timing
    decides = [
        context,
        catalogue.digests["accuracy" if task else "cost"],
        described.digest,
        task_described.digest if task_described else "",
        settings.model_dump_json(exclude={"visits"}),  # how often, not how: more visits of a cell join the earlier ones
    ]
    return Cell(
        variant=use.name,
        options=dict(described.options),
        role=point["role"],
        level=level,
        phase=point["phase"],
        T=T,
        S=S,
        B=point["B"] or sweep.train.batch_size,
        d_model=point["d_model"],
        n_heads=point["d_model"] // point["d_head"] if "d_head" in point else point["n_heads"],
        max_T=point.get("max_T") or max(T, S) + (point["phase"] == "decode"),  # the token that is timed comes after T
        n_layers=point["n_layers"] if model else None,
        d_ff=(4 * point["d_model"] if d_ff is None else d_ff) if block else None,
        embedding_std=point["embedding_std"] if model else None,
        positions=(point.get("positions") or described.positions) if model else None,
        dtype=point["dtype"],
        device=catalogue.devices[-1] if point["device"] == "auto" else point["device"],
        threads=point["threads"],
        task=task,
        task_options=dict(task_described.options) if task_described else None,
        seed=point["seed"],
        measures=point["measures"],
        cross=task_described.cross if task_described else None,
        digest=hashlib.sha256("\n".join(decides).encode()).hexdigest()[:16],
    )


def _labelled(cells: list[Cell]) -> list[Cell]:
    """Name cells by variant, and by the options that tell two uses of one variant apart."""
    options = defaultdict(list)
    for cell in cells:
        options[cell.variant].append(cell.options)
    return [replace(cell, label=_label(cell, options[cell.variant])) for cell in cells]


def _label(cell: Cell, all_options: list[Mapping[str, Any]]) -> str:
    differing = [key for key in cell.options if any(other.get(key) != cell.options[key] for other in all_options)]
    options = ", ".join(f"{key}={printable(str(cell.options[key]))}" for key in differing)
    return cell.variant + (f"[{options}]" if differing else "")

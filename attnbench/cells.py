"""Cells: the points of a sweep, each frozen, fully resolved and named by a digest of everything that decides it."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from attnbench.catalogue import Catalogue, variant_key
from attnbench.settings import DType, Level, Measure, Phase, PositionKind, Role, most_positions
from attnbench.sweep import Sweep, VariantUse, points
from attnbench.wording import printable


@dataclass(frozen=True)
class Cell:
    """One point of a sweep. A field is None where the cell's level or measure has no use for it.

    parts: the variant that fills every layer, or several that the layers repeat in turn, each with all its options.
    label: how tables and plots call the variant; it names options when a sweep uses one variant with several.
    digest: of the sources and settings beyond these fields that decide the numbers.
    cross: the variant that is the decoder's cross-attention, where the task is sequence to sequence.
    d_used: the width really used, where parameters are matched; d_model is the one that was asked for, by which cells
    are compared.
    device_name: what kind of device it is, so that numbers of two machines are never those of one cell.
    """

    parts: tuple[VariantUse, ...]
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
    compile: bool
    task: str | None
    task_options: Mapping[str, Any] | None
    seed: int
    measures: tuple[Measure, ...]
    cross: str | None = None
    device_name: str = ""
    d_used: int | None = None
    digest: str = ""
    label: str = field(default="", compare=False)

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that say what the cell is; measures and label are not part of it."""
        apart = ("measures", "label", *(["d_used"] if self.d_used is None else []))
        settings = {key: value for key, value in asdict(self).items() if key not in apart}
        return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:12]

    @property
    def variant(self) -> str:
        """The name of the variant, "window+linear" for a stack of two."""
        return "+".join(part.name for part in self.parts)

    @property
    def options(self) -> dict[str, Any]:
        """Every option in force, see `flat_options`."""
        return flat_options(self.parts)

    @property
    def width(self) -> int:
        """The d_model of what is built."""
        return self.d_used or self.d_model

    @property
    def mixer_roles(self) -> tuple[Role, ...]:
        """The roles that the variant itself fills: both of an encoder-decoder, or the one that was asked for."""
        return ("bidirectional", "causal") if self.cross else (self.role,)

    def row(self) -> dict[str, Any]:
        """The cell as one line of cells.jsonl."""
        row = asdict(self) | {"measures": list(self.measures)}
        del row["parts"]
        return {"cell": self.id, "variant": self.variant, "options": self.options} | row


def flat_options(parts: Sequence[VariantUse]) -> dict[str, Any]:
    """The options of a variant by name; those of a stack by layer and name, "0.window"."""
    if len(parts) == 1:
        return dict(parts[0].options)
    return {f"{layer}.{name}": value for layer, part in enumerate(parts) for name, value in part.options.items()}


def expand(sweep: Sweep, catalogue: Catalogue, context: str) -> list[Cell]:
    """All cells of a valid sweep, united over its grids, in the order of the file.

    context: torch's version; it goes into each id. A cell of two grids has the measures of both.
    """
    cells: dict[str, Cell] = {}
    for cell in _resolved(sweep, catalogue, context):
        before = cells[cell.id].measures if cell.id in cells else ()
        cells[cell.id] = replace(cell, measures=tuple(dict.fromkeys((*before, *cell.measures))))
    return _labelled(list(cells.values()))


def repeated(sweep: Sweep, catalogue: Catalogue, context: str) -> list[Cell]:
    """The points that ask for nothing new: settings and measures, as resolved, were all asked for by earlier ones."""
    asked: set[tuple[str, Measure]] = set()
    again = []
    for cell in _resolved(sweep, catalogue, context):
        pairs = {(cell.id, measure) for measure in cell.measures}
        if pairs <= asked:
            again.append(cell)
        asked |= pairs
    return _labelled(again)


def _resolved(sweep: Sweep, catalogue: Catalogue, context: str) -> Iterator[Cell]:
    for grid in sweep.grid:
        for point in points(grid, sweep.defaults):
            yield _cell(point, sweep, catalogue, context)


def _cell(point: Mapping[str, Any], sweep: Sweep, catalogue: Catalogue, context: str) -> Cell:
    """Resolve one point."""
    uses: tuple[VariantUse, ...] = point["variant"]
    keys = [variant_key(use.name, {**sweep.options.get(use.name, {}), **use.options}) for use in uses]
    described = [catalogue.variants[key] for key in keys]
    T, S, level, task = point["T"], point.get("S") or point["T"], point["level"], point.get("task")
    model, block = level == "model", level in ("block", "model")
    d_ff = point.get("d_ff")
    task_described = catalogue.tasks[variant_key(task, sweep.tasks.get(task, {}))] if task else None
    settings = sweep.train if task else sweep.timing
    device = [*catalogue.devices][-1] if point["device"] == "auto" else point["device"]
    decides = [
        context,
        catalogue.digests["accuracy" if task else "cost"],
        *(part.digest for part in described),
        task_described.digest if task_described else "",
        settings.model_dump_json(exclude={"visits", "repeats"}),  # how often, not how: later visits join earlier ones
    ]
    return Cell(
        parts=tuple(VariantUse(use.name, dict(d.options)) for use, d in zip(uses, described, strict=True)),
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
        positions=(point.get("positions") or most_positions([part.positions for part in described])) if model else None,
        dtype=point["dtype"],
        device=device,
        threads=point["threads"],
        compile=point["compile"],
        task=task,
        task_options=dict(task_described.options) if task_described else None,
        seed=point["seed"],
        measures=point["measures"],
        cross=task_described.cross if task_described else None,
        device_name=catalogue.devices[device],
        digest=hashlib.sha256("\n".join(decides).encode()).hexdigest()[:16],
    )


def _labelled(cells: list[Cell]) -> list[Cell]:
    """Name cells by variant, and by the options that tell two uses of one variant apart."""
    seen: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for cell in cells:
        for name, value in cell.options.items():
            seen[cell.variant, name].add(repr(value))
    return [replace(cell, label=_label(cell, seen)) for cell in cells]


def _label(cell: Cell, seen: Mapping[tuple[str, str], Collection[str]]) -> str:
    """seen: the values of each option of each variant. One without a value is not named: fused, fused[n_kv_heads=1]."""
    told = [
        f"{name}={printable(str(value))}"
        for name, value in cell.options.items()
        if value is not None and len(seen[cell.variant, name]) > 1
    ]
    return cell.variant + (f"[{', '.join(told)}]" if told else "")

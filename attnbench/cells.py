"""Cells: the points of a sweep, each frozen, fully resolved and named by a digest of everything that decides it."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from attnbench.catalogue import Catalogue, Described, variant_key
from attnbench.places import places_of
from attnbench.settings import DType, Level, Match, Measure, Phase, PositionKind, Role, most_positions
from attnbench.sweep import Sweep, VariantUse, points
from attnbench.wording import printable

# Fields that are no part of an id where nothing is asked of them: cells without them keep the ids that they had.
_SINCE = ("match", "matched", "n_training", "pretrain", "pretrain_options", "pretrain_digest")
# Settings that decide how often, not how (later visits join earlier ones), and one that is a field of its own.
_NOT_IN_DIGEST = {"visits", "repeats", "n_training"}
# What a cell takes from its point as it is.
AS_ASKED = ("role", "level", "phase", "T", "d_model", "dtype", "threads", "compile", "match", "seed", "measures")


@dataclass(frozen=True)
class Cell:
    """One point of a sweep. A field is None where the cell's level or measure has no use for it.

    parts: the variant that fills every layer, or several that the layers repeat in turn, each with all its options.
    label: how tables and plots call the variant; it names options when a sweep uses one variant with several.
    digest: of the sources and settings beyond these fields that decide the numbers.
    task: its name and the options beside it in the sweep, "mqar[n_pairs=8]"; task_options are all that are in force.
    cross: the variant that is the decoder's cross-attention, where the task is sequence to sequence.
    match: in what the variant is to be like the sweep's reference. matched: the sizes and options that this changed, by
    name; the fields stay as asked, and cells are compared by those. match_error: how far off the cell still is, as a
    share of the reference. `built` is what is really built.
    n_training: how many distinct sequences training repeats, None for fresh ones in every batch.
    pretrain: the task on which a model is trained first, as `task` is written; pretrain_options: all in force, and T;
    pretrain_digest: of the sources and settings beyond these fields that decide the weights.
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
    match: Match = "none"
    matched: Mapping[str, Any] | None = None
    match_error: float | None = None
    n_training: int | None = None
    pretrain: str | None = None
    pretrain_options: Mapping[str, Any] | None = None
    pretrain_digest: str | None = None
    digest: str = ""
    label: str = field(default="", compare=False)

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that say what the cell is; measures and label are not part of it."""
        apart = {
            "measures",
            "label",
            "match_error",
            *(name for name in _SINCE if getattr(self, name) in (None, "none")),
        }
        names = {"task": self.task_name} | ({"pretrain": self.pretrain_name} if self.pretrain else {})
        settings = {key: value for key, value in asdict(self).items() if key not in apart} | names
        return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:12]

    @property
    def variant(self) -> str:
        """The name of the variant, "window+linear" for a stack of two."""
        return "+".join(part.name for part in self.parts)

    @property
    def task_name(self) -> str | None:
        """The name of the task, "mqar" of "mqar[n_pairs=8]"."""
        return self.task and self.task.partition("[")[0]

    @property
    def pretrain_name(self) -> str | None:
        """The name of the task of pretraining."""
        return self.pretrain and self.pretrain.partition("[")[0]

    @property
    def options(self) -> dict[str, Any]:
        """Every option in force, see `flat_options`."""
        return flat_options(self.parts)

    @property
    def built(self) -> Cell:
        """The cell with the sizes and options that matching found, as it is really built."""
        changed = dict(self.matched or {})
        sizes = {name: changed.pop(name) for name in ("d_model", "d_ff") if name in changed}
        parts = tuple(replace(part, options={**part.options, **changed}) for part in self.parts)
        return replace(self, parts=parts, **sizes)

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
    """The cell of every point of every grid, in the order of the file."""
    for grid in sweep.grid:
        for point in points(grid, sweep.defaults):
            yield _cell(point, sweep, catalogue, context)


def _cell(point: Mapping[str, Any], sweep: Sweep, catalogue: Catalogue, context: str) -> Cell:
    """Resolve one point."""
    uses: tuple[VariantUse, ...] = point["variant"]
    keys = [variant_key(use.name, {**sweep.options.get(use.name, {}), **use.options}) for use in uses]
    described = [catalogue.variants[key] for key in keys]
    asked: VariantUse | None = point.get("task")
    task = catalogue.tasks[_task_key(asked, sweep)] if asked else None
    first: VariantUse | None = point.get("pretrain")
    before = catalogue.tasks[_task_key(first.without("T"), sweep)] if first else None
    settings = sweep.train if task else sweep.timing
    device = [*catalogue.devices][-1] if point["device"] == "auto" else point["device"]
    code = [context, catalogue.digests["accuracy" if task else "cost"], *(part.digest for part in described)]
    how = settings.model_dump_json(exclude=_NOT_IN_DIGEST)
    return Cell(
        **{key: point[key] for key in AS_ASKED},
        **_sizes(point, [part.positions for part in described], _longest(point, sweep, task)),
        parts=tuple(VariantUse(use.name, dict(d.options)) for use, d in zip(uses, described, strict=True)),
        B=point["B"] or sweep.train.batch_size,
        device=device,
        device_name=catalogue.devices[device],
        task=called(asked.name, asked.options) if asked else None,
        task_options=dict(task.options) if task else None,
        cross=task.cross if task else None,
        n_training=point.get("n_training", sweep.train.n_training) if task else None,
        pretrain=called(first.name, first.options) if first else None,
        pretrain_options={**before.options, "T": first.options.get("T", point["T"])} if first and before else None,
        pretrain_digest=_digest(*code, before.digest, how) if before else None,
        digest=_digest(*code, task.digest if task else "", how),
    )


def _digest(*decides: str) -> str:
    return hashlib.sha256("\n".join(decides).encode()).hexdigest()[:16]


def _task_key(use: VariantUse, sweep: Sweep) -> str:
    """How a task is looked up: its own options over those of its table."""
    return variant_key(use.name, {**sweep.tasks.get(use.name, {}), **use.options})


def _longest(point: Mapping[str, Any], sweep: Sweep, task: Described | None) -> int:
    """The largest T at which the model of a point is trained or tested."""
    T: int = point["T"]
    first: VariantUse | None = point.get("pretrain")
    places = places_of(sweep.train.test_at, T, task.options) if task else []
    return max([T, first.options.get("T", T) if first else T, *(place.T for place in places)])


def _sizes(point: Mapping[str, Any], positions: Sequence[PositionKind], longest: int) -> dict[str, Any]:
    """The sizes of a point that follow from others, None where its level has no use for them.

    positions: what each part of the variant needs by itself. longest: the largest T that it meets.
    """
    T, d_model, level = point["T"], point["d_model"], point["level"]
    S, d_ff = point.get("S") or T, point.get("d_ff")
    one_more = point["phase"] == "decode"  # the token that is timed comes after T
    model = {
        "n_layers": point["n_layers"],
        "embedding_std": point["embedding_std"],
        "positions": point.get("positions") or most_positions(positions),
    }
    return {
        "S": S,
        "n_heads": d_model // point["d_head"] if "d_head" in point else point["n_heads"],
        "max_T": point.get("max_T") or max(longest, S) + one_more,
        "d_ff": (4 * d_model if d_ff is None else d_ff) if level in ("block", "model") else None,
        **(model if level == "model" else dict.fromkeys(model)),
    }


def _labelled(cells: list[Cell]) -> list[Cell]:
    """Name cells by variant, and by the options that tell two uses of one variant apart."""
    seen: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for cell in cells:
        for name, value in cell.options.items():
            seen[cell.variant, name].add(repr(value))
    return [replace(cell, label=_label(cell, seen)) for cell in cells]


def _label(cell: Cell, seen: Mapping[tuple[str, str], Collection[str]]) -> str:
    """seen: the values of each option of each variant. One without a value is not named: fused, fused[n_kv_heads=1]."""
    differing = {name: value for name, value in cell.options.items() if len(seen[cell.variant, name]) > 1}
    return called(cell.variant, {name: value for name, value in differing.items() if value is not None})


def called(name: str, options: Mapping[str, Any]) -> str:
    """A name with options in tables: "mqar[n_pairs=8]", and without any "mqar"."""
    told = [f"{option}={printable(str(value))}" for option, value in options.items()]
    return name + (f"[{', '.join(told)}]" if told else "")

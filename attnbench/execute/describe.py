"""Questions about variants and tasks that only a process with torch can answer. Runs in a fresh one."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import attnbench
from attnbench import options, registry
from attnbench.catalogue import Catalogue, Described, variant_key
from attnbench.cells import Cell
from attnbench.errors import RequestError
from attnbench.execute.build import MODEL_VOCAB, spec_of
from attnbench.execute.orders import Judgement
from attnbench.measure.cost import cost
from attnbench.measure.device import kinds
from attnbench.mixer import Attention, Mask, Mixer, Role, Use
from attnbench.registry import PluginError, Source
from attnbench.sweep import VariantUse
from attnbench.tasks import Task

_COST_MODULES = (
    "mixer",
    "kernels",
    "positions",
    "transformer",
    "measure",
    "statistics",
    "execute/build",
    "execute/cell",
)
_ACCURACY_MODULES = (
    *("mixer", "kernels", "positions", "transformer", "train", "splits", "tasks/__init__", "tasks/draw"),
    *("execute/build", "execute/cell"),
)
CROSS = "fused"  # the cross-attention of every encoder-decoder


def catalogue(variants: Sequence[VariantUse], tasks: Sequence[VariantUse], files: Sequence[str]) -> Catalogue:
    """Look up and describe what a sweep names."""
    sources, broken, clashes = sources_with(files)
    task_sources, _, task_clashes = sources_with(files, registry.TASKS)
    return Catalogue(
        variant_sources=sources,
        task_sources=task_sources,
        variants={
            variant_key(use.name, use.options): _describe(use, sources) for use in variants if use.name in sources
        },
        tasks={
            variant_key(use.name, use.options): _describe_task(use, task_sources, sources)
            for use in tasks
            if use.name in task_sources
        },
        devices=kinds(),
        digests={"cost": _digest(_modules(_COST_MODULES)), "accuracy": _digest(_modules(_ACCURACY_MODULES))},
        broken=tuple(broken),
        clashes=(*clashes, *task_clashes),
    )


def sources_with(
    files: Iterable[str], group: str = registry.VARIANTS
) -> tuple[dict[str, Source], list[str], list[str]]:
    """A group's installed names and those of plugin files; a line per file that does not load, and per name twice."""
    found, broken, clashes = registry.installed(group), list[str](), list[str]()
    for file in dict.fromkeys(str(Path(file).resolve()) for file in files):
        try:
            sources = registry.file_sources(file, group)
        except PluginError as error:
            broken += error.mistakes
            continue
        for source in sources:
            try:
                registry.add(found, source)
            except RequestError as error:
                clashes += error.mistakes
    return found, broken, clashes


def offered_by(file: str) -> dict[str, Source]:
    """The variants of one plugin file, by name. Raises PluginError when it does not load or uses a name twice."""
    found: dict[str, Source] = {}
    for source in registry.file_sources(file):
        registry.add(found, source)
    return found


def judge(cells: Sequence[Cell], sources: Mapping[str, Source], tasks: Mapping[str, Source]) -> list[Judgement]:
    """Whether each cell of one variant can run at all, and what it costs by formula."""
    names = {cell.variant for cell in cells} | {cell.cross for cell in cells if cell.cross}
    classes = {name: registry.load(sources[name]) for name in names}
    asked = {cell.task: registry.load(tasks[cell.task]) for cell in cells if cell.task}
    return [_judge(cell, classes, asked[cell.task] if cell.task else None) for cell in cells]


def profile(name: str, sources: Mapping[str, Source]) -> dict[str, Any]:
    """Everything `attnbench variants NAME` shows of one variant; raises PluginError when it does not load."""
    source = registry.find(name, sources)
    cls = registry.load(source)
    claim = getattr(cls, "claim", None)
    return {
        "name": name,
        "source": source.target,
        "origin": source.origin,
        "summary": (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " "),
        "options": options.listing(cls),
        "claim": asdict(claim) if claim else None,
        "positions": cls.positions if issubclass(cls, Mixer) else None,
        "roles": {role: _role_reason(cls, role) for role in ("causal", "bidirectional", "cross")},
    }


def task_profile(name: str, sources: Mapping[str, Source]) -> dict[str, Any]:
    """Everything `attnbench tasks NAME` shows of one task."""
    cls = registry.load(registry.find(name, sources, "task"))
    if not issubclass(cls, Task):
        raise PluginError([f"task {name}: {cls.__name__} is not a subclass of attnbench.tasks.Task"])
    example = cls(cls.min_T() * 4)
    facts = {key: getattr(example, key) for key in ("vocab_size", "chance", "floor")}
    about = {"name": name, "source": sources[name].target, "title": cls.title, "kind": cls.kind}
    facts |= {"roles": ", ".join(cls.roles), "min_T": cls.min_T()}
    return about | facts | {"options": options.listing(cls)}


def _describe(use: VariantUse, sources: Mapping[str, Source]) -> Described:
    try:
        cls = registry.load(sources[use.name])
        resolved, mistakes = options.resolve(cls, use.options)
    except RequestError as error:
        return Described(error="; ".join(error.mistakes))
    except Exception as error:
        return Described(error=registry.describe_error(error))
    if not issubclass(cls, Mixer):
        return Described(error=f"{cls.__name__} is no subclass of attnbench.Mixer")
    return Described(resolved, cls.positions, _digest(_class_files(cls)), mistakes=tuple(mistakes))


def _describe_task(use: VariantUse, tasks: Mapping[str, Source], variants: Mapping[str, Source]) -> Described:
    """A task is built once, at its smallest T: its constructor knows which options go together."""
    try:
        cls = registry.load(tasks[use.name])
        if not issubclass(cls, Task):
            return Described(error=f"{cls.__name__} is no subclass of attnbench.tasks.Task")
        resolved, mistakes = options.resolve(cls, use.options)
        if mistakes:
            return Described(mistakes=tuple(mistakes))
        min_T = cls.min_T(**resolved)
        cls(min_T, **resolved)
        cross = CROSS if cls.kind == "seq2seq" else None
        parts = [cls] if cross is None else [cls, registry.load(registry.find(cross, variants))]
    except RequestError as error:
        return Described(error="; ".join(error.mistakes))
    except Exception as error:
        return Described(error=registry.describe_error(error))
    files = [file for part in parts for file in _class_files(part)]
    return Described(resolved, digest=_digest(files), min_T=min_T, cross=cross)


def _judge(cell: Cell, classes: Mapping[str, type[Mixer]], task: type[Task] | None) -> Judgement:
    """Never raises: a variant that cannot even answer fails in its own visit, where the record says how."""
    cls = classes[cell.variant]
    try:
        reason = _reason(cell, cls) if task is None else _task_reason(cell, classes, task)
    except Exception:
        return Judgement()
    if reason:
        return Judgement(reason)
    try:
        with torch.device("meta"):
            mixer = cls(spec_of(cell), **cell.options)
        sizes = {"n_layers": cell.n_layers or 1, "d_ff": cell.d_ff or 0, "vocab_size": MODEL_VOCAB}
        known = cost(
            mixer, level=cell.level, phase=cell.phase or "forward_backward", T=cell.T, S=cell.S, B=cell.B, **sizes
        )
    except Exception:
        return Judgement()
    return Judgement(None, known.flops if known else None)


def _reason(cell: Cell, cls: type[Mixer]) -> str | None:
    if cell.level == "core" and not issubclass(cls, Attention):
        return "has no queries and keys, so no level core"
    if cell.role == "cross" and cell.level in ("block", "model"):
        return f"level {cell.level} has no cross role of its own; use core or layer"
    if cell.level == "core" and cell.phase in ("prefill", "decode"):
        return f"{cell.phase} needs projections; use level layer, block or model"
    if cell.level != "model" and cell.phase == "train_step":
        return "a train_step is one of a whole model; use level model"
    use = Use(cell.T, cell.S, cell.device, cell.dtype, phase=cell.phase or "forward_backward")
    return cls.unsupported(spec_of(cell), use, **cell.options)


def _task_reason(cell: Cell, classes: Mapping[str, type[Mixer]], task: type[Task]) -> str | None:
    """Why the model that the cell's task needs cannot be built of these parts."""
    if cell.role not in task.roles:
        return f"the answers of {cell.task} stand in its tokens: its roles are {', '.join(task.roles)}"
    if cell.cross is None:
        return _reason(cell, classes[cell.variant])
    parts: tuple[tuple[str, str, Role, Mask], ...] = (
        ("encoder", cell.variant, "bidirectional", "right"),
        ("decoder", cell.variant, "causal", "none"),
        ("cross-attention", cell.cross, "cross", "right"),
    )
    for part, name, role, mask in parts:
        use = Use(cell.T, cell.S, cell.device, cell.dtype, mask, "forward_backward")
        chosen = cell.options if name == cell.variant and role != "cross" else {}
        reason = classes[name].unsupported(replace(spec_of(cell), role=role), use, **chosen)
        if reason:
            return f"as {part}: {reason}"
    return None


def _role_reason(cls: type[Mixer], role: Any) -> str | None:
    try:
        return cls.unsupported(attnbench.Spec(64, 4, 64, role), Use(64, 64))
    except Exception as error:
        return registry.describe_error(error)


def _class_files(cls: type) -> list[Path]:
    """The files that define a class and those of its bases that are neither ours nor torch's."""
    modules = {owner.__module__ for owner in cls.__mro__}
    strangers = [
        name for name in modules if name.partition(".")[0] not in ("torch", "builtins", "abc", "attnbench", "typing")
    ]
    own = {cls.__module__, *strangers}
    return sorted(Path(file) for name in own if (file := getattr(sys.modules.get(name), "__file__", None)))


def _modules(names: Iterable[str]) -> list[Path]:
    """The files of attnbench modules and packages, in a stable order."""
    root = Path(attnbench.__file__).parent
    return [file for name in names for file in sorted((root / name).glob("*.py")) or [root / f"{name}.py"]]


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]

"""Questions about variants and tasks that only a process with torch can answer. Runs in a fresh one."""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
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
from attnbench.execute import stages
from attnbench.execute.abilities import abilities_of
from attnbench.execute.build import MODEL_VOCAB, mixer_factory, spec_of
from attnbench.execute.orders import Judgement
from attnbench.measure.cost import cost
from attnbench.measure.device import kinds
from attnbench.mixer import Attention, Mask, Mixer, Role, Use
from attnbench.registry import PluginError, Source
from attnbench.sweep import VariantUse
from attnbench.tasks import Task

COST_MODULES = (
    "mixer",
    "kernels",
    "positions",
    "transformer",
    "measure",
    "statistics",
    "execute/build",
    "execute/phases",
    "execute/cell",
)
ACCURACY_MODULES = (
    *("mixer", "kernels", "positions", "transformer", "train", "protocol", "scoring", "optimise", "splits", "start"),
    *("elsewhere", "places"),
    *("tasks/__init__", "tasks/draw", "tasks/baselines", "tasks/repeats", "execute/build", "execute/cell"),
)
CROSS = "fused"  # the cross-attention of every encoder-decoder


def catalogue(variants: Sequence[VariantUse], tasks: Sequence[VariantUse], files: Sequence[str]) -> Catalogue:
    """Look up and describe what a sweep names."""
    sources, broken, clashes = sources_with(files)
    task_sources, _, task_clashes = sources_with(files, registry.TASKS)
    described = {variant_key(use.name, use.options): _describe(use, sources) for use in variants if use.name in sources}
    described_tasks = {
        variant_key(use.name, use.options): _describe_task(use, task_sources, sources)
        for use in tasks
        if use.name in task_sources
    }
    stages.at("asking torch for its devices")
    return Catalogue(
        variant_sources=sources,
        task_sources=task_sources,
        variants=described,
        tasks=described_tasks,
        devices=kinds(),
        digests={"cost": _digest(_modules(COST_MODULES)), "accuracy": _digest(_modules(ACCURACY_MODULES))},
        broken=tuple(broken),
        clashes=(*clashes, *task_clashes),
    )


def sources_with(
    files: Iterable[str], group: str = registry.VARIANTS
) -> tuple[dict[str, Source], list[str], list[str]]:
    """A group's installed names and those of plugin files; a line per file that does not load, and per name twice."""
    found, broken, clashes = registry.installed(group), list[str](), list[str]()
    for file in dict.fromkeys(str(Path(file).resolve()) for file in files):
        stages.at(f"importing {Path(file).name}")
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
    stages.at("")
    return found, broken, clashes


def offered_by(file: str) -> dict[str, Source]:
    """The variants of one plugin file, by name. Raises PluginError when it does not load or uses a name twice."""
    found: dict[str, Source] = {}
    stages.at(f"importing {Path(file).name}")
    for source in registry.file_sources(file):
        registry.add(found, source)
    return found


def judge(cells: Sequence[Cell], sources: Mapping[str, Source], tasks: Mapping[str, Source]) -> list[Judgement]:
    """Whether each cell of one variant can run at all, and what it costs by formula."""
    names = {part.name for cell in cells for part in cell.parts} | {cell.cross for cell in cells if cell.cross}
    classes = {name: registry.load(sources[name]) for name in names}
    asked = {name for cell in cells for name in (cell.task_name, cell.pretrain_name) if name}
    loaded = {name: registry.load(tasks[name]) for name in asked}
    return [_judge(cell, classes, loaded) for cell in cells]


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
        "claim": {key: text for key, text in asdict(claim).items() if text} if claim else None,
        "positions": cls.positions if issubclass(cls, Mixer) else None,
    } | {key: value for key, value in abilities_of(cls).items() if key in ("roles", "devices")}


def task_profile(name: str, sources: Mapping[str, Source]) -> dict[str, Any]:
    """Everything `attnbench tasks NAME` shows of one task."""
    cls = registry.load(registry.find(name, sources, "task"))
    if not issubclass(cls, Task):
        raise PluginError([f"task {name}: {cls.__name__} is not a subclass of attnbench.tasks.Task"])
    example = cls(max(cls.usual_T, cls.min_T()))
    facts = {key: getattr(example, key) for key in ("T", "vocab_size", "chance", "floor", "floor_from", "ceiling")}
    about = {"name": name, "source": sources[name].target, "title": cls.title, "kind": cls.kind}
    facts |= {"roles": ", ".join(cls.roles), "min_T": cls.min_T()}
    return about | facts | {"options": options.listing(cls)}


def _describe(use: VariantUse, sources: Mapping[str, Source]) -> Described:
    stages.importing(sources[use.name])
    try:
        cls = registry.load(sources[use.name])
        resolved, mistakes = options.resolve(cls, use.options)
    except RequestError as error:
        return Described(error="; ".join(error.mistakes))
    except Exception as error:
        return Described(error=registry.describe_error(error))
    if not issubclass(cls, Mixer):
        return Described(error=f"{cls.__name__} is no subclass of attnbench.Mixer")
    return Described(resolved, cls.positions, class_digest(cls), mistakes=tuple(mistakes))


def _describe_task(use: VariantUse, tasks: Mapping[str, Source], variants: Mapping[str, Source]) -> Described:
    """A task is built once, at its smallest T: its constructor knows which options go together."""
    stages.importing(tasks[use.name])
    try:
        cls = registry.load(tasks[use.name])
        stages.at(f"building the task {use.name} of {stages.place(tasks[use.name].origin)}")
        if not issubclass(cls, Task):
            return Described(error=f"{cls.__name__} is no subclass of attnbench.tasks.Task")
        resolved, mistakes = options.resolve(cls, use.options)
        if mistakes:
            return Described(mistakes=tuple(mistakes))
        min_T = cls.min_T(**resolved)
        vocab_size = cls(min_T, **resolved).vocab_size
        cross = CROSS if cls.kind == "seq2seq" else None
        parts = [cls] if cross is None else [cls, registry.load(registry.find(cross, variants))]
    except RequestError as error:
        return Described(error="; ".join(error.mistakes))
    except Exception as error:
        return Described(error=registry.describe_error(error))
    files = [file for part in parts for file in _class_files(part)]
    return Described(resolved, digest=_digest(files), min_T=min_T, cross=cross, vocab_size=vocab_size, form=_form(cls))


def _form(task: type[Task]) -> str:
    """What a model of this task reads and answers."""
    reads = {"tokens": "tokens", "seq2seq": "a source and tokens"}[task.kind]
    return f"{reads}{' with numbers' if task.reads_values else ''} and {task.answers}s as answers"


def _judge(cell: Cell, classes: Mapping[str, type[Mixer]], tasks: Mapping[str, type[Task]]) -> Judgement:
    """Never raises: a variant that cannot even answer fails in its own visit, where the record says how."""
    try:
        able = _task_reason(cell, classes, tasks[cell.task_name]) if cell.task_name else _reason(cell, classes)
        reason = _training_reason(cell) or able or _pretrain_reason(cell, classes, tasks)
    except Exception:
        return Judgement()
    if reason:
        return Judgement(reason)
    try:
        with torch.device("meta"):
            mixer = mixer_factory(cell, [classes[part.name] for part in cell.parts])
            mixers = [mixer(replace(spec_of(cell), layer=layer)) for layer in range(cell.n_layers or 1)]
        sizes = {"d_ff": cell.d_ff or 0, "vocab_size": MODEL_VOCAB}
        known = cost(
            mixers, level=cell.level, phase=cell.phase or "forward_backward", T=cell.T, S=cell.S, B=cell.B, **sizes
        )
    except Exception:
        return Judgement()
    return Judgement(None, known.flops if known else None)


def _training_reason(cell: Cell) -> str | None:
    """Why no weights could be trained, whatever the variant."""
    if cell.dtype == "float16" and (cell.task or cell.phase == "train_step"):
        return "in float16 gradients and AdamW's epsilon underflow to 0, and no loss is scaled; use bfloat16 or float32"
    return None


def _reason(cell: Cell, classes: Mapping[str, type[Mixer]]) -> str | None:
    if cell.level == "core" and not issubclass(classes[cell.variant], Attention):
        return "has no queries and keys, so no level core"
    if cell.role == "cross" and cell.level in ("block", "model"):
        return f"level {cell.level} has no cross role of its own; use core or layer"
    if cell.level == "core" and cell.phase in ("prefill", "decode"):
        return f"{cell.phase} needs projections; use level layer, block or model"
    if cell.level != "model" and cell.phase == "train_step":
        return "a train_step is one of a whole model; use level model"
    if cell.compile and cell.phase in ("prefill", "decode"):
        return "compile covers passes over whole sequences, not decoding"
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")  # as torch.compile chooses it
    if cell.compile and cell.device == "cpu" and shutil.which(compiler) is None:
        return f"compile needs a C++ compiler, and there is no {compiler} (CXX names another)"
    use = Use(cell.T, cell.S, cell.device, cell.dtype, phase=cell.phase or "forward_backward")
    return _first_reason(cell, classes, cell.role, use)


def _first_reason(cell: Cell, classes: Mapping[str, type[Mixer]], role: Role, use: Use) -> str | None:
    """Why one of the cell's parts cannot serve, or None; of a stack, which layer it is."""
    spec = replace(spec_of(cell), role=role)
    for layer, part in enumerate(cell.parts):
        reason = classes[part.name].unsupported(replace(spec, layer=layer), use, **part.options)
        if reason:
            return reason if len(cell.parts) == 1 else f"layer {layer} ({part.name}): {reason}"
    return None


def _task_reason(cell: Cell, classes: Mapping[str, type[Mixer]], task: type[Task]) -> str | None:
    """Why the model that the cell's task needs cannot be built of these parts."""
    if cell.role not in task.roles:
        return f"the answers of {cell.task} stand in its tokens: its roles are {', '.join(task.roles)}"
    if cell.cross is None:
        return _reason(cell, classes)
    across = replace(cell, parts=(VariantUse(cell.cross),))
    places: tuple[tuple[str, Cell, Role, Mask], ...] = (
        ("encoder", cell, "bidirectional", "right"),
        ("decoder", cell, "causal", "none"),
        ("cross-attention", across, "cross", "right"),
    )
    for place, filled, role, mask in places:
        use = Use(cell.T, cell.S, cell.device, cell.dtype, mask, "forward_backward")
        if reason := _first_reason(filled, classes, role, use):
            return f"as {place}: {reason}"
    return None


def _pretrain_reason(cell: Cell, classes: Mapping[str, type[Mixer]], tasks: Mapping[str, type[Task]]) -> str | None:
    """Why the cell cannot be trained on its other task before."""
    if cell.pretrain_name is None or cell.pretrain_options is None:
        return None
    T = cell.pretrain_options["T"]
    before = replace(cell, task=cell.pretrain, task_options=cell.pretrain_options, T=T, S=T)
    reason = _task_reason(before, classes, tasks[cell.pretrain_name])
    return reason and f"in pretraining: {reason}"


def class_digest(cls: type) -> str:
    """Of the files that define a class and its bases."""
    return _digest(_class_files(cls))


def _class_files(cls: type) -> list[Path]:
    """The files that define a class and its bases, but for torch's and Python's own, in an order that stays the same
    wherever they lie."""
    modules = dict.fromkeys(owner.__module__ for owner in cls.__mro__)
    own = [name for name in modules if name.partition(".")[0] not in ("torch", "builtins", "abc", "typing")]
    return [Path(file) for name in own if (file := getattr(sys.modules.get(name), "__file__", None))]


def _modules(names: Iterable[str]) -> list[Path]:
    """The files of attnbench modules and packages, in a stable order."""
    root = Path(attnbench.__file__).parent
    return [file for name in names for file in sorted((root / name).glob("*.py")) or [root / f"{name}.py"]]


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]

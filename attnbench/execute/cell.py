"""One visit, end to end, in a fresh process: build the cell, measure one thing of it, say what was really in force."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import blame, registry
from attnbench.cells import Cell, flat_options
from attnbench.certificate import Certificate
from attnbench.conformance import certify
from attnbench.elsewhere import Elsewhere
from attnbench.execute import stages
from attnbench.execute.build import (
    MODEL_VOCAB,
    TRAINING_PHASES,
    Workload,
    build_module,
    build_workload,
    compiled,
    mixer_factory,
    mixers_of,
    spec_of,
    task_model,
)
from attnbench.execute.orders import Visit
from attnbench.execute.phases import optimizer_bytes, phase_call, state_bytes
from attnbench.measure.clock import time_call
from attnbench.measure.cost import cost
from attnbench.measure.device import Device, open_device
from attnbench.measure.memory import disagreements, peak_bytes, resident_peak_bytes, saved_bytes, status_bytes
from attnbench.measure.quiet import sentinel_s
from attnbench.measure.traffic import bytes_moved
from attnbench.mixer import Attention, Mixer
from attnbench.places import places_of
from attnbench.registry import Source
from attnbench.settings import TimingSettings
from attnbench.start import Start, start_from
from attnbench.sweep import VariantUse
from attnbench.tasks import Task
from attnbench.train import TrainResult, train
from attnbench.transformer import MixerFactory, Model

WIDEST_HEAD = 64  # that promises are tried on: they take a second there and minutes at 512
COMPILED_WITHIN = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}  # of the largest output


def visit(order: Visit) -> dict[str, Any]:
    """Work on one cell; returns the fields of its record, `status` included. Runs in a process that ends afterwards."""
    cell = order.cell
    torch.set_num_threads(cell.threads)
    device = open_device(cell.device)
    if order.memory_limit is not None:
        device.limit_memory(order.memory_limit)
    torch.manual_seed(cell.seed)
    classes = [_loaded(source) for source in order.variants]
    mixer = mixer_factory(cell, classes)
    measures: Mapping[str, Callable[[Visit, MixerFactory], dict[str, Any]]] = {
        "time": _time,
        "memory": _memory,
        "accuracy": _accuracy,
    }
    with ExitStack() as naming:
        for layer, cls in enumerate(classes):
            make = partial(mixer, replace(spec_of(cell), layer=layer))
            naming.enter_context(blame.naming(cls, make, cell.T, cell.S))
        return measures[order.measure](order, mixer)


def check(cell: Cell, part: int, variant: Source, lengths: set[int]) -> str | None:
    """Try the promises of one part of a cell as its first two layers, with the cell's heads; what is broken, or None.

    A variant that cannot run at all is no breach of a promise: its cells fail by themselves, each for its own reason.
    lengths: those of the sweep, which are not tried here while there are others: what happens at one of them is that
    cell's own business.
    """
    torch.set_num_threads(1)
    open_device(cell.device)
    cls = _loaded(variant)
    stages.at(f"trying the promises of {variant.name} ({stages.place(variant.origin)})")
    broken: dict[str, str] = {}
    for layer in range(part, cell.n_layers or part + 1, len(cell.parts))[:2]:
        found = _certified(cell, part, cls, layer, lengths)
        broken = {result.name: result.detail for result in found.results if result.status == "broken"} | broken
        if found.untried:
            broken["no promise could be tried"] = found.untried[0].detail
    return "; ".join(f"{name}: {detail}" for name, detail in broken.items()) or None


def _certified(cell: Cell, part: int, cls: type[Mixer], layer: int, lengths: set[int]) -> Certificate:
    """What the part does as this layer; at lengths of the sweep, or in wide heads, only where nothing else will do."""
    certified = partial(
        certify,
        cls,
        options=cell.parts[part].options,
        roles=cell.mixer_roles,
        dtype=cell.dtype,
        device=cell.device,
        n_heads=cell.n_heads,
        layer=layer,
    )
    d_head = cell.d_model // cell.n_heads
    found = certified(avoid=lengths, d_head=min(d_head, WIDEST_HEAD))
    return certified(d_head=d_head) if found.untried else found


def _loaded(source: Source) -> type:
    stages.importing(source)
    cls = registry.load(source)
    stages.at("")
    return cls


def _time(order: Visit, mixer: MixerFactory) -> dict[str, Any]:
    cell, device = order.cell, open_device(order.cell.device)
    workload = build_workload(cell, build_module(cell, mixer))
    with torch.set_grad_enabled(cell.phase in TRAINING_PHASES):
        call, compiling = _ready(cell, workload)
        resolution_s, before_s = _resolution_s(device), sentinel_s()
        output: list[object] = []
        timing = time_call(call, order.timing, device=device, resolution_s=resolution_s, output=output)
        sentinels = {"sentinel_before_s": before_s, "sentinel_after_s": sentinel_s()}
    status = _sound(cell, workload, output.pop())
    return status | _in_force(cell, workload) | compiling | asdict(timing) | sentinels


def _memory(order: Visit, mixer: MixerFactory) -> dict[str, Any]:
    cell, made = order.cell, list[nn.Module]()
    build_peak = peak_bytes(lambda: made.append(build_module(cell, mixer)), cell.device)
    workload = build_workload(cell, made[0])
    with torch.set_grad_enabled(cell.phase in TRAINING_PHASES):
        call, compiling = _ready(cell, workload)
        status = _sound(cell, workload, call())
        held = status_bytes("VmRSS") if cell.device == "cpu" else None
        resident = resident_peak_bytes(call)
        peak = peak_bytes(call, cell.device)
        trains = cell.phase in TRAINING_PHASES and not cell.compile
        kept = saved_bytes(workload.forward, workload.parameters) if trains else None
    formula = _peak_by_formula(cell, workload)
    memory = {
        "peak_bytes": peak,
        "peak_bytes_formula": formula,
        "rss_peak_bytes": resident,
        "build_peak_bytes": build_peak,
        "saved_bytes": kept,
        "optimizer_bytes": optimizer_bytes(call),
        "flags": disagreements(peak, formula=formula, held=held, resident=resident),
    }
    return status | _in_force(cell, workload) | memory | compiling


def _peak_by_formula(cell: Cell, workload: Workload) -> int | None:
    """Of a core's forward pass, where the variant has a formula for it."""
    mixer, dtype = workload.mixers[0], workload.dtype
    if cell.level != "core" or cell.phase != "forward" or cell.compile or not isinstance(mixer, Attention):
        return None
    return mixer.core_peak_bytes(cell.B, cell.T, cell.S, dtype.itemsize)


def _ready(cell: Cell, workload: Workload) -> tuple[Callable[[], object], dict[str, Any]]:
    """What is measured; with the seconds it took to compile, where that was asked for, and what is wrong with it."""
    phase = cell.phase or "forward"
    if not cell.compile:
        return phase_call(workload, phase), {}
    fast = compiled(workload)
    start_s = time.perf_counter()
    call = phase_call(fast, phase)
    call()
    open_device(cell.device).synchronize()
    compile_s = time.perf_counter() - start_s
    return call, {"compile_s": compile_s} | _same(workload.forward().detach(), fast.forward().detach(), cell.dtype)


def _same(plain: Tensor, fast: Tensor, dtype: str) -> dict[str, str]:
    """Nothing when the compiled outputs are those of the plain pass, else the status that this gives the cell."""
    off, scale = (fast - plain).abs().max().item(), plain.abs().max().item()
    if off <= COMPILED_WITHIN[dtype] * scale:
        return {}
    told = f"compiled, its outputs are off by {off:.2g} where the largest is {scale:.2g}"
    return {"status": "nonconformant", "reason": told}


def _accuracy(order: Visit, mixer: MixerFactory) -> dict[str, Any]:
    cell = order.cell
    if order.task is None or cell.task_options is None:
        raise ValueError(f"an accuracy cell needs a task, {cell.variant} has none")
    cls = _loaded(order.task)
    task = _task(cls, cell.T, cell.task_options)
    places = places_of(order.train.test_at, cell.T, cell.task_options)
    others = [Elsewhere(_task(cls, place.T, place.options), tuple(place.changed)) for place in places]
    cross = None if order.cross is None else _loaded(order.cross)
    before = [] if order.pretrain is None else [_pretraining(order)]
    built: list[Model] = []

    def build() -> Model:
        built[:] = [task_model(cell, mixer, cross, task, *before)]
        return built[0]

    start = _start(order, build, task, *before) if before else None
    if before and start is None:
        return {"status": "diverged", "reason": f"pretraining on {cell.pretrain} kept no finite loss"}
    from_there = build if start is None else lambda: start.given_to(build())
    result = train(from_there, task, order.train, cell.seed, device=cell.device, places=others)
    in_force = _read_back(cell, mixers_of(built[0]), next(built[0].parameters()))
    return in_force | asdict(result) | {"reason": _trouble(result.status)} | _started(result, start)


def _pretraining(order: Visit) -> Task:
    """The task that the cell is pretrained on, at its own T."""
    if order.pretrain is None or order.cell.pretrain_options is None:
        raise ValueError(f"{order.cell.variant} is not pretrained")
    options = dict(order.cell.pretrain_options)
    return _task(_loaded(order.pretrain), options.pop("T"), options)


def _start(order: Visit, build: Callable[[], Model], task: Task, pretraining: Task) -> Start | None:
    """The weights to start from, those that another visit kept where there are any."""
    cell, file = order.cell, order.weights_file(max(task.vocab_size, pretraining.vocab_size))
    return start_from(build, pretraining, order.train, cell.seed, device=cell.device, file=file)


def _started(result: TrainResult, start: Start | None) -> dict[str, Any]:
    """What a record says besides of a cell that was pretrained."""
    return {} if start is None else start.told | {"fingerprint": start.with_data(result.fingerprint)}


def _task(cls: type, T: int, options: Mapping[str, Any]) -> Task:
    task = cls(T, **options)
    if not isinstance(task, Task):
        raise TypeError(f"{cls.__name__} is not a subclass of attnbench.tasks.Task")
    return task


def _trouble(status: str) -> str | None:
    return "no learning rate kept a finite loss" if status == "diverged" else None


def _sound(cell: Cell, workload: Workload, output: object) -> dict[str, Any]:
    """Status of a visit by its last output; where that is the mixer's own, its shape counts too."""
    methods = {"core": ("attend", "(B, H, T, d_v)"), "layer": ("forward", "(B, T, d_model)")}
    if cell.phase == "forward" and cell.level in methods:
        method, letters = methods[cell.level]
        told = blame.wrong(f"{blame.who(type(workload.mixers[0]))}.{method}", output, workload.output_shape, letters)
        if told:
            return {"status": "nonconformant", "reason": told}
    return _finite(output)


def _finite(result: object) -> dict[str, Any]:
    """Status of a visit by its last output and gradients: numbers of a computation gone wrong are not numbers."""
    parts = result if isinstance(result, tuple) else (result,)
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        return {"status": "ok", "reason": None}
    return {"status": "nonconformant", "reason": "an output or a gradient is not finite"}


def _in_force(cell: Cell, workload: Workload) -> dict[str, Any]:
    """What the built objects say of themselves, not what was asked for."""
    asked: dict[str, Any] = {"level": cell.level, "phase": cell.phase or "forward", "T": cell.T, "S": cell.S}
    asked |= {"B": workload.inputs[0].shape[0], "d_ff": cell.d_ff or 0, "vocab_size": MODEL_VOCAB}
    known = cost(workload.mixers, **asked)
    itemsize, n_read = workload.dtype.itemsize, workload.n_params_body
    n_read += MODEL_VOCAB * workload.mixers[0].spec.d_model if cell.level == "model" else 0  # the head
    moved = bytes_moved(workload.mixers, **asked, itemsize=itemsize, param_bytes=n_read * itemsize)
    decodes = cell.phase in ("prefill", "decode")
    return _read_back(cell, workload.mixers, _example(workload)) | {
        "state_bytes": state_bytes(workload.prefill()[1]) if decodes else None,
        "n_params": workload.n_params,
        "n_params_body": workload.n_params_body,
        "param_bytes": workload.param_bytes,
        "flops": known.flops if known else None,
        "flops_executed": known.executed if known else None,
        "flops_core": known.core if known else None,
        "flops_projection": known.projection if known else None,
        "bytes_moved": None if cell.compile else moved,  # a compiler may leave out what operations hand on
    }


def _example(workload: Workload) -> Tensor:
    """A tensor that shows the dtype and the device in force: a parameter, else an input."""
    return next(iter(workload.module.parameters()), workload.inputs[0])


def _read_back(cell: Cell, mixers: Sequence[Mixer], example: Tensor) -> dict[str, Any]:
    """mixers: one per layer; the first ones are the parts of the cell's stack."""
    found = [_built(part, mixer) for part, mixer in zip(cell.parts, mixers, strict=False)]
    return {
        "options": flat_options(found),
        "d_used": mixers[0].spec.d_model,
        "n_heads": mixers[0].spec.n_heads,
        "dtype": str(example.dtype).removeprefix("torch."),
        "device": example.device.type,
        "device_name": open_device(example.device.type).name,
        "threads": torch.get_num_threads(),
        "extra": _extra(mixers),
    }


def _extra(mixers: Sequence[Mixer]) -> dict[str, str]:
    """Each fact that mixers tell of themselves, with every value that it has among the layers."""
    facts = [(str(name), str(fact)) for mixer in mixers for name, fact in mixer.extra_record().items()]
    names = dict.fromkeys(name for name, _ in facts)
    return {name: ", ".join(dict.fromkeys(fact for other, fact in facts if other == name)) for name in names}


def _built(part: VariantUse, mixer: Mixer) -> VariantUse:
    """The options that the mixer was built with, by its own account."""
    return VariantUse(
        part.name, {name: _plain(getattr(mixer, name, asked), asked) for name, asked in part.options.items()}
    )


def _plain(found: object, asked: object) -> object:
    """An option as a record can hold it: what the mixer says, else (it made a tensor of it, say) what was asked."""
    return found if isinstance(found, str | int | float | None) else asked


def _resolution_s(device: Device) -> float:
    """The cost of calling a module that does nothing, by the same clock."""
    nothing, x = nn.Identity(), torch.empty(0)
    quick = TimingSettings(warmup_s=0.0, max_s=2e-3)
    return min(time_call(lambda: nothing(x), quick, device=device).samples_s)

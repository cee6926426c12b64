"""Sweep files: TOML in, a validated `Sweep` out, every mistake of a file reported in one go.

Two things only a process with torch can say (which options a variant takes, and whether a plugin loads) come in as a
`Catalogue`, so that nothing here imports torch or a plugin.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from attnbench.catalogue import Catalogue, Described, variant_key
from attnbench.errors import RequestError, did_you_mean
from attnbench.places import Trained, options_at
from attnbench.places import mistakes as place_mistakes
from attnbench.registry import Source
from attnbench.settings import (
    Bytes,
    Count,
    DType,
    Level,
    Match,
    Measure,
    Phase,
    PositionKind,
    Role,
    Seconds,
    Settings,
    Some,
    TimingSettings,
    TrainSettings,
    WholeNumber,
    as_list,
    whole,
)
from attnbench.wording import complaint, key_path, shown, toml_key


@dataclass(frozen=True)
class VariantUse:
    """A variant or task with options: those beside its name in a sweep, or, in a cell, all that are in force."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def without(self, option: str) -> VariantUse:
        """The same but for one option, which need not be there."""
        return VariantUse(self.name, {name: value for name, value in self.options.items() if name != option})


def _variant_use(value: Any) -> VariantUse:
    if isinstance(value, str):
        return VariantUse(value)
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        return VariantUse(value["name"], {key: option for key, option in value.items() if key != "name"})
    raise ValueError('expected a name or a table { name = "...", option = ... }')


def _stack(value: Any) -> tuple[VariantUse, ...]:
    """One entry of `variant`: a variant for every layer, or a list of them that the layers repeat."""
    if isinstance(value, list) and not value:
        raise ValueError("expected a stack of one or more variants")
    return tuple(map(_variant_use, as_list(value)))


def _pretrain(value: Any) -> VariantUse | None:
    """A task to pretrain on, with its options, and T where it is not the cell's own; None for "none"."""
    if value == "none":
        return None
    use = _variant_use(value)
    T = whole(use.options.get("T", 1))
    if not isinstance(T, int) or isinstance(T, bool) or T < 1:
        raise ValueError("expected T to be a whole number from 1 on")
    return VariantUse(use.name, {**use.options, "T": T}) if "T" in use.options else use


def _baseline(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    raise ValueError('expected a variant, or its label in tables, such as "window" or "window[window=16]"')


class Grid(Settings):
    """One [[grid]], or [defaults]: each key is an axis, a list or one value. None: not given."""

    measure: Some[Measure] | None = None
    variant: Some[Annotated[tuple[VariantUse, ...], BeforeValidator(_stack)]] | None = None
    task: Some[Annotated[VariantUse, BeforeValidator(_variant_use)]] | None = None
    n_training: Some[Count] | None = None
    pretrain: Some[Annotated[VariantUse | None, BeforeValidator(_pretrain)]] | None = None
    role: Some[Role] | None = None
    level: Some[Level] | None = None
    phase: Some[Phase] | None = None
    T: Some[Count] | None = None
    S: Some[Count] | None = None
    B: Some[Count] | None = None
    d_model: Some[Count] | None = None
    n_heads: Some[Count] | None = None
    d_head: Some[Count] | None = None
    n_layers: Some[Count] | None = None
    d_ff: Some[WholeNumber] | None = None
    max_T: Some[Count] | None = None
    positions: Some[PositionKind] | None = None
    embedding_std: Some[Annotated[float, Field(gt=0)]] | None = None
    dtype: Some[DType] | None = None
    device: Some[Literal["cpu", "cuda", "auto"]] | None = None
    threads: Some[Count] | None = None
    compile: Some[bool] | None = None
    match: Some[Match] | None = None
    seed: Some[WholeNumber] | None = None


class Sweep(Settings):
    """A whole sweep file, as validated."""

    question: str = ""
    baseline: Annotated[str | None, BeforeValidator(_baseline)] = None
    match_to: Annotated[str | None, BeforeValidator(_baseline)] = None
    plugins: Annotated[list[str], BeforeValidator(as_list)] = Field(default_factory=list)
    defaults: Grid = Grid()
    grid: list[Grid] = Field(min_length=1)
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = Field(default_factory=dict)
    train: TrainSettings = TrainSettings()
    timing: TimingSettings = TimingSettings()
    memory_limit: Bytes | None = None
    timeout: Seconds = 300.0


DEFAULTS: Mapping[str, Any] = {
    "measure": ["time"],
    "role": ["causal"],
    "phase": ["forward"],
    "level": ["layer"],
    "B": [1],
    "n_heads": [4],
    "n_layers": [2],
    "embedding_std": [0.02],
    "dtype": ["float32"],
    "device": ["cpu"],
    "threads": [1],
    "compile": [False],
    "match": ["none"],
    "seed": [0],
}
_REQUIRED = ("variant", "T", "d_model")
NOT_IN_ACCURACY = {
    "phase": "an accuracy cell has no phase",
    "level": "an accuracy cell is always at level model",
    "B": "an accuracy cell is trained in batches of train.batch_size",
    "compile": "an accuracy cell is trained as it is",
}
IN_ACCURACY_ALONE = {
    "task": "trains on a task",
    "n_training": "trains on sequences",
    "pretrain": "starts from trained weights",
}
_LEVELS_OF = {key: {"model"} for key in ("n_layers", "embedding_std", "positions")} | {"d_ff": {"block", "model"}}
_OPTION_TABLES = {"variant": "options", "task": "tasks"}
_HOMES: tuple[tuple[str, type[Settings], str], ...] = (
    ("", Sweep, "at the top of the file, before the first table"),
    ("grid", Grid, "in [[grid]] or [defaults]"),
    ("defaults", Grid, "in [[grid]] or [defaults]"),
    ("train", TrainSettings, "in [train]"),
    ("timing", TimingSettings, "in [timing]"),
)


def wanted_variants(tables: Mapping[str, Any]) -> list[VariantUse]:
    """Every (name, options) that a sweep file, valid or not, seems to ask for, [options] tables merged in."""
    return [use for _, use, _ in _named(tables, "variant")]


def wanted_tasks(tables: Mapping[str, Any]) -> list[VariantUse]:
    """Every (task, options) that a sweep file, valid or not, seems to ask for, [tasks] tables and places merged in."""
    uses = [use for _, use, _ in _named(tables, "task")]
    return uses + [VariantUse(use.name, {**use.options, **at}) for use in uses for at in options_at(tables)]


def timeout_of(tables: Mapping[str, Any]) -> float:
    """The limit of a visit, in seconds, that a sweep file gives, before the rest of it is known to be valid."""
    try:
        return TypeAdapter(Seconds).validate_python(tables["timeout"])
    except (KeyError, ValidationError):
        return float(Sweep.model_fields["timeout"].default)


def points(grid: Grid, defaults: Grid) -> Iterator[dict[str, Any]]:
    """The product of a grid's axes, default < [defaults] < [[grid]]; `measures` is not crossed.

    Keys that nobody gave and that have no fixed default are absent; those without meaning for accuracy are None.
    """
    axes = dict(DEFAULTS) | {key: axis for layer in (defaults, grid) for key, axis in layer if axis is not None}
    axes.pop("n_heads" if grid.d_head or (defaults.d_head and not grid.n_heads) else "d_head", None)
    measures = tuple(dict.fromkeys(axes.pop("measure")))
    if "accuracy" in measures:
        axes |= {"level": ["model"], "phase": [None], "B": [None], "compile": [False]}
    else:
        axes = {key: axis for key, axis in axes.items() if key not in IN_ACCURACY_ALONE}
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True)) | {"measures": measures}


def validate(tables: Mapping[str, Any], place: str, catalogue: Catalogue) -> Sweep:
    """Check a whole file. Raises RequestError with one line per mistake: place, key, expected, got, nearest name."""
    sweep, lines = None, list[str]()
    try:
        sweep = Sweep.model_validate(tables)
    except ValidationError as error:
        lines += [_line(tables, detail) for detail in error.errors(include_url=False)]
    lines += [*_name_mistakes(tables, catalogue), *_grid_mistakes(tables, catalogue)]
    if sweep is not None:
        lines += place_mistakes(sweep.train.test_at, _trained(sweep), catalogue)
    mistakes = [*catalogue.clashes, *(f"{place}: {line}" for line in lines)]
    missing = [use.name not in catalogue.variant_sources for use in wanted_variants(tables)]
    missing += [use.name not in catalogue.task_sources for use in wanted_tasks(tables)]
    if any(missing):
        mistakes = [*catalogue.broken, *mistakes]  # one of them may be the one that is missed
    if mistakes or sweep is None:
        raise RequestError(mistakes)
    return sweep


def _named(tables: Mapping[str, Any], what: Literal["variant", "task"]) -> Iterator[tuple[str, VariantUse, set[str]]]:
    """Each variant or task that a file names: key path, use with its table of options merged in, options of its own."""
    home = _OPTION_TABLES[what]
    named = _tables(tables.get(home))
    for axis in ("variant",) if what == "variant" else ("task", "pretrain"):
        for path, item in _entries(tables, axis):
            with suppress(ValueError):  # the validation of the whole file reports it
                if use := _variant_use(item) if axis == what else _task_of(_pretrain(item)):
                    yield path, VariantUse(use.name, {**named.get(use.name, {}), **use.options}), set(use.options)
    for name, options in named.items():
        yield f"{home}.{toml_key(name)}", VariantUse(name, options), set(options)


def _task_of(pretrain: VariantUse | None) -> VariantUse | None:
    """The task alone, without T."""
    return pretrain and pretrain.without("T")


def _entries(tables: Mapping[str, Any], axis: str) -> Iterator[tuple[str, Any]]:
    """Key path and value of each entry that [defaults] and the grids have under an axis."""
    grids = enumerate(list_of(tables.get("grid")))
    for home, table in [("defaults", tables.get("defaults")), *((f"grid[{i}]", grid) for i, grid in grids)]:
        value = table.get(axis) if isinstance(table, dict) else None
        for i, item in enumerate(list_of(value)):
            path = f"{home}.{axis}" + (f"[{i}]" if isinstance(value, list) else "")
            if isinstance(item, list):
                yield from ((f"{path}[{layer}]", part) for layer, part in enumerate(item))
            else:
                yield path, item


def _name_mistakes(tables: Mapping[str, Any], catalogue: Catalogue) -> Iterator[str]:
    """Unknown variants and tasks, those that cannot be used, options that they do not take."""
    known: tuple[tuple[Literal["variant", "task"], Mapping[str, Source], Mapping[str, Described]], ...] = (
        ("variant", catalogue.variant_sources, catalogue.variants),
        ("task", catalogue.task_sources, catalogue.tasks),
    )
    for what, sources, described in known:
        for path, use, own in _named(tables, what):
            if use.name not in sources:
                yield f"{path}: unknown {what} {shown(use.name)}{did_you_mean(use.name, sources)}"
                continue
            answer = described[variant_key(use.name, use.options)]
            table = f"{_OPTION_TABLES[what]}.{toml_key(use.name)}"
            if answer.error:
                yield f"{path}: {shown(use.name)} cannot be used: {answer.error}"
            for option, message in answer.mistakes:
                if path != table or option in own:  # a table by itself need not be complete
                    home = path if option in own or option not in use.options else table
                    yield f"{home}.{toml_key(option)}: {message}"


def _grid_mistakes(tables: Mapping[str, Any], catalogue: Catalogue) -> Iterator[str]:
    """What is wrong with [defaults] and each [[grid]] whose values are all right by themselves."""
    try:
        defaults = Grid.model_validate(tables.get("defaults", {}))
    except ValidationError:
        return  # told already, and no grid is whole without it
    for key, values in defaults:
        if values is not None and len(values) > 1 and key != "measure":
            yield f"defaults.{key}: expected one value, got {shown(tables['defaults'][key])}; lists belong in [[grid]]"
    if defaults.n_heads and defaults.d_head:
        yield "defaults.d_head: give n_heads or d_head, not both"
    for i, table in enumerate(list_of(tables.get("grid"))):
        with suppress(ValidationError):  # told already
            grid = Grid.model_validate(table)
            yield from (f"grid[{i}].{line}" for line in _one_grid_mistakes(grid, defaults))
            if all(getattr(grid, key) or getattr(defaults, key) for key in _REQUIRED):
                for point in points(grid, defaults):
                    yield from (f"grid[{i}].{line}" for line in _point_mistakes(point, tables, catalogue))


def _trained(sweep: Sweep) -> Iterator[Trained]:
    """What the points of accuracy grids train on."""
    for point in (point for grid in sweep.grid for point in points(grid, sweep.defaults)):
        use: VariantUse | None = point.get("task")
        if use is not None and "T" in point:
            yield Trained(use.name, {**sweep.tasks.get(use.name, {}), **use.options}, point["T"], point.get("max_T"))


def _one_grid_mistakes(grid: Grid, defaults: Grid) -> Iterator[str]:
    for key in _REQUIRED:
        if getattr(grid, key) is None and getattr(defaults, key) is None:
            yield f"{key}: missing; give at least one (here or in [defaults])"
    if grid.n_heads and grid.d_head:
        yield "d_head: give n_heads or d_head, not both"
    measures = grid.measure or defaults.measure or ["time"]
    if "accuracy" not in measures:
        for key, what in IN_ACCURACY_ALONE.items():
            if getattr(grid, key):
                yield f'{key}: only measure = ["accuracy"] {what}'
        levels = grid.level or defaults.level or DEFAULTS["level"]
        for key, homes in _LEVELS_OF.items():
            if len(getattr(grid, key) or ()) > 1 and not homes.intersection(levels):
                yield f"{key}: has no effect at level {' or '.join(levels)}, only at {' and '.join(sorted(homes))}"
        return
    if len(set(measures)) > 1:
        yield 'measure: "accuracy" has cells of its own; put time and memory in another [[grid]]'
    if grid.task is None and defaults.task is None:
        yield "task: missing; an accuracy grid names the task it trains on"
    yield from (f"{key}: {why}" for key, why in NOT_IN_ACCURACY.items() if getattr(grid, key) is not None)


def _point_mistakes(point: Mapping[str, Any], tables: Mapping[str, Any], catalogue: Catalogue) -> Iterator[str]:
    """What a combination of values that are each all right cannot mean."""
    T, S, max_T, task, stack = point["T"], point.get("S"), point.get("max_T"), point.get("task"), point["variant"]
    if len(stack) > 1 and (point["level"] != "model" or point["n_layers"] % len(stack)):
        got = f"n_layers = {point['n_layers']}" if point["level"] == "model" else f"level {point['level']}"
        names = shown([use.name for use in stack])
        yield f"variant: the stack {names} needs level model and n_layers a multiple of {len(stack)}, got {got}"
    heads = "d_head" if "d_head" in point else "n_heads"
    if point["d_model"] % point[heads]:
        yield f"d_model: {point['d_model']} is not divisible by {heads} = {point[heads]}"
    yield from catalogue.group_mistakes(point, _tables(tables.get("options")))
    yield from catalogue.pretrain_mistakes(point, _tables(tables.get("tasks")))
    if S not in (None, T) and point["role"] != "cross" and point["level"] != "core":
        yield f"S: {S} differs from T = {T}; only the role cross and the level core have an S of their own"
    longest = max(T, S or T) + (point["phase"] == "decode")
    if max_T is not None and longest > max_T:
        more = " (decode is one more token after T others)" if point["phase"] == "decode" else ""
        yield f"T: {longest} is beyond max_T = {max_T}{more}"
    if point["device"] not in (*catalogue.devices, "auto"):
        yield f"device: torch sees no {point['device']} here; available: {', '.join(catalogue.devices)}"
    if task is not None:
        options = {**_tables(tables.get("tasks")).get(task.name, {}), **task.options}
        about = catalogue.tasks.get(variant_key(task.name, options), Described())
        if about.min_T > T:
            yield f"T: {T} is too short for the task {task.name}; its smallest T is {about.min_T}"


def _line(tables: Mapping[str, Any], detail: ErrorDetails) -> str:
    """One pydantic error as one line that a person can act on."""
    loc = detail["loc"]
    path = key_path(tables, loc)
    if detail["type"] == "extra_forbidden":
        table = str(loc[0]) if len(loc) > 1 else ""
        known = next(model for name, model, _ in _HOMES if name == table).model_fields
        return f"{path}: {unknown_key(str(loc[-1]), known)}"
    if loc == ("grid",):
        got = shown(tables["grid"]) if "grid" in tables else "none"
        return f"grid: expected one or more [[grid]] tables, got {got}"
    return f"{path}: {complaint(detail)}"


def unknown_key(key: str, known: Iterable[str]) -> str:
    """What to say of a key that a table does not know: where it belongs, or what it may have meant."""
    belongs = next((place for _, model, place in _HOMES if key in model.model_fields), None)
    return f"unknown key here; it belongs {belongs}" if belongs else f"unknown key{did_you_mean(key, known)}"


def list_of(value: Any) -> list[Any]:
    """A list as it is, nothing as an empty one, anything else as a list of one."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _tables(value: Any) -> dict[str, dict[str, Any]]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {name: table for name, table in pairs if isinstance(table, dict)}

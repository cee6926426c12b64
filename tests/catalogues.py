"""A Catalogue by hand: what a process with torch would say of a few made-up variants and one task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from attnbench import options
from attnbench.catalogue import Catalogue, Described, variant_key
from attnbench.registry import Source
from attnbench.sweep import VariantUse, wanted_tasks, wanted_variants


class Plain:
    def __init__(self, spec: object) -> None: ...


class Window:
    def __init__(self, spec: object, *, window: Annotated[int, Ge(1)] = 64) -> None: ...


class Linear:
    def __init__(
        self,
        spec: object,
        *,
        kind: Literal["elu", "relu"] = "elu",
        eps: float = 1e-6,
        n_features: Annotated[int, Ge(1), Le(512)] = 16,
    ) -> None: ...


class Grouped:
    def __init__(self, spec: object, *, n_kv_heads: Annotated[int, Ge(1)] | None = None) -> None: ...


class Demanding:
    def __init__(
        self, spec: object, *, n: int, sizes: tuple[int, ...] | list[int] = (), strict: bool = False
    ) -> None: ...


class Distance:
    def __init__(self, T: int, *, n_slots: Annotated[int, Ge(1)] = 4) -> None: ...


VARIANTS = {"full": Plain, "fused": Grouped, "window": Window, "linear": Linear, "demanding": Demanding}
TASKS = {"distance": Distance}
TORN = "plugin torn.py: ImportError: no such thing (torn.py:3)"


def catalogue(tables: Mapping[str, Any], **more: Any) -> Catalogue:
    """What `tables` asks for, described; `torn` is a variant that does not load. more: fields of the Catalogue."""
    fields: dict[str, Any] = {
        "variant_sources": {name: Source(name, f"made.up:{name}", "made up") for name in (*VARIANTS, "torn")},
        "task_sources": {name: Source(name, f"made.up:{name}", "made up") for name in TASKS},
        "variants": {variant_key(use.name, use.options): _variant(use) for use in wanted_variants(tables)},
        "tasks": {variant_key(use.name, use.options): _task(use) for use in wanted_tasks(tables)},
        "digests": {"cost": "cost modules", "accuracy": "accuracy modules"},
    }
    return Catalogue(**fields | more)


def _variant(use: VariantUse) -> Described:
    if use.name not in VARIANTS:
        return Described(error=TORN)
    resolved, mistakes = options.resolve(VARIANTS[use.name], use.options)
    positions = "none" if use.name == "linear" else "learned"
    return Described(resolved, positions, f"source of {use.name}", mistakes=tuple(mistakes))


def _task(use: VariantUse) -> Described:
    if use.name not in TASKS:
        return Described(error="no such task")
    resolved, mistakes = options.resolve(TASKS[use.name], use.options)
    return Described(resolved, "none", f"source of {use.name}", 2 * resolved.get("n_slots", 4), tuple(mistakes))

"""What this machine offers to a sweep: answers of a process with torch, in a form that needs none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnbench.registry import Source
from attnbench.settings import PositionKind


@dataclass(frozen=True)
class Described:
    """What a process with torch says of one variant (or task) with one set of options.

    options: every option with the value in force. digest: of the sources that decide its numbers.
    cross: the variant that a task of sequence to sequence takes as cross-attention. vocab_size: of a task at min_T.
    form: what a model reads and answers in a task, in words; models of two tasks are alike where it is the same.
    mistakes: (option, message) pairs; error: why it cannot be loaded at all.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    positions: PositionKind = "none"
    digest: str = ""
    min_T: int = 1
    mistakes: tuple[tuple[str, str], ...] = ()
    error: str | None = None
    cross: str | None = None
    vocab_size: int = 0
    form: str = ""


@dataclass(frozen=True)
class Catalogue:
    """What this machine offers to a sweep: where known names lead, and each asked-for (name, options) described.

    devices: those that can be used, the fastest last, and what each is: {"cpu": "AMD EPYC", "cuda": "NVIDIA H200"}.
    digests: of the attnbench modules that decide costs, and of those that decide accuracy.
    broken: plugin files that do not load, one line each; they matter only to a sweep that misses a name.
    clashes: names that two plugins claim, one line each; they matter to every sweep.
    """

    variant_sources: Mapping[str, Source]
    task_sources: Mapping[str, Source]
    variants: Mapping[str, Described] = field(default_factory=dict)
    tasks: Mapping[str, Described] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=lambda: {"cpu": ""})
    digests: Mapping[str, str] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    clashes: tuple[str, ...] = ()

    def group_mistakes(self, point: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
        """What is wrong with heads that keys share at one point of a grid: they have to divide those of queries.

        tables: options by variant, for uses that do not say otherwise.
        """
        n_heads = point["d_model"] // point["d_head"] if "d_head" in point else point["n_heads"]
        for use in point["variant"]:
            key = variant_key(use.name, {**tables.get(use.name, {}), **use.options})
            n_kv_heads = self.variants.get(key, Described()).options.get("n_kv_heads")
            if isinstance(n_kv_heads, int) and n_heads % n_kv_heads:
                yield f"variant: {use.name} has n_kv_heads = {n_kv_heads}, which must divide n_heads = {n_heads}"

    def pretrain_mistakes(self, point: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
        """Why the weights of one task, at its T, cannot be those that training on another starts from.

        tables: options by task, for uses that do not say otherwise.
        """
        if point.get("pretrain") is None or point.get("task") is None:
            return
        pretrain, T = point["pretrain"], point["pretrain"].options.get("T", point["T"])
        before, after = (self._task(use, tables) for use in (pretrain.without("T"), point["task"]))
        if before.min_T > T:
            yield f"pretrain: T = {T} is too short for the task {pretrain.name}; its smallest T is {before.min_T}"
        if point.get("max_T") is not None and point["max_T"] < T:
            yield f"pretrain: T = {T} is beyond max_T = {point['max_T']}"
        if before.form != after.form:
            task = point["task"].name
            yield f"pretrain: {pretrain.name} is of {before.form}, {task} of {after.form}; no model can learn both"

    def _task(self, use: Any, tables: Mapping[str, Mapping[str, Any]]) -> Described:
        return self.tasks.get(variant_key(use.name, {**tables.get(use.name, {}), **use.options}), Described())


def variant_key(name: str, options: Mapping[str, Any]) -> str:
    """How one (name, options) is looked up in a Catalogue."""
    return f"{name} {sorted(options.items())}"

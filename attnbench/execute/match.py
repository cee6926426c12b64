"""Sizes at which variants are like a reference in parameters, operations or decoding state: `match` of a sweep.

One knob after another is turned until a cell is within TOLERANCE: by bisection, since whatever a knob makes larger
makes a model no smaller. The number of heads, of layers and all else stay as asked. Needs torch.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn

from attnbench import registry
from attnbench.cells import Cell
from attnbench.execute.build import MODEL_VOCAB, build_module, build_workload, encoder_decoder, mixer_factory, mixers_of
from attnbench.execute.phases import state_bytes
from attnbench.measure.cost import cost
from attnbench.mixer import Mixer
from attnbench.registry import Source, describe_error
from attnbench.settings import Match
from attnbench.sweep import VariantUse
from attnbench.tasks import Task
from attnbench.transformer import n_params_body

TOLERANCE = 0.03  # of the reference: cells nearer to it than this are alike
WIDEST = 8  # times what was asked for, the farthest that a knob is turned
STATE_OPTIONS = ("d_state", "n_state", "n_features", "window", "d_k")  # of variants, by which their state grows
UNITS: Mapping[Match, str] = {"params": "parameters", "flops": "operations", "state": "bytes of state"}
Matched = tuple[Cell, str | None]
Size = Callable[[Cell], float]


class UnsizedError(Exception):
    """A cell has no size of the kind that is to be matched."""


def matched(
    cells: Sequence[Cell], parts: tuple[VariantUse, ...], variants: Mapping[str, Source], tasks: Mapping[str, Source]
) -> list[Matched]:
    """Each cell with `matched` and `match_error` that bring it within TOLERANCE of the reference in its place.

    parts: what fills the layers of the reference. Beside each cell stands why it could not be done, or None; it is then
    as it was. params: without embeddings, positions and head, which are the same for all and would hide differences.
    flops: visible operations of a forward pass over one sequence. state: bytes after a prompt of T tokens.
    """
    torch.set_num_threads(1)  # others are matched beside these
    names = {part.name for cell in cells for part in (*cell.parts, *parts)} | {c.cross for c in cells if c.cross}
    sizes = _Sizes(
        {name: registry.load(variants[name]) for name in names},
        {cell.task_name: registry.load(tasks[cell.task_name]) for cell in cells if cell.task_name},
    )
    solved: dict[str, Matched] = {}
    return [_like(cell, _solved(replace(cell, seed=0, measures=()), parts, sizes, solved)) for cell in cells]


def _like(cell: Cell, solved: Matched) -> Matched:
    """The cell as one that differs in seed or measures alone was solved."""
    found, why = solved
    return replace(cell, matched=found.matched, match_error=found.match_error), why


def _solved(cell: Cell, parts: tuple[VariantUse, ...], sizes: _Sizes, known: dict[str, Matched]) -> Matched:
    if cell.id not in known:
        known[cell.id] = _matched(cell, replace(cell, parts=parts), sizes)
    return known[cell.id]


@dataclass(frozen=True)
class _Sizes:
    """What cells are measured by, as they are built. Each raises UnsizedError with the reason where there is none."""

    classes: Mapping[str, type[Mixer]]
    tasks: Mapping[str, type[Task]]

    def of(self, match: Match) -> Size:
        """The size that cells are matched in."""
        kinds: Mapping[Match, Size] = {"params": self.params, "flops": self.flops, "state": self.state}
        return kinds[match]

    def params(self, cell: Cell) -> float:
        """Parameters of the body, counted without storage; a core has none of its own."""
        if cell.level == "core":
            raise UnsizedError("a core has no parameters of its own")
        return n_params_body(self._module(cell, "meta"))

    def flops(self, cell: Cell) -> float:
        """Visible operations of a forward pass over one sequence, head included, by formula."""
        if cell.cross:
            raise UnsizedError("an encoder-decoder has no formula of operations")
        mixers = mixers_of(self._module(cell, "meta"))
        sizes = {"d_ff": cell.d_ff or 0, "vocab_size": self._n_outputs(cell)}
        known = cost(mixers, level=cell.level, phase="forward", T=cell.T, S=cell.S, B=1, **sizes)
        if known is None:
            raise UnsizedError(f"{cell.variant} has no formula of operations")
        return known.flops

    def state(self, cell: Cell) -> float:
        """Bytes of the decoding state of one sequence after T tokens, really read: not all can be without storage."""
        if cell.cross or cell.level == "core":
            raise UnsizedError(f"{'an encoder-decoder' if cell.cross else 'a core'} keeps no state")
        if cell.role == "bidirectional":
            raise UnsizedError("what looks both ways keeps no state")
        one = replace(cell, B=1, device="cpu")
        try:
            with torch.no_grad():
                return state_bytes(build_workload(one, self._module(one, "cpu")).prefill()[1])
        except (NotImplementedError, TypeError) as error:
            raise UnsizedError(f"{cell.variant} keeps no state: {error}") from error

    def _module(self, cell: Cell, device: str) -> nn.Module:
        mixer = mixer_factory(cell, [self.classes[part.name] for part in cell.parts])
        with torch.device(device):
            if cell.cross is None:
                return build_module(replace(cell, device=device), mixer)
            across = mixer_factory(replace(cell, parts=(VariantUse(cell.cross),)), [self.classes[cell.cross]])
            return encoder_decoder(cell, mixer, across, vocab_size=2)

    def _n_outputs(self, cell: Cell) -> int:
        """Numbers that the head gives for each token."""
        if cell.task_name is None:
            return MODEL_VOCAB
        task = self.tasks[cell.task_name](cell.T, **(cell.task_options or {}))
        return 1 if task.answers == "number" else task.vocab_size


def _matched(cell: Cell, reference: Cell, sizes: _Sizes) -> Matched:
    """Turn knobs until the cell is within TOLERANCE; it stays as it was, with the reason, where that is never so."""
    size = sizes.of(cell.match)
    try:
        aim = size(reference)
        best = _with(cell, {}, size, aim)
    except UnsizedError as error:
        return cell, f"cannot be matched in {cell.match}: {error}"
    except Exception as error:
        return cell, f"cannot be matched in {cell.match}: {describe_error(error)}"
    for name, values in _knobs(cell):
        if _off(best) > TOLERANCE:
            best = min(best, _turned(best, name, values, size, aim), key=_off)
    return (best, None) if _off(best) <= TOLERANCE else (cell, _too_far(best, size(best.built), aim))


def _knobs(cell: Cell) -> list[tuple[str, range]]:
    """What is changed, in this order, and the values it may have.

    State: the variant's own option first. Else the width, and what it leaves over by d_ff, or by such an option.
    Widths are even where that is asked for, unless nothing else comes near: what runs both ways halves them.
    """
    steps = dict.fromkeys((math.lcm(cell.n_heads, 2 - cell.d_model % 2), cell.n_heads))
    widths = [("d_model", range(step, WIDEST * cell.d_model + 1, step)) for step in steps]
    fed = [("d_ff", range(1, WIDEST * cell.d_ff + 1))] if cell.d_ff else []
    options = cell.parts[0].options if len(cell.parts) == 1 else {}
    counts = {name: options[name] for name in STATE_OPTIONS if isinstance(options.get(name), int)}
    own = [(name, range(1, WIDEST * count + 1)) for name, count in counts.items()]
    return [*own, *widths] if cell.match == "state" else [widths[0], *fed, *widths[1:], *own]


def _turned(cell: Cell, name: str, values: range, size: Size, aim: float) -> Cell:
    """The cell at that value of a knob which comes nearest; as it is, where the knob cannot be turned so far."""

    def at(value: int) -> Cell:
        return _with(cell, _changes(cell, name, value), size, aim)

    @cache
    def size_at(value: int) -> float:
        return size(replace(cell, matched=_changes(cell, name, value)).built)

    top, last = bisect_left(values, getattr(cell.built, name, 1)), len(values) - 1
    try:
        while top < last and size_at(values[top]) < aim:  # no farther than needed: wide models are slow
            top = min(2 * top + 1, last)
        reached = min(aim, size_at(values[top]))  # a window has no more state than T tokens, however wide it is
        above = bisect_left(values, reached, hi=top, key=size_at)
        return min(map(at, values[max(0, above - 1) : above + 1]), key=_off)
    except Exception:  # a variant may have limits of its own
        return cell


def _changes(cell: Cell, name: str, value: int) -> dict[str, Any]:
    """All that is changed when one more knob is; a width takes its feed-forward network along in proportion."""
    along = {"d_ff": round(cell.d_ff * value / cell.d_model)} if name == "d_model" and cell.d_ff else {}
    asked = {"d_model": cell.d_model, "d_ff": cell.d_ff, **cell.options}
    changed = {**(cell.matched or {}), name: value, **along}
    return {name: value for name, value in changed.items() if value != asked[name]}


def _with(cell: Cell, changes: Mapping[str, Any], size: Size, aim: float) -> Cell:
    """The cell with these changes, and how far it is then from the aim."""
    changed = replace(cell, matched=changes)
    off = abs(size(changed.built) - aim)
    return replace(changed, match_error=off / aim if aim else 0.0 if off == 0 else math.inf)


def _off(cell: Cell) -> float:
    return math.inf if cell.match_error is None else cell.match_error


def _too_far(best: Cell, size: float, aim: float) -> str:
    """How near the nearest came."""
    at = ", ".join(f"{name} = {value}" for name, value in (best.matched or {}).items()) or "the sizes asked for"
    told = f"comes no nearer than {size:,.0f} of {aim:,.0f} {UNITS[best.match]}, with {at}"
    return f"cannot be matched in {best.match}: {told}"

"""Widths at which variants have as many parameters as a reference: `match_parameters` of a sweep. Needs torch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from attnbench import registry
from attnbench.cells import Cell
from attnbench.execute.build import build_module, encoder_decoder, language_model, mixer_factory
from attnbench.mixer import Mixer
from attnbench.registry import Source
from attnbench.sweep import VariantUse
from attnbench.transformer import n_params_body

WIDEST = 8  # times the width that was asked for: a mixer of many fewer parameters needs no more


def matched(cells: Sequence[Cell], parts: tuple[VariantUse, ...], sources: Mapping[str, Source]) -> list[Cell]:
    """Each cell at the width that brings its parameters nearest to those of the reference in its place.

    parts: what fills the layers of the reference. Embeddings, positions and the head of a model are not counted; the
    number of heads stays, and d_ff in proportion. A cell stays as it is where it cannot be built, where it has no
    parameters of its own (level core, or a mixer without any at level layer), and in the place of the reference.
    """
    names = {part.name for cell in cells for part in (*cell.parts, *parts)} | {c.cross for c in cells if c.cross}
    count = _Counter({name: registry.load(sources[name]) for name in names})
    return [cell if cell.parts == parts else _matched(cell, replace(cell, parts=parts), count) for cell in cells]


@dataclass(frozen=True)
class _Counter:
    """Parameters of a cell's body, counted on a module without storage."""

    classes: Mapping[str, type[Mixer]]

    def __call__(self, cell: Cell) -> int:
        mixer = mixer_factory(cell, [self.classes[part.name] for part in cell.parts])
        with torch.device("meta"):
            if cell.cross:
                cross = mixer_factory(replace(cell, parts=(VariantUse(cell.cross),)), [self.classes[cell.cross]])
                return n_params_body(encoder_decoder(cell, mixer, cross, vocab_size=2))
            if cell.level == "model":
                return n_params_body(language_model(cell, mixer, vocab_size=2))
            return n_params_body(build_module(replace(cell, device="meta"), mixer))


def _matched(cell: Cell, reference: Cell, count: Callable[[Cell], int]) -> Cell:
    aim = count(reference)
    try:
        n_params = count(cell)
    except Exception:
        return cell  # it will be said to be unsupported, or fails in its own visit
    if cell.level == "core" or not n_params:
        return cell
    step = cell.n_heads if cell.d_model % 2 else math.lcm(cell.n_heads, 2)  # what runs both ways halves an even width
    widths = range(step, WIDEST * cell.d_model + 1, step)
    above = bisect_right(widths, aim, key=lambda d: count(at_width(cell, d)))
    near = (at_width(cell, d) for d in widths[max(0, above - 1) : above + 1])
    return min(near, key=lambda found: abs(count(found) - aim))


def at_width(cell: Cell, d: int) -> Cell:
    """The cell with d_model = d inside and its feed-forward network in proportion."""
    d_ff = None if cell.d_ff is None else round(cell.d_ff * d / cell.d_model)
    return replace(cell, d_used=d, d_ff=d_ff)

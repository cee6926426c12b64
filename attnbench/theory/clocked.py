"""Times of layers on this machine: where fused attention and recurrences meet, and how each grows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import torch
from pandas import DataFrame

from attnbench.measure.clock import time_call
from attnbench.measure.device import open_device
from attnbench.mixer import Attention, Mixer, Role
from attnbench.settings import TimingSettings
from attnbench.theory.mixers import build, named
from attnbench.theory.rules import within
from attnbench.theory.statement import Curves, Finding

NAMES: dict[str, Role] = {"fused": "bidirectional", "lstm": "causal", "gru": "causal", "rnn": "causal"}
BY_OPERATIONS: dict[str, float | None] = {
    "lstm": 2.0,
    "gru": 1.0,
    "rnn": None,
}  # crossover in d, whole layer, all pairs
N_HEADS, FACTOR, N_ROUNDS = 4, 1.3, 2
TIMING = TimingSettings(warmup_s=0.05, max_s=0.3, precision=0.02)
GEMV = "time is not operations: at B = 1 a step of a recurrence multiplies a matrix by a vector, which memory limits"
GEMM = (
    "time is not operations: at a larger batch a step multiplies matrices, and what softmax costs is no operation here"
)
MORE_TERMS = "a time is more than its leading term (softmax, caches, calls), or the machine was not idle"


@dataclass(frozen=True)
class Grid:
    """Sizes at which layers are timed."""

    lengths: Sequence[int]
    widths: Sequence[int]
    B: int = 1


QUICK = (Grid((128, 256, 512, 1024, 2048), (64, 256)),)
WHOLE = (
    Grid((128, 256, 512, 1024, 2048, 4096), (64, 256, 512)),
    Grid((64, 128, 256, 512, 1024, 2048), (256,), B=4),
    Grid((64, 128, 256, 512, 1024), (256,), B=16),
)


def fastest_s(call: Callable[[], object]) -> float:
    """Seconds of the fastest sample, by the time of this process alone: what others take of the core does not count."""
    with torch.inference_mode():
        return min(time_call(call, TIMING, device=open_device("cpu"), clock=time.process_time).samples_s)


def layer(name: str, T: int, d_model: int) -> Mixer:
    """A layer in the role that it is compared in."""
    return build(named(name), T, NAMES[name], d_model=d_model, n_heads=N_HEADS, dtype=torch.float32)


def times(grid: Grid) -> DataFrame:
    """Forward time of one layer: label, d, T, B, ms, and executed operations per second in 1e9.

    Taken in rounds over the whole grid, so that what disturbs one round is in no number.
    """
    sizes = list(product(grid.widths, grid.lengths, NAMES))
    rounds = [[_layer_s(name, grid.B, T, d) for d, T, name in sizes] for _ in range(N_ROUNDS)]
    rows = []
    for (d, T, name), *taken_s in zip(sizes, *rounds, strict=True):
        n = grid.B * operations(layer(name, T, d), T)
        time_s = min(taken_s)
        rows.append({"label": name, "d": d, "T": T, "B": grid.B, "ms": 1e3 * time_s, "GFLOP/s": n / time_s / 1e9})
    return DataFrame(rows)


def _layer_s(name: str, B: int, T: int, d_model: int) -> float:
    return fastest_s(partial(layer(name, T, d_model), torch.randn(B, T, d_model)))


def operations(mixer: Mixer, T: int) -> float:
    """What a layer really multiplies for one sequence, by its formula; 0 without one."""
    flops = mixer.flops(T, T)
    return 0.0 if flops is None else flops.executed + flops.projection


def crossing(lengths: Sequence[float], ratios: Sequence[float]) -> float | None:
    """Where ratios of time rise through 1 for the last time, interpolated in logarithms.

    None when they are above 1 throughout, infinite when the last one is not.
    """
    below = [i for i, ratio in enumerate(ratios) if ratio <= 1]
    if not below:
        return None
    last = below[-1]
    if last == len(ratios) - 1:
        return math.inf
    low, high = math.log(ratios[last]), math.log(ratios[last + 1])
    share = -low / (high - low)
    return math.exp((1 - share) * math.log(lengths[last]) + share * math.log(lengths[last + 1]))


def met(found: DataFrame) -> DataFrame:
    """Where the whole layer of fused attention meets each recurrence: B, d, label and T as `crossing` tells it."""
    rows = []
    for (B, d), part in found.groupby(["B", "d"]):
        by_name = part.pivot(index="T", columns="label", values="ms")
        for name in BY_OPERATIONS:
            T = crossing(list(by_name.index), list(by_name["fused"] / by_name[name]))
            rows.append({"B": int(B), "d": int(d), "label": name, "T": T, "lengths": list(by_name.index)})
    return DataFrame(rows)


def _crossovers(crossings: DataFrame) -> list[Finding]:
    """Where clocks put crossovers, beside where operations do."""
    findings = []
    for one in crossings.to_dict("records"):
        B, d, name = one["B"], one["d"], one["label"]
        what = f"by the clock, B = {B}, d = {d}: fused against {name}"
        at = None if pd.isna(one["T"]) else one["T"]
        findings.append(crossover(what, BY_OPERATIONS[name], at, d, B, one["lengths"]))
    return findings


def crossover(what: str, expected: float | None, at: float | None, d: int, B: int, lengths: Sequence[int]) -> Finding:
    """A crossover by the clock beside that by operations, `expected` times d; passes within a factor of FACTOR."""
    told = "none" if expected is None else f"T = {expected * d:g} ({expected:g} d)"
    if at is None:
        measured = f"none: slower from T = {min(lengths)} on"
        ok = expected is None or expected * d <= min(lengths)
    elif math.isinf(at):
        measured, ok = f"beyond T = {max(lengths)}", expected is not None and expected * d >= max(lengths)
    else:
        measured = f"T = {at:.0f} ({at / d:.2g} d)"
        ok = expected is not None and abs(math.log(at / (expected * d))) <= math.log(FACTOR)
    return Finding(what, told, measured, ok, "" if ok else GEMV if B == 1 else GEMM)


def _slopes(found: DataFrame) -> list[Finding]:
    """How times grow: with T for attention's core and for a recurrence, with d for a recurrence."""
    T = sorted(found["T"].unique())[-1]
    rounds = [[core_s(t, 64) for t in (1024, T)] for _ in range(N_ROUNDS)]
    core = _slope([min(taken) for taken in zip(*rounds, strict=True)], T / 1024)
    rnn = found[(found["label"] == "rnn") & (found["B"] == 1) & (found["d"] == 64)].set_index("T")["ms"]
    findings = [
        within(
            f"slope in T of fused attention's core, d = 64, T = 1024 to {T}", 2.0, core, off=0.15, reason=MORE_TERMS
        ),
        within(
            f"slope in T of rnn, d = 64, T = 1024 to {T}",
            1.0,
            _slope([rnn[1024], rnn[T]], T / 1024),
            off=0.05,
            reason=MORE_TERMS,
        ),
    ]
    lstm = found[(found["label"] == "lstm") & (found["B"] == 1) & (found["T"] == 1024)].set_index("d")["ms"]
    if 512 in lstm.index:
        wide = _slope([lstm[256], lstm[512]], 2)
        findings.append(within("slope in d of lstm, T = 1024, d = 256 to 512", 2.0, wide, off=0.25, reason=MORE_TERMS))
    return findings


def core_s(T: int, d_model: int) -> float:
    """Seconds of attention alone, on ready queries, keys and values."""
    mixer = layer("fused", T, d_model)
    if not isinstance(mixer, Attention):
        raise TypeError("fused has no queries and keys")
    q, k, v, *_ = mixer.project(*(torch.randn(1, T, d_model),) * 2)
    return fastest_s(partial(mixer.attend, q.detach(), k.detach(), v.detach()))


def _slope(values: Sequence[float], factor: float) -> float:
    return math.log(values[1] / values[0], factor)


def shown(quick: bool) -> tuple[list[Finding], tuple[Curves, ...]]:
    """Crossovers and slopes, with pictures of times, rates, and crossovers by batch."""
    grids = QUICK if quick else WHOLE
    tables = [times(grid) for grid in grids]
    crossings = pd.concat([met(found) for found in tables])
    pictures = _pictures(pd.concat(tables))
    if len(grids) > 1:
        pictures.append(_by_batch(crossings[crossings["d"] == grids[-1].widths[0]]))
    return [*_crossovers(crossings), *_slopes(tables[0])], tuple(pictures)


def _by_batch(crossings: DataFrame) -> Curves:
    """Crossovers in units of d against B; those that were not met are left out."""
    frame = crossings[np.isfinite(crossings["T"].astype(float))]
    frame = frame.assign(**{"T / d": frame["T"].astype(float) / frame["d"]})
    title = f"Crossover of fused attention and recurrences by the clock, d = {crossings['d'].iloc[0]}"
    return Curves("batch", title, frame, "B", "T / d", x_log=True, y_log=True)


def _pictures(found: DataFrame) -> list[Curves]:
    """Times and rates, one panel for each batch and width."""
    frame = found.assign(facet=[f"B = {B}, d = {d}" for B, d in zip(found["B"], found["d"], strict=True)])
    titles = {"ms": "Forward time of a layer, one thread", "GFLOP/s": "Executed operations per second, one thread"}
    return [Curves(y, title, frame, "T", y, x_log=True, y_log=True) for y, title in titles.items()]

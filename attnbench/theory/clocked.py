"""Times of layers on this machine: where fused attention and recurrences meet, and how each grows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
N_HEADS, FACTOR = 4, 1.3
TIMING = TimingSettings(warmup_s=0.05, max_s=0.3, precision=0.02)
GEMV = (
    "time is not operations: at B = 1 a step of a recurrence is a product of a matrix and a vector, which memory and "
    "the cost of a call limit; and attention takes exponentials too"
)
GEMM = "time is not operations: at a larger batch a step is a product of matrices, but a thin one"
MORE_TERMS = "a time is more than its leading term (softmax, caches, calls), or the machine was not idle"


@dataclass(frozen=True)
class Grid:
    """Sizes at which layers are timed."""

    lengths: Sequence[int]
    widths: Sequence[int]
    B: int = 1


QUICK = (Grid((128, 256, 512, 1024, 2048), (64, 256)),)
WHOLE = (Grid((128, 256, 512, 1024, 2048, 4096), (64, 256, 512)), Grid((64, 128, 256, 512, 1024), (256,), B=16))


def fastest_s(call: Callable[[], object]) -> float:
    """Seconds of the fastest sample: what is least disturbed by whatever else runs."""
    with torch.inference_mode():
        return min(time_call(call, TIMING, device=open_device("cpu")).samples_s)


def layer(name: str, T: int, d_model: int) -> Mixer:
    """A layer in the role that it is compared in."""
    return build(named(name), T, NAMES[name], d_model=d_model, n_heads=N_HEADS, dtype=torch.float32)


def times(grid: Grid) -> DataFrame:
    """Forward time of one layer: name, d, T, B, ms, and executed operations per second in 1e9."""
    rows = []
    for d in grid.widths:
        for T in grid.lengths:
            x = torch.randn(grid.B, T, d)
            for name in NAMES:
                mixer = layer(name, T, d)
                time_s, flops = fastest_s(partial(mixer, x)), mixer.flops(T, T)
                n = 0.0 if flops is None else grid.B * (flops.executed + flops.projection)
                rows.append(
                    {"label": name, "d": d, "T": T, "B": grid.B, "ms": 1e3 * time_s, "GFLOP/s": n / time_s / 1e9}
                )
    return DataFrame(rows)


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


def _crossovers(found: DataFrame) -> list[Finding]:
    """Of the whole layer, against each recurrence, by width and batch."""
    findings = []
    for (B, d), part in found.groupby(["B", "d"]):
        by_name = part.pivot(index="T", columns="label", values="ms")
        for name, expected in BY_OPERATIONS.items():
            at = crossing(list(by_name.index), list(by_name["fused"] / by_name[name]))
            findings.append(
                crossover(
                    f"by the clock, B = {B}, d = {d}: fused against {name}",
                    expected,
                    at,
                    int(d),
                    int(B),
                    list(by_name.index),
                )
            )
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
    core = _slope([core_s(t, 64) for t in (1024, T)], T / 1024)
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
    """Crossovers and slopes, with pictures of times and rates."""
    grids = QUICK if quick else WHOLE
    tables = [times(grid) for grid in grids]
    findings = [finding for found in tables for finding in _crossovers(found)] + _slopes(tables[0])
    pictures = [picture for found in tables for picture in _pictures(found)]
    return findings, tuple(pictures)


def _pictures(found: DataFrame) -> list[Curves]:
    frame, B = found.assign(facet=[f"d = {d}" for d in found["d"]]), int(found["B"].iloc[0])
    titles = {"ms": "Forward time of a layer", "GFLOP/s": "Executed operations per second"}
    return [
        Curves(f"{y}_{B}", f"{title}, B = {B}, one thread", frame, "T", y, x_log=True, y_log=True)
        for y, title in titles.items()
    ]

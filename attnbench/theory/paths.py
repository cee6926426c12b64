"""C5: how far apart two positions are, in layers and in steps. Vaswani et al. 2017, table 1 (maximum path length)."""

from __future__ import annotations

import math
from itertools import repeat
from typing import Any

import torch
from pandas import DataFrame
from torch import Tensor

from attnbench.mixer import Mixer
from attnbench.settings import TrainSettings
from attnbench.tasks.distance import Distance
from attnbench.theory.mixers import build, installed, named
from attnbench.theory.probing import n_layers_to_join, n_rewrites, seen
from attnbench.theory.rules import above, exactly, not_run, within
from attnbench.theory.statement import Curves, Finding, Maps, Shown, Statement
from attnbench.train import train
from attnbench.transformer import LanguageModel

T, D_MODEL, N_HEADS, WINDOW, KERNEL = 32, 16, 2, 4, 3
SIZES: dict[str, Any] = {"d_model": D_MODEL, "n_heads": N_HEADS}
LAYERS = {"full": 1, "fused": 1, "linear": 1, "mean": 1, "lstm": 1, "gru": 1, "rnn": 1, "strided": 2}
RECURRENT, CACHED = ("lstm", "gru", "rnn", "linear", "mean"), ("full", "fused", "strided")  # how they decode
ROUNDING = 1e-9  # of the largest change: what a Fourier transform in float64 leaves of a 0 is far less
REACH_T, REACH_WINDOW, REACH_LAYERS = 48, 16, 2


def probed(cls: type[Mixer], T: int, rounding: float = 0.0, **options: Any) -> Tensor:
    """(T, T) bool: which outputs of one causal layer depend on which inputs, by more than the rounding."""
    return seen(build(cls, T, "causal", **SIZES, **options), T, D_MODEL, rounding=rounding)


def _layers(maps: dict[str, Tensor]) -> list[Finding]:
    """How many layers join all positions, by the maps of one layer; and who sees the future."""
    past = torch.ones(T, T, dtype=torch.bool).tril()
    wanted = {name: LAYERS[name] for name in maps if name in LAYERS}
    wanted["window"] = math.ceil((T - 1) / (WINDOW - 1))
    what = f"layers that join every position to all before it, T = {T}:"
    options = {"window": f" of {WINDOW}: ceil((T - 1) / (w - 1))"}
    found = [
        exactly(f"{what} {name}{options.get(name, '')}", n, n_layers_to_join(repeat(maps[name], T), past))
        for name, n in wanted.items()
    ]
    if "tcn" in maps:
        layers = (probed(named("tcn"), T, kernel=KERNEL, layer=i) for i in range(T))
        n = math.ceil(math.log2(1 + (T - 1) / (2 * (KERNEL - 1))))
        what_tcn = f"{what} tcn, kernel {KERNEL}: log2(1 + (T - 1) / (2 (k - 1))), rounded up"
        found.append(exactly(what_tcn, n, n_layers_to_join(layers, past)))
    suspects = [name for name, one in maps.items() if bool((one & ~past).any())]
    future = [name for name in suspects if bool((probed(named(name), T, ROUNDING) & ~past).any())]
    return [*found, exactly(f"variants, of {len(maps)}, that see the future", "none", ", ".join(future) or "none")]


def _steps() -> list[Finding]:
    """How often what decoding keeps of input 0 is rewritten, one time after the other."""
    classes = installed(T, "causal", phase="decode", **SIZES)
    n_steps = dict.fromkeys(RECURRENT, T - 1) | dict.fromkeys(CACHED, 0)
    what = f"steps, one after the other, that fold input 0 anew into the state, T = {T}:"
    return [
        exactly(f"{what} {name}", n, n_rewrites(build(classes[name], T, "causal", **SIZES), T))
        for name, n in n_steps.items()
        if name in classes
    ]


def reach(cls: type[Mixer], n_layers: int, T: int, **options: Any) -> int:
    """How far back the last output of a stack of blocks depends on inputs."""
    one = probed(cls, T, **options).double()
    last = torch.linalg.matrix_power(one, n_layers)[-1]
    return T - 1 - int(last.nonzero()[0])


def _recall(window: type[Mixer], fused: type[Mixer]) -> tuple[list[Finding], Curves]:
    """Accuracy by gap, of attention and of two layers with a window of 16."""
    settings = TrainSettings(steps=600, batch_size=64, lr=[3e-3], stop_at=0.99)
    by_gap = {
        "fused": _accuracies(fused, settings),
        "window": _accuracies(window, settings, window=REACH_WINDOW),
    }
    rows = [{"label": name, "gap": gap, "accuracy": a} for name, found in by_gap.items() for gap, a in found.items()]
    cut = REACH_LAYERS * (REACH_WINDOW - 1)
    findings = [
        above(f"recall over a gap of {gap} and more, trained: fused", 0.9, a) for gap, a in by_gap["fused"].items()
    ]
    for gap, accuracy in by_gap["window"].items():
        what = f"the same: window of {REACH_WINDOW}, {REACH_LAYERS} layers"
        chance = within(f"{what}, gap {gap}, beyond {cut}: chance", 0.125, accuracy, off=0.05)
        findings.append(chance if gap > cut else above(f"{what}, gap {gap}", 0.9, accuracy))
    return findings, Curves(
        "recall", "Recall by gap (task distance, T = 128)", DataFrame(rows), "gap", "accuracy", x_log=True
    )


def _accuracies(cls: type[Mixer], settings: TrainSettings, T: int = 128, **options: Any) -> dict[int, float]:
    """Accuracy on distance by gap, trained with these settings."""
    task = Distance(T)

    def model() -> LanguageModel:
        return LanguageModel(
            vocab_size=task.vocab_size,
            d_model=64,
            n_heads=2,
            n_layers=REACH_LAYERS,
            max_T=T,
            mixer=lambda spec: cls(spec, **options),
            d_ff=0,
        )

    slices = train(model, task, settings, seed=0).slices
    return {int(gap): float(found["accuracy"] or 0.0) for gap, found in slices.items()}


def show(quick: bool) -> Shown:
    """What each causal layer joins, how often a state is rewritten, and how far a stack of windows reaches."""
    classes = installed(T, "causal", **SIZES)
    options = {"window": {"window": WINDOW}, "strided": {"stride": WINDOW}, "tcn": {"kernel": KERNEL}}
    maps = {name: probed(cls, T, **options.get(name, {})) for name, cls in classes.items()}
    cut = REACH_LAYERS * (REACH_WINDOW - 1)
    far = reach(named("window"), REACH_LAYERS, REACH_T, window=REACH_WINDOW)
    findings = [
        *_layers(maps),
        *_steps(),
        exactly(f"reach of {REACH_LAYERS} layers with a window of {REACH_WINDOW}: L (w - 1)", cut, far),
    ]
    shown = [name for name in ("fused", "window", "strided", "lstm", "none") if name in maps]
    pictures: list[Curves | Maps] = [
        Maps(
            "seen",
            "Which outputs (rows) of one layer depend on which inputs (columns)",
            {name: maps[name].int().tolist() for name in shown},
        )
    ]
    if quick:
        findings.append(not_run("recall by gap, trained", f"attention at every gap, the window up to {cut}"))
    else:
        more, curve = _recall(named("window"), named("fused"))
        findings, pictures = [*findings, *more], [*pictures, curve]
    return Shown(tuple(findings), tuple(pictures))


STATEMENT = Statement(
    "C5",
    "How far apart two positions are",
    "Attention joins any two positions in one layer; a window of w needs (T - 1) / (w - 1) layers, strided attention "
    "two. A recurrence needs one layer too, but what it holds is rewritten T - 1 times, one after the other, where "
    "the cache of attention keeps it as it was.",
    show,
)

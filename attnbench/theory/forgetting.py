"""C6: how much of an input is left after a gap, by gradient norms. Bengio, Simard and Frasconi 1994."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from pandas import DataFrame
from torch import Tensor

from attnbench.mixer import Mixer
from attnbench.settings import TrainSettings
from attnbench.splits import held_out
from attnbench.tasks.distance import Distance
from attnbench.theory.mixers import build, named
from attnbench.theory.rules import above, below, exactly, near, not_run, within
from attnbench.theory.statement import Curves, Finding, Shown, Statement
from attnbench.train import TrainResult, train
from attnbench.transformer import LanguageModel

T, D_MODEL, WINDOW, N_DRAWS = 256, 64, 16, 4
GAPS = (1, 2, 4, 8, 16, 32, 64, 128, 255)  # those of the picture
FITTED = slice(8, 33)  # gaps over which a rate per step is fitted
FORGET_BIASES = (0.0, 1.0, 5.0)
TRAIN_T, TRAIN_MAX_GAP = 128, 16
TRAINED_GAPS = (1, 2, 4, 8, 16, 32, 64, 120)
RECURRENT_PATH = "the recurrent map starts orthogonal and carries some of c through the other gates; see without it"


def gradient_norms(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """|d y_T / d x_{T-g}| in the Frobenius norm for g = 0 ... T - 1, (T,), of one sequence x (T, d_model).

    One copy of x for each feature of the last output, so that one backward pass gives the whole Jacobian.
    """
    copies = x.expand(x.shape[1], -1, -1).clone().requires_grad_()  # (d_model, T, d_model)
    features = layer(copies)[:, -1].diagonal()
    (slopes,) = torch.autograd.grad(features.sum(), copies)
    return slopes.square().sum((0, 2)).sqrt().flip(0)


def at_start(
    cls: type[Mixer], forget_bias: float | None = None, *, recurrent: bool = True, **options: Any
) -> tuple[Tensor, Mixer]:
    """Root mean square of `gradient_norms` over draws of normal x, and the mixer with the weights it starts with.

    forget_bias, recurrent: an LSTM's, and whether it keeps its recurrent map.
    """
    mixer = build(cls, T, "causal", d_model=D_MODEL, dtype=torch.float32, **options)
    with torch.no_grad():
        if forget_bias is not None:
            mixer.get_parameter("rightward.bias_ih_l0")[D_MODEL : 2 * D_MODEL] = forget_bias  # of gates i, f, g, o
        if not recurrent:
            mixer.get_parameter("rightward.weight_hh_l0").zero_()
    draws = torch.stack([gradient_norms(mixer, inputs(seed)) for seed in range(N_DRAWS)])
    return draws.square().mean(0).sqrt(), mixer


def inputs(seed: int) -> Tensor:
    """Standard normal x (T, d_model)."""
    return torch.randn(T, D_MODEL, generator=torch.Generator().manual_seed(seed))


def rate(norms: Tensor) -> float:
    """What one more step of distance multiplies the norm by, from a line through log norm over the fitted gaps."""
    return math.exp(_slope(torch.arange(len(norms))[FITTED].double(), norms[FITTED].log().double()))


def power(norms: Tensor) -> float:
    """Slope of log norm over log gap, from gap 1 on."""
    return _slope(torch.arange(1, len(norms)).double().log(), norms[1:].log().double())


def _slope(x: Tensor, y: Tensor) -> float:
    x = x - x.mean()
    return (x @ (y - y.mean()) / (x @ x)).item()


@torch.no_grad()
def _elman_rate(mixer: Mixer) -> float:
    """Root mean square slope of the tanh: an orthogonal map adds nothing to it."""
    h = torch.cat([mixer(inputs(seed)[None]) for seed in range(N_DRAWS)])
    return (1 - h.square()).square().mean().sqrt().item()


def _start() -> tuple[list[Finding], Curves]:
    """Gradients over distance before any training."""
    norms = {"attention": at_start(named("fused"))[0], f"window {WINDOW}": at_start(named("window"), window=WINDOW)[0]}
    norms["rnn"], elman = at_start(named("rnn"))
    norms["gru"] = at_start(named("gru"))[0]
    norms |= {f"lstm, bias {bias:g}": at_start(named("lstm"), bias)[0] for bias in FORGET_BIASES}
    window = norms[f"window {WINDOW}"]
    what = f"gradient at the start, T = {T}, d = {D_MODEL}:"
    findings = [
        within(f"{what} attention, slope of log norm over log gap", 0.0, power(norms["attention"]), off=0.1),
        exactly(f"{what} window of {WINDOW}, largest gap with a gradient", WINDOW - 1, int(window.nonzero().max())),
        near(
            f"{what} rnn, factor per step, by the mean slope of its tanh",
            _elman_rate(elman),
            rate(norms["rnn"]),
            share=0.1,
        ),
        *(finding for bias in FORGET_BIASES for finding in _lstm(what, bias, norms[f"lstm, bias {bias:g}"])),
        *(
            below(f"{what} {name}, gap 64 relative to gap 1", 1e-3, (norms[name][64] / norms[name][1]).item())
            for name in ("rnn", "gru", "lstm, bias 1")
        ),
    ]
    return findings, _curves("start", f"Gradient of the last output over distance, at the start, T = {T}", norms, GAPS)


def _lstm(what: str, bias: float, norms: Tensor) -> list[Finding]:
    """The factor per step of an LSTM as it starts, and of the same without its recurrent map: its forget gate alone."""
    gate = 1 / (1 + math.exp(-bias))
    alone, _ = at_start(named("lstm"), bias, recurrent=False)
    one = f"{what} lstm with forget bias {bias:g}, factor per step, by sigmoid(bias)"
    return [
        near(one, gate, rate(norms), share=0.25, reason=RECURRENT_PATH),
        near(f"{one}, without the recurrent map", gate, rate(alone), share=0.1),
    ]


def trained(name: str, settings: TrainSettings, T: int = TRAIN_T, **options: Any) -> tuple[TrainResult, Tensor]:
    """A model of two layers, trained on gaps up to TRAIN_MAX_GAP, and its `gradient_norms` over a test sequence."""
    cls, task, built = named(name), Distance(T, train_max_gap=TRAIN_MAX_GAP), list[LanguageModel]()

    def model() -> LanguageModel:
        built.append(
            LanguageModel(
                vocab_size=task.vocab_size,
                d_model=D_MODEL,
                n_heads=2,
                n_layers=2,
                max_T=T,
                mixer=lambda spec: cls(spec, **options),
                d_ff=0,
            )
        )
        return built[-1]

    result = train(model, task, settings, seed=0)
    tokens = held_out(task, "test", N_DRAWS, seed=0).tokens
    with torch.no_grad():
        embedded = built[-1].embedding(tokens)  # (N_DRAWS, T, d_model)
    draws = torch.stack([gradient_norms(built[-1].stack, x) for x in embedded])
    return result, draws.square().mean(0).sqrt()


def _after() -> tuple[list[Finding], list[Curves]]:
    """Trained on short gaps, tested on all of them: what each forgets, and where."""
    settings = TrainSettings(steps=400, batch_size=64, lr=[3e-3], n_validation=256)
    kinds: dict[str, dict[str, Any]] = {"fused": {}, "window": {"window": WINDOW}, "rnn": {}, "lstm": {}}
    found = {name: trained(name, settings, **options) for name, options in kinds.items()}
    by_gap = {
        name: {int(gap): float(one["accuracy"] or 0.0) for gap, one in result.slices.items()}
        for name, (result, _) in found.items()
    }
    what = f"recall, trained on gaps up to {TRAIN_MAX_GAP}, accuracy (chance 0.125):"
    findings = [
        above(f"{what} attention, lowest over gaps", 0.8, min(by_gap["fused"].values())),
        above(f"{what} lstm, lowest over trained gaps", 0.9, min(by_gap["lstm"][gap] for gap in (4, 8, 16))),
        below(f"{what} lstm, gaps of 64 and more", 0.35, by_gap["lstm"][64]),
        below(f"{what} rnn, gaps of 64 and more", 0.35, by_gap["rnn"][64]),
        within(f"{what} window of {WINDOW}, two layers, gaps of 64 and more", 0.125, by_gap["window"][64], off=0.05),
    ]
    rows = [{"label": name, "gap": gap, "accuracy": a} for name, one in by_gap.items() for gap, a in one.items()]
    title = "Gradient of the last output of the trained models over distance"
    return findings, [
        Curves("recall", f"Recall by gap, trained on {TRAIN_MAX_GAP}", DataFrame(rows), "gap", "accuracy", x_log=True),
        _curves("trained", title, {name: norms for name, (_, norms) in found.items()}, TRAINED_GAPS),
    ]


def _curves(name: str, title: str, norms: dict[str, Tensor], gaps: tuple[int, ...]) -> Curves:
    """Each relative to its largest value."""
    rows = [
        {"label": label, "gap": gap, "gradient": (one[gap] / one.max()).item()}
        for label, one in norms.items()
        for gap in gaps
    ]
    return Curves(name, title, DataFrame(rows), "gap", "gradient", x_log=True, y_log=True)


def show(quick: bool) -> Shown:
    """Gradient norms at the start, and recall beyond the trained gaps."""
    findings, curve = _start()
    if quick:
        left_out = not_run("recall beyond the trained gaps", "attention holds, the window is cut off, recurrences fade")
        return Shown((*findings, left_out), (curve,))
    more, curves = _after()
    return Shown((*findings, *more), (curve, *curves))


STATEMENT = Statement(
    "C6",
    "How recurrences forget",
    "What an input of g steps ago still does to the last output shrinks by a factor per step in a recurrence, by the "
    "mean slope of the tanh in Elman's network and by about the forget gate in an LSTM; in attention it does not "
    "depend on g. Trained on short gaps, recurrences lose what stands farther back, attention does not.",
    show,
)

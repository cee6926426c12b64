"""C3: dot products grow with d_k, and without 1/sqrt(d_k) the softmax saturates. Vaswani et al. 2017, section 3.2.1."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from pandas import DataFrame, Series
from torch import Tensor

from attnbench.mixer import Attention, Spec
from attnbench.settings import TrainSettings
from attnbench.tasks.mqar import MQAR
from attnbench.theory.rules import above, below, exactly, near, not_run, within
from attnbench.theory.statement import Curves, Finding, Shown, Statement
from attnbench.train import TrainResult, train
from attnbench.transformer import LanguageModel

T, WIDTHS = 128, (4, 16, 64, 256, 1024)
N_SETS, N_ROWS = 32, 64  # sets of T keys, and queries of each
ENTROPY = {16: 1.58, 64: 0.69, 256: 0.30, 1024: 0.14}  # of unscaled rows past condensation, by d_k
SATURATED = {4: 0.0, 16: 0.03, 64: 0.16, 256: 0.47, 1024: 0.67}  # share of unscaled rows with a weight above 0.99
FEW_KEYS = f"the mean of exp(x) lives in the tail of x, which T = {T} keys sample too thinly at a deviation of 2"


class Scaled(Attention):
    """Softmax attention whose logits are multiplied by `scale`."""

    def __init__(self, spec: Spec, *, scale: float) -> None:
        super().__init__(spec)
        self.scale = scale

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *extra: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Causal, T = S, without a key mask."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)


def row_statistics(logits: Tensor) -> dict[str, float]:
    """Of rows of logits (..., T): their deviation, and of their softmax p the entropy in nats, the largest weight, the
    Frobenius norm of the Jacobian diag(p) - p p^T, means over rows, and the share of rows with a weight above 0.99.
    """
    p = logits.softmax(-1)
    squares, cubes = p.square().sum(-1), p.pow(3).sum(-1)
    largest = p.amax(-1)
    return {
        "std": logits.std().item(),
        "entropy": torch.special.entr(p).sum(-1).mean().item(),
        "largest weight": largest.mean().item(),
        "Jacobian": (squares - 2 * cubes + squares.square()).clamp(min=0).sqrt().mean().item(),
        "saturated": (largest > 0.99).double().mean().item(),
    }


def table(widths: tuple[int, ...] = WIDTHS) -> DataFrame:
    """Statistics of rows by d_k and label, for standard normal queries and keys."""
    rows = []
    for d_k in widths:
        q, k = torch.randn(N_SETS, N_ROWS, d_k), torch.randn(N_SETS, T, d_k)
        logits = (q @ k.mT).double()  # (N_SETS, N_ROWS, T)
        rows += [
            {"d_k": d_k, "label": label, **row_statistics(logits * scale)}
            for label, scale in (("unscaled", 1.0), ("divided by √d_k", d_k**-0.5))
        ]
    return DataFrame(rows)


def _findings(rows: DataFrame) -> list[Finding]:
    """Deviation, entropy and large weights with and without the factor; then what the Jacobian does instead."""
    by_width = rows.set_index(["label", "d_k"])
    plain, scaled = by_width.loc["unscaled"], by_width.loc["divided by √d_k"]
    entropy, large = plain["entropy"], "share of rows with a weight above 0.99, unscaled"
    return [
        near("deviation of unscaled logits, d_k = 1024: √d_k", 32.0, plain["std"][1024], share=0.05),
        *(
            within(f"entropy, scaled, d_k = {d}: ln T - 1/2", math.log(T) - 0.5, scaled["entropy"][d], off=0.05)
            for d in WIDTHS
        ),
        near("entropy, unscaled, d_k = 4: ln T - d_k / 2", math.log(T) - 2, entropy[4], share=0.1, reason=FEW_KEYS),
        *(near(f"entropy, unscaled, d_k = {d}: condensed", h, entropy[d], share=0.15) for d, h in ENTROPY.items()),
        *(within(f"{large}, d_k = {d}", s, plain["saturated"][d], off=0.04) for d, s in SATURATED.items()),
        within("the same, scaled, largest over d_k", 0.0, scaled["saturated"].max(), off=0.001),
        *_surprises(plain["Jacobian"], scaled["Jacobian"]),
    ]


def _surprises(plain: Series, scaled: Series) -> list[Finding]:
    """The mean Jacobian by d_k, unscaled and scaled, beside the textbook's vanishing gradient."""
    slope = math.log(plain[1024] / plain[64]) / math.log(1024 / 64)
    rises = "surprise: the mean Jacobian, unscaled, does not fall all the way but is largest at d_k"
    power = "surprise: it falls like a power of d_k, not exponentially: slope from 64 to 1024"
    return [
        exactly(rises, 16, int(plain.idxmax())),
        above("surprise: mean Jacobian at d_k = 64, unscaled by scaled", 1.0, plain[64] / scaled[64]),
        within(power, -0.5, slope, off=0.15),
    ]


def trained(scale: float, settings: TrainSettings, **sizes: Any) -> TrainResult:
    """Recall of eight keys by two layers with one head, their logits multiplied by `scale`."""
    sizes = {"T": 64, "d_model": 64} | sizes
    task = MQAR(sizes["T"])

    def model() -> LanguageModel:
        return LanguageModel(
            vocab_size=task.vocab_size,
            d_model=sizes["d_model"],
            n_heads=1,
            n_layers=2,
            max_T=task.T,
            mixer=lambda spec: Scaled(spec, scale=scale),
            d_ff=0,
            positions="learned",
        )

    return train(model, task, settings, seed=0)


def _training() -> tuple[list[Finding], Curves]:
    """Recall while training, by the scale of the logits."""
    settings = TrainSettings(steps=1000, batch_size=64, lr=[3e-3], stop_at=0.99)
    scales = {"1/√d_k": 64**-0.5, "1": 1.0, "4": 4.0}
    results = {label: trained(scale, settings) for label, scale in scales.items()}
    accuracy = {label: result.accuracy or 0.0 for label, result in results.items()}
    curve = [
        {"label": f"scale {label}", "step": step, "accuracy": value}
        for label, result in results.items()
        for step, value, _ in result.trials[0]["curve"]
    ]
    findings = [
        above("recall of 8 keys (mqar), trained with scale 1/√d_k, d_k = 64: accuracy", 0.95, accuracy["1/√d_k"]),
        *(below(f"the same with scale {label}: on its floor of 0.125", 0.3, accuracy[label]) for label in ("1", "4")),
    ]
    return findings, Curves(
        "training", "Recall of 8 keys while training, by scale of the logits", DataFrame(curve), "step", "accuracy"
    )


def show(quick: bool) -> Shown:
    """The table of rows, and recall trained with and without the factor."""
    rows = table()
    pictures = [
        _picture(rows, y, title)
        for y, title in (("entropy", "Entropy of attention rows"), ("Jacobian", "Mean Jacobian of the softmax"))
    ]
    findings = _findings(rows)
    if quick:
        findings.append(
            not_run("recall of 8 keys, trained with and without 1/√d_k", "solved with, on the floor without")
        )
    else:
        more, curve = _training()
        findings, pictures = [*findings, *more], [*pictures, curve]
    return Shown(tuple(findings), tuple(pictures))


def _picture(rows: DataFrame, y: str, title: str) -> Curves:
    return Curves(
        y.lower(),
        f"{title}, T = {T}, standard normal queries and keys",
        rows,
        "d_k",
        y,
        x_log=True,
        y_log=y == "Jacobian",
    )


STATEMENT = Statement(
    "C3",
    "Softmax saturates without 1/√d_k",
    "Logits of independent q and k have variance d_k. Divided by √d_k they have variance 1 and an attention row keeps "
    "the entropy ln T - 1/2 at every width; undivided, rows condense on a few keys, and training fails.",
    show,
)

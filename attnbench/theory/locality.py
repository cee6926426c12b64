"""C9: attention has no bias towards what is near, and pays in examples. Battaglia et al. 2018, arXiv 1806.01261."""

from __future__ import annotations

from typing import NamedTuple

from pandas import DataFrame

from attnbench.scoring import evaluate
from attnbench.settings import TrainSettings
from attnbench.splits import held_out
from attnbench.tasks.local import Local
from attnbench.theory.mixers import named
from attnbench.theory.rules import above, below
from attnbench.theory.statement import Curves, Finding, Shown, Statement
from attnbench.train import train
from attnbench.transformer import LanguageModel

T, D_MODEL, ENOUGH = 32, 64, 0.9
NAMES = ("tcn", "lstm", "fused")
QUICK, WHOLE = (64, 256), (32, 64, 128, 256, 1024)  # distinct training sequences
STEPS = {True: 300, False: 400}  # by whether to be quick


class Score(NamedTuple):
    """Accuracy on fresh sequences, and on those that were trained on."""

    fresh: float
    trained: float


def score(name: str, n_training: int, steps: int, d_model: int = D_MODEL) -> Score:
    """On the task `local`, after training on so many sequences; positions are the variant's own."""
    task, cls, built = Local(T), named(name), list[LanguageModel]()
    settings = TrainSettings(
        steps=steps, lr=[3e-3], n_training=n_training, n_validation=128, n_test=512, eval_every=50, stop_at=0.99
    )

    def model() -> LanguageModel:
        built.append(
            LanguageModel(
                vocab_size=task.vocab_size, d_model=d_model, n_heads=4, n_layers=2, max_T=T, mixer=cls, d_ff=2 * d_model
            )
        )
        return built[-1]

    fresh = train(model, task, settings, seed=0).accuracy or 0.0
    known = held_out(task, "training", n_training, seed=0)
    return Score(fresh, evaluate(built[-1], known, task.slice_names, settings.batch_size).accuracy)


def enough(by_count: dict[int, float]) -> int | None:
    """The smallest number of sequences from which on accuracy stays at ENOUGH; None when it is not reached."""
    short = [n for n, value in by_count.items() if value < ENOUGH]
    return next((n for n in sorted(by_count) if n > max(short, default=0)), None)


def _findings(by_name: dict[str, dict[int, float]], by_heart: float) -> list[Finding]:
    """Who learns a local rule from few sequences, and who learns these by heart."""
    what = "accuracy on fresh sequences (chance 0.125)"
    few, many = 64, 256
    needed = {name: enough(found) for name, found in by_name.items()}
    largest = max(by_name["fused"])
    return [
        *(above(f"{what}, N = {few}: {name}", ENOUGH, by_name[name][few]) for name in ("tcn", "lstm")),
        below(f"{what}, N = {few}: fused", 0.5, by_name["fused"][few]),
        above(f"the same on those {few} that it was trained on: it knows them by heart", ENOUGH, by_heart),
        *(above(f"{what}, N = {many}: {name}", ENOUGH, found[many]) for name, found in by_name.items()),
        *(_needed(name, n, largest) for name, n in needed.items()),
    ]


def _needed(name: str, n: int | None, largest: int) -> Finding:
    """How many sequences one variant needs."""
    expected = "> 64" if name == "fused" else "≤ 64"
    ok = (n or 2 * largest) > 64 if name == "fused" else n is not None and n <= 64
    return Finding(f"N for {100 * ENOUGH:g} %: {name}", expected, f"{n}" if n else f"more than {largest}", ok)


def show(quick: bool) -> Shown:
    """Accuracy over the number of distinct training sequences, for a convolution, a recurrence and attention."""
    counts = QUICK if quick else WHOLE
    scores = {name: {n: score(name, n, STEPS[quick]) for n in counts} for name in NAMES}
    by_name = {name: {n: one.fresh for n, one in found.items()} for name, found in scores.items()}
    by_heart = scores["fused"][64].trained
    rows = [{"label": name, "N": n, "accuracy": a} for name, found in by_name.items() for n, a in found.items()]
    title = f"Adding the last two tokens, T = {T}: accuracy on fresh sequences, by training sequences"
    curves = Curves("examples", title, DataFrame(rows), "N", "accuracy", x_log=True)
    return Shown(tuple(_findings(by_name, by_heart)), (curves,))


STATEMENT = Statement(
    "C9",
    "No bias towards what is near",
    "Where the answer stands in the last two tokens, a convolution shares what it learns between positions and needs "
    "few sequences, a recurrence hardly more; attention learns each position's two offsets apart and learns a small "
    "training set by heart. With some hundred sequences the difference is gone.",
    show,
)

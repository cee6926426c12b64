"""C8: heads take parts of their own. Voita et al. 2019, arXiv 1905.09418; Olsson et al. 2022, arXiv 2209.11895."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.mixer import Attention
from attnbench.scoring import evaluate
from attnbench.settings import TrainSettings
from attnbench.splits import held_out
from attnbench.tasks import IGNORE, Batch
from attnbench.tasks.mqar import MQAR
from attnbench.theory.mixers import named
from attnbench.theory.rules import above, below, not_run, within
from attnbench.theory.statement import Finding, Maps, Shown, Statement
from attnbench.train import train
from attnbench.transformer import LanguageModel

TASK = MQAR(64, n_pairs=4, vocab_size=64)
SETTINGS = TrainSettings(steps=2000, batch_size=64, lr=[3e-3], n_validation=256, stop_at=0.998)
N_HEADS, N_LAYERS, N_SEQUENCES = 2, 2, 256
SHARED = "the other head of the layer looks back too and stands in for it; without both, see the next line"
Head = tuple[int, int]  # layer and head, from 0


class Part(NamedTuple):
    """What one head does, means over sequences.

    previous: weight that a value gives to its key, which stands before it. target: weight that a query gives to the
    right value. entropy: of a row, in nats, less that of uniform weights.
    """

    previous: float
    target: float
    entropy: float


def model(task: MQAR = TASK, d_model: int = 64) -> LanguageModel:
    """Attention alone, two layers of two heads, learned positions."""
    return LanguageModel(
        vocab_size=task.vocab_size,
        d_model=d_model,
        n_heads=N_HEADS,
        n_layers=N_LAYERS,
        max_T=task.T,
        mixer=named("fused"),
        d_ff=0,
        positions="learned",
    )


def attention(layer: int, of: LanguageModel) -> Attention:
    """The attention of one layer."""
    mixer = of.stack.layers[layer].mixer
    if not isinstance(mixer, Attention):
        raise TypeError(f"{type(mixer).__name__} has no heads")
    return mixer


@torch.no_grad()
def weights(of: LanguageModel, tokens: Tensor) -> list[Tensor]:
    """Softmax weights (B, H, T, T) of each layer, from its own queries and keys."""
    x, maps = of.embedding(tokens), []
    for layer, block in enumerate(of.stack.layers):
        mixer, normed = attention(layer, of), block.norm_mixer(x)
        q, k, *_ = mixer.project(normed, normed)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        maps.append(scores.masked_fill(hidden, -torch.inf).softmax(-1))
        x = block(x)
    return maps


def parts(maps: list[Tensor], batch: Batch, n_pairs: int) -> dict[Head, Part]:
    """What each head does on a batch of `mqar`."""
    value_at = 2 * torch.arange(n_pairs) + 1
    rows, queries = (batch.labels != IGNORE).nonzero().T
    labels = batch.labels[rows, queries]
    answers = (batch.tokens[rows, : 2 * n_pairs] == labels[:, None]).int().argmax(1)  # no value stands in two pairs
    uniform = torch.arange(1, batch.tokens.shape[1] + 1).log()  # entropy of a causal row that weighs all alike
    return {
        (layer, head): Part(
            previous=one[:, head, value_at, value_at - 1].mean().item(),
            target=one[rows, head, queries, answers].mean().item(),
            entropy=(torch.special.entr(one[:, head]).sum(-1) - uniform).mean().item(),
        )
        for layer, one in enumerate(maps)
        for head in range(one.shape[1])
    }


@contextmanager
def without(of: LanguageModel, layer: int, head: int) -> Iterator[None]:
    """Inside, that head adds nothing: its columns of W_o are 0."""
    mixer = attention(layer, of)
    columns = slice(head * mixer.d_v, (head + 1) * mixer.d_v)
    kept = mixer.W_o.weight[:, columns].detach().clone()
    with torch.no_grad():
        mixer.W_o.weight[:, columns] = 0.0
    try:
        yield
    finally:
        with torch.no_grad():
            mixer.W_o.weight[:, columns] = kept


def accuracy(of: LanguageModel, task: MQAR, batch: Batch, *lacking: Head) -> float:
    """On a batch, without some heads."""
    with ExitStack() as stack:
        for layer, head in lacking:
            stack.enter_context(without(of, layer, head))
        return evaluate(of, batch, task.slice_names, 64).accuracy


def heads(of: LanguageModel, layer: int) -> list[Head]:
    """All of one layer."""
    return [(layer, head) for head in range(attention(layer, of).spec.n_heads)]


def at_start(task: MQAR = TASK) -> list[Finding]:
    """Before training no head has a part."""
    torch.manual_seed(0)
    batch = held_out(task, "test", N_SEQUENCES, seed=0)
    found = parts(weights(model(task), batch.tokens), batch, task.n_pairs).values()
    uniform = sum(1 / (2 * i + 2) for i in range(task.n_pairs)) / task.n_pairs
    what = "before training, all heads:"
    return [
        within(
            f"{what} largest weight of a value on the key before it, as uniform",
            uniform,
            max(one.previous for one in found),
            off=0.15,
        ),
        below(f"{what} largest weight of a query on the right value", 0.15, max(one.target for one in found)),
        within(f"{what} lowest entropy of rows, relative to uniform", 0.0, min(one.entropy for one in found), off=0.3),
    ]


def _after() -> tuple[list[Finding], Maps]:
    """What heads of a trained model look at, and what is lost without each."""
    built: list[LanguageModel] = []

    def fresh() -> LanguageModel:
        built.append(model())
        return built[-1]

    train(fresh, TASK, SETTINGS, seed=0)
    batch = held_out(TASK, "test", N_SEQUENCES, seed=0)
    of, maps = built[-1], weights(built[-1], batch.tokens)
    whole = accuracy(of, TASK, batch)
    lost = {head: whole - accuracy(of, TASK, batch, head) for layer in range(N_LAYERS) for head in heads(of, layer)}
    lost_first = whole - accuracy(of, TASK, batch, *heads(of, 0))
    shown = {f"layer {i + 1}, head {h + 1}": one[0, h].numpy() for i, one in enumerate(maps) for h in range(N_HEADS)}
    title = "Attention of the trained model on one sequence: 4 keys and values, then queries"
    findings = judged(whole, parts(maps, batch, TASK.n_pairs), lost, lost_first)
    return findings, Maps("heads", title, shown)


def judged(whole: float, found: Mapping[Head, Part], lost: Mapping[Head, float], lost_first: float) -> list[Finding]:
    """The rules: a head that looks back in layer 1 and is needed, one that finds the value in layer 2.

    whole: accuracy with all heads. lost: of it, without each head; lost_first: without the first layer's.
    """
    first, second = ([head for head in found if head[0] == layer] for layer in (0, 1))
    binds, finds = max(first, key=lambda head: found[head].previous), max(second, key=lambda head: found[head].target)
    told = "; ".join(
        f"{layer + 1}.{head + 1}: {one.previous:.2f} / {one.target:.2f} / {one.entropy:+.2f} / {lost[layer, head]:.2f}"
        for (layer, head), one in found.items()
    )
    return [
        above(f"recall of {TASK.n_pairs} keys (mqar), trained: accuracy", 0.95, whole),
        above(
            "layer 1: weight of a value on the key before it, in the head that gives most", 0.5, found[binds].previous
        ),
        above("accuracy lost without that head", 0.5, lost[binds], SHARED),
        above("accuracy lost without all heads of layer 1", 0.5, lost_first),
        above("layer 2: weight of a query on the right value, in the head that gives most", 0.8, found[finds].target),
        below(
            "layer 2 is redundant: accuracy lost without the head that is missed least",
            0.05,
            min(lost[head] for head in second),
        ),
        Finding(
            "each head, layer.head: on the key before / on the right value / entropy less uniform / accuracy lost",
            "told, not judged",
            told,
            math.isfinite(whole),
        ),
    ]


def show(quick: bool) -> Shown:
    """Heads before training, and what they have become after it."""
    findings = at_start()
    if quick:
        return Shown((*findings, not_run("the parts of heads after training", "one binds, one finds, one is spare")))
    more, maps = _after()
    return Shown((*findings, *more), (maps,))


STATEMENT = Statement(
    "C8",
    "Heads take parts of their own",
    "Trained to recall, heads of the first layer look at the token before, so that a value knows its key, and heads of "
    "the second find the value of a key that comes again. Without the first layer's nothing is recalled; of the second "
    "kind there are two, and one alone is enough.",
    show,
)

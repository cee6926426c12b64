"""The audit of a task: what it says of itself, held to what its own sequences show.

A solver that reads inputs alone must find the labels, guesses must not beat the stated floor, splits must share no
sequence, and the same seed must give the same data, whatever else draws random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from attnbench.splits import Split, fingerprint, held_out
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.baselines import Baseline, chance_range, measured, two_samples
from attnbench.tasks.repeats import alike_between, alike_within, duplicates, overlap

_ERRORS = 4.0  # standard errors by which a guess may exceed a statement by chance
_SLACK = 0.05  # relative, of a stated chance: a sample need not hold every label at every position
_N_SOLVED, _N_PRINTED = 2000, 1000  # sequences that are solved, and fingerprinted
_CLOSE = 1e-4  # how near a solver's number is to the answer


@dataclass(frozen=True)
class TaskAudit:
    """What was stated and what was measured of one task.

    solver: share of answers that the solver finds; None without a solver. chance, floor, ceiling: as stated.
    baselines: accuracy of each guess; none where tokens or labels are none of the task's. held: names of those that the
    floor is held to. overlap: the share of validation and test sequences that another split has too; None where the
    task is too small to be split. duplicates: the share of fresh sequences that came before in the same sample.
    fingerprint: SHA-256 of sequences of the seed. problems: what does not hold, a sentence each; none is good.
    """

    task: str
    T: int
    n: int
    seed: int
    solver: float | None
    chance: float
    floor: float
    floor_from: str
    ceiling: float
    baselines: dict[str, float]
    held: tuple[str, ...]
    overlap: float | None
    duplicates: float
    fingerprint: str
    problems: tuple[str, ...]


def audit(task: Task, n: int = 10_000, seed: int = 0) -> TaskAudit:
    """Hold a task to n sequences of each of two samples. Raises what the task's own code raises when it draws."""
    fitted, scored = two_samples(task, n, seed)
    problems = list(_misshapen(task, scored))
    found = {} if problems else measured(task, fitted, scored)  # guesses read tokens and labels as indices
    held = tuple(name for name in found if name != "bag" or not task.by_content)
    solver = _solved(task, scored.rows(slice(_N_SOLVED)), problems)
    problems += _misstated(task, fitted, found, held) if found else []
    shared = _shared(task, n, seed, problems)
    problems += _repeated(fitted, scored)
    printed, unstable = _fingerprint(task, seed)
    return TaskAudit(
        task=type(task).__name__,
        T=task.T,
        n=n,
        seed=seed,
        solver=solver,
        chance=task.chance,
        floor=task.floor,
        floor_from=task.floor_from,
        ceiling=task.ceiling,
        baselines={name: one.accuracy for name, one in found.items()},
        held=held,
        overlap=shared,
        duplicates=duplicates(scored),
        fingerprint=printed,
        problems=(*problems, *unstable),
    )


def _misshapen(task: Task, batch: Batch) -> Iterator[str]:
    """Tokens, labels and slices that no model or score could take."""
    scored = batch.labels != IGNORE
    read = [batch.tokens, *([batch.source.tokens] if batch.source else []), batch.labels[scored]]
    if any(len(part) and (int(part.min()) < 0 or int(part.max()) >= task.vocab_size) for part in read):
        yield f"tokens or labels lie outside 0 … {task.vocab_size - 1}"
    if not bool(scored.any(1).all()):
        yield "a sequence has nothing to score"
    if not torch.equal(batch.slices >= 0, scored) or int(batch.slices.max()) >= len(task.slice_names):
        yield "slices stand elsewhere than labels, or have no name"


def _solved(task: Task, batch: Batch, problems: list[str]) -> float | None:
    """The share of answers that the solver finds; what is wrong with it joins the problems."""
    scored = batch.labels != IGNORE
    bare = replace(batch, labels=torch.full_like(batch.labels, IGNORE), slices=torch.full_like(batch.slices, -1))
    try:
        answers = task.solve(replace(bare, numbers=None))[scored]
    except NotImplementedError as error:
        problems.append(str(error))
        return None
    except Exception as error:
        problems.append(f"the solver fails: {type(error).__name__}: {error}")
        return None
    right = _right(answers, batch, scored).double()
    share = right.mean().item()
    spread = _ERRORS * math.sqrt(task.ceiling * (1 - task.ceiling) / max(1, len(right)))
    if abs(share - task.ceiling) > spread:
        problems.append(f"the solver finds {share:.4f} of the answers, the ceiling is {task.ceiling:g}")
    return share


def _right(answers: Tensor, batch: Batch, scored: Tensor) -> Tensor:
    if batch.numbers is None:
        return answers == batch.labels[scored]
    return (answers - batch.numbers[scored]).abs() <= _CLOSE


def _misstated(task: Task, fitted: Batch, found: dict[str, Baseline], held: tuple[str, ...]) -> Iterator[str]:
    """Chance and floor that guesses show to be wrong."""
    if not task.chance <= task.floor <= task.ceiling:
        yield f"chance {task.chance:.4f}, floor {task.floor:.4f} and ceiling {task.ceiling:.4f} are out of order"
    if task.answers == "label":
        low, high = chance_range(task, fitted)
        if not low * (1 - _SLACK) <= task.chance <= high * (1 + _SLACK):
            yield f"chance is stated as {task.chance:.4f}, a uniform guess gets {_span(low, high)}"
    else:
        best = found["mean"]
        if abs(task.chance - best.accuracy) > _ERRORS * best.error + _SLACK * best.accuracy:
            yield f"chance is stated as {task.chance:.4f}, guessing the mean gets {best.accuracy:.4f}"
    for name in held:
        if found[name].accuracy > task.floor + _ERRORS * found[name].error + 1e-9:
            yield f"the guess {name} gets {found[name].accuracy:.4f}, the floor is stated as {task.floor:.4f}"


def _span(low: float, high: float) -> str:
    return f"{low:.4f}" if high - low < 1e-4 else f"{low:.4f} to {high:.4f}"


def _shared(task: Task, n: int, seed: int, problems: list[str]) -> float | None:
    """The share of validation and test sequences that stand in another split as well."""
    sizes: dict[Split, int] = {"training": n // 2, "validation": n // 10, "test": n // 5}
    try:
        training, validation, test = (held_out(task, split, max(1, sizes[split]), seed) for split in sizes)
    except ValueError as error:
        problems.append(str(error))
        return None
    share = max(overlap(training, validation), overlap(Batch.join([training, validation]), test))
    if share:
        problems.append(f"{share:.4f} of the held-out sequences stand in another split too")
    return share


def _repeated(one: Batch, other: Batch) -> Iterator[str]:
    """More equal sequences within a sample than between two, as when a generator begins anew."""
    within, between = alike_within(one) + alike_within(other), alike_between(one, other)
    if within > between + _ERRORS * math.sqrt(2 * between + 1):  # both expected alike, of independent sequences
        yield f"{within} pairs of sequences within samples are equal, {between} between them: they repeat themselves"


def _fingerprint(task: Task, seed: int) -> tuple[str, list[str]]:
    """The fingerprint of sequences of a seed, and in what way it does not depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        one, same, other = (_printed(task, part, salt) for salt, part in enumerate((seed, seed, seed + 1)))
    problems = ["the same seed gives other sequences: they depend on more than the generator"] if one != same else []
    return one, problems + (["another seed gives the same sequences"] if one == other else [])


def _printed(task: Task, seed: int, salt: int) -> str:
    torch.manual_seed(salt)  # of the global generator, on which nothing may depend
    return fingerprint(task.sample(_N_PRINTED, Generator().manual_seed(seed)))

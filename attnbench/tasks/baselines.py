"""What guessing gives, computed from a task's own sequences: guesses that no model is needed for.

Each guess is fitted on one sample and scored on another one of the same task, both of fresh sequences.

chance: any of the labels that occur, all alike. majority: the commonest label. position: the commonest label at each
position. first_token, last_token: the commonest label at a position after that first token, or after that token read
last; in sequence to sequence they are those of the source. bag: a linear guess, least squares in closed form, from how
often each token has been read, in no order. Of numbers: mean and position are the share of answers that lie within the
tolerance of the mean answer, and of the mean answer at each position; mean_mse is the squared error of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.repeats import distinct

_RIDGE = 1e-3  # added to the mean square of each count, so that tokens that never come cost nothing
_BAG_ROWS, _BAG_SIZE = 20_000, 2**23  # answers that the bag is fitted on and scored on at most; rows times tokens


@dataclass(frozen=True)
class Baseline:
    """Accuracy of one guess, and its standard error; answers of one sequence are not taken for independent."""

    accuracy: float
    error: float


@dataclass(frozen=True)
class Answers:
    """The n scored answers of a batch, (n,) each: sequence, position, label or number, first and last token read."""

    row: Tensor
    position: Tensor
    label: Tensor
    first: Tensor
    last: Tensor


def baselines(task: Task, n: int, seed: int) -> dict[str, float]:
    """Accuracy of each guess by name, fitted on n sequences and scored on n others. `mean_mse` is a squared error."""
    fitted, scored = two_samples(task, n, seed)
    found = {name: one.accuracy for name, one in measured(task, fitted, scored).items()}
    if task.answers == "number":
        mean = answers_of(task, fitted).label.mean()
        found["mean_mse"] = (answers_of(task, scored).label - mean).square().mean().item()
    return found


def baselines_on(task: Task, fitted: Batch, test: Batch) -> dict[str, float]:
    """The guesses that look at one token or at none, fitted on training sequences and scored on test data.

    An audit has the bag of tokens too, which takes longer than a short trial. Empty where labels or tokens are none of
    the task's: there is nothing to count them by.
    """
    if not all(_countable(task, batch) for batch in (fitted, test)):
        return {}
    found = _constant(task, answers_of(task, fitted), answers_of(task, test))
    return {name: one.accuracy for name, one in found.items()}


def _countable(task: Task, batch: Batch) -> bool:
    """Whether there are answers, and every token and label is one of the vocabulary."""
    labels = batch.labels[batch.labels != IGNORE]
    held = [batch.tokens.flatten(), labels, *(() if batch.source is None else (batch.source.tokens.flatten(),))]
    return all(len(part) > 0 and int(part.min()) >= 0 and int(part.max()) < task.vocab_size for part in held)


def two_samples(task: Task, n: int, seed: int) -> tuple[Batch, Batch]:
    """Twice n fresh sequences, from two generators that the seed decides."""
    one, other = (task.sample(n, Generator().manual_seed(2 * seed + part)) for part in range(2))
    return one, other


def measured(task: Task, fitted: Batch, scored: Batch) -> dict[str, Baseline]:
    """Each guess, fitted on one batch and scored on the other, by name."""
    known, asked = answers_of(task, fitted), answers_of(task, scored)
    bag = {} if task.answers == "number" else {"bag": _bag(task, fitted, known, scored, asked)}
    return _constant(task, known, asked) | bag


def _constant(task: Task, known: Answers, asked: Answers) -> dict[str, Baseline]:
    """The guesses that look at one token or at none."""
    if task.answers == "number":
        return _numbers(task, known, asked)
    C, V = task.vocab_size, task.vocab_size
    guesses = {
        "majority": _guess(torch.zeros_like(known.row), known.label, torch.zeros_like(asked.row), C),
        "position": _guess(known.position, known.label, asked.position, C),
        "first_token": _guess(known.position * V + known.first, known.label, asked.position * V + asked.first, C),
        "last_token": _guess(known.position * V + known.last, known.label, asked.position * V + asked.last, C),
    }
    found = {"chance": Baseline(1 / len(distinct(known.label)[0]), 0.0)}
    return found | {name: _score(guess == asked.label, asked.row) for name, guess in guesses.items()}


def chance_range(task: Task, batch: Batch) -> tuple[float, float]:
    """The least and the most that a uniform guess gets: among all labels, and among those that occur at a position."""
    answers = answers_of(task, batch)
    pairs = distinct(answers.position * task.vocab_size + answers.label)[0]
    n_labels = torch.bincount(pairs // task.vocab_size)  # by position
    return 1 / len(distinct(answers.label)[0]), (1 / n_labels[answers.position]).mean().item()


def answers_of(task: Task, batch: Batch) -> Answers:
    """All scored answers of a batch, sequence by sequence."""
    row, position = (batch.labels != IGNORE).nonzero(as_tuple=True)
    label = batch.labels if batch.numbers is None else batch.numbers
    first, last = batch.tokens[:, 0][row], batch.tokens[row, position]
    if batch.source is not None:
        ends = batch.source.mask.sum(1, keepdim=True).clamp(min=1) - 1
        first, last = batch.source.tokens[:, 0][row], batch.source.tokens.gather(1, ends)[:, 0][row]
    elif "causal" not in task.roles:
        last = batch.tokens[:, -1][row]
    return Answers(row, position, label[row, position], first, last)


def _numbers(task: Task, known: Answers, asked: Answers) -> dict[str, Baseline]:
    """Constant guesses of a regression."""
    size = 1 + int(torch.cat((known.position, asked.position)).max())
    sums = torch.zeros(size, dtype=torch.float64).index_add_(0, known.position, known.label.double())
    at_position = sums / torch.bincount(known.position, minlength=size).clamp(min=1)
    guesses = {"mean": known.label.double().mean().expand(len(asked.row)), "position": at_position[asked.position]}
    return {name: _score((guess - asked.label).abs() <= task.tolerance, asked.row) for name, guess in guesses.items()}


def _guess(group: Tensor, label: Tensor, asked: Tensor, n_labels: int) -> Tensor:
    """(m,) the commonest label of each group that is asked for, and of all where a group was never seen."""
    pairs, _, n = distinct(group * n_labels + label)
    pairs = pairs[n.argsort(stable=True)]  # the commonest last, so that it stays
    groups, place, _ = distinct(pairs // n_labels)
    last = torch.zeros(len(groups), dtype=torch.int64).scatter_reduce_(
        0, place, torch.arange(len(pairs)), "amax", include_self=True
    )
    commonest = pairs[last] % n_labels
    at = torch.searchsorted(groups, asked).clamp(max=len(groups) - 1)
    return torch.where(groups[at] == asked, commonest[at], torch.bincount(label).argmax())


def _bag(task: Task, fitted: Batch, known: Answers, scored: Batch, asked: Answers) -> Baseline:
    """One linear score per label from counts of tokens, by least squares."""
    n = max(1, min(_BAG_ROWS, _BAG_SIZE // fitted.inputs.shape[1]))
    use, test = _some(len(known.row), n), _some(len(asked.row), n)
    counts = _counts(task, fitted, known.row[use], known.position[use])
    target = F.one_hot(known.label[use], task.vocab_size).double()
    square = counts.T @ counts / len(counts)
    square.diagonal().add_(_RIDGE)
    weights = torch.linalg.solve(square, counts.T @ target / len(counts))
    guess = (_counts(task, scored, asked.row[test], asked.position[test]) @ weights).argmax(1)
    return _score(guess == asked.label[test], asked.row[test])


def _some(n: int, most: int) -> Tensor:
    """Indices of at most `most` of n answers, in order. Every k-th one would favour some positions."""
    if n <= most:
        return torch.arange(n)
    return torch.randperm(n, generator=Generator().manual_seed(0))[:most].sort().values


def _counts(task: Task, batch: Batch, row: Tensor, position: Tensor) -> Tensor:
    """(n, V + 1) float64: how often each token has been read when an answer is due, and a one.

    Read are the source and the tokens up to the position; all tokens where a task is bidirectional only.
    """
    T = batch.tokens.shape[1]
    due = position if "causal" in task.roles else torch.full_like(position, T - 1)
    read = (torch.arange(T) <= due[:, None]).double()
    tokens = batch.tokens[row]
    if batch.source is not None:
        read = torch.cat((batch.source.mask[row].double(), read), dim=1)
        tokens = torch.cat((batch.source.tokens[row], tokens), dim=1)
    counts = torch.zeros(len(row), task.vocab_size + 1, dtype=torch.float64)
    counts.scatter_add_(1, tokens, read)
    counts[:, -1] = 1.0
    return counts


def _score(right: Tensor, row: Tensor) -> Baseline:
    """Share of right answers; its error from the sums over sequences, each of which counts as one draw."""
    accuracy = right.double().mean()
    size = int(row.max()) + 1
    excess = torch.zeros(size, dtype=torch.float64).index_add_(0, row, right.double() - accuracy)
    error = excess.square().sum().sqrt() / len(right)
    return Baseline(accuracy.item(), error.item())

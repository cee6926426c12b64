"""The audit of tasks: what it measures, and that it turns red on each planted fault."""

import itertools
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
import typer
from commands import attnbench
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import PLUGINS
from torch import Generator

from attnbench import registry, tasks_command
from attnbench.execute.task_audits import task_audit
from attnbench.splits import fingerprint, training_batches
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.audit import audit
from attnbench.tasks.baselines import baselines
from attnbench.tasks.distance import Distance
from attnbench.tasks.local import Local
from attnbench.tasks.mqar import MQAR
from attnbench.tasks.repeats import alike_between, alike_within, duplicates, overlap

SOURCES = registry.installed(registry.TASKS)
N = 2000


def tokens_only(tokens: torch.Tensor) -> Batch:
    return Batch(tokens, torch.zeros_like(tokens), torch.zeros_like(tokens))


# Repeats


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_repeats_are_counted_as_by_hand(one, other):
    a, b = (tokens_only(torch.tensor(rows)[:, None] * torch.tensor([[1, 7]])) for rows in (one, other))
    assert overlap(a, b) == pytest.approx(sum(x in one for x in other) / len(other))
    assert duplicates(a) == pytest.approx(1 - len(set(one)) / len(one))
    assert alike_within(a) == sum(x == y for x, y in itertools.combinations(one, 2))
    assert alike_between(a, b) == sum(x == y for x in one for y in other)


# Baselines


class Noisy(Task):
    """The label at the last of three positions is one of its tokens, a fixed token, or a count, by `rule`."""

    title, slice_names, vocab_size, chance, floor = "noisy", ("all",), 4, 1 / 4, 1.0
    usual_T = 3

    def __init__(self, T, *, rule="first"):
        super().__init__(T, rule=rule)
        self.rule = rule

    def sample(self, n, generator):
        tokens = torch.randint(4, (n, self.T), generator=generator)
        twos = (tokens == 2).sum(1)
        answer = {"first": tokens[:, 0], "last": tokens[:, -1], "constant": torch.full((n,), 3), "count": twos}
        labels = torch.full_like(tokens, IGNORE)
        labels[:, -1] = answer[self.rule]
        return Batch(tokens, labels, torch.where(labels == IGNORE, -1, 0))

    @classmethod
    def min_T(cls, **options):
        return 1


@pytest.mark.parametrize(
    ("rule", "sure"),
    [
        ("first", {"first_token"}),
        ("last", {"last_token"}),
        ("constant", {"chance", "majority", "position", "first_token", "last_token", "bag"}),
    ],
)
def test_a_guess_is_right_where_what_it_looks_at_is_the_answer_and_else_not(rule, sure):
    found = baselines(Noisy(8, rule=rule), N, 0)
    assert {name for name, accuracy in found.items() if accuracy == 1.0} == sure
    assert all(accuracy < 0.7 for name, accuracy in found.items() if name not in sure)


def test_the_bag_sees_how_often_a_token_came():
    found = baselines(Noisy(3, rule="count"), N, 0)
    assert found["bag"] > found["majority"] + 0.1


def test_a_bag_of_tagged_tokens_answers_and_a_bag_of_pairs_only_names_the_candidates():
    assert baselines(Distance(32), N, 0)["bag"] > 0.95
    assert baselines(MQAR(32, n_pairs=4, vocab_size=32), N, 0)["bag"] == pytest.approx(1 / 4, abs=0.05)


class Sum(Task):
    """The sum of two numbers, uniform in 0 to 1: guessing 1 errs by 1/6 on average, squared."""

    title, slice_names, vocab_size, answers, tolerance, reads_values = "sum", ("all",), 1, "number", 0.1, True
    chance = floor = 1 - 0.9**2
    usual_T = 2

    def sample(self, n, generator):
        tokens, values = torch.zeros(n, self.T, dtype=torch.int64), torch.rand(n, self.T, generator=generator)
        last = (torch.arange(self.T) == self.T - 1).expand(n, -1)
        labels, numbers = torch.where(last, 0, IGNORE), torch.where(last, values[:, -2:].sum(1, keepdim=True), 0.0)
        return Batch(tokens, labels, torch.where(last, 0, -1), values=values, numbers=numbers)

    def solve(self, batch):
        return (batch.values + batch.values.roll(1, dims=1)).expand(-1, self.T)

    @classmethod
    def min_T(cls, **options):
        return 2


def test_of_numbers_the_mean_is_the_guess():
    found = baselines(Sum(4), 20_000, 0)
    assert found["mean_mse"] == pytest.approx(1 / 6, abs=0.005)
    assert found["mean"] == pytest.approx(Sum.chance, abs=0.01)
    assert audit(Sum(4), N).problems == ()
    wrong = Sum(4)
    wrong.chance = wrong.floor = 0.04
    assert any("guessing the mean" in problem for problem in audit(wrong, N).problems)


# The audit


@pytest.mark.parametrize("name", SOURCES)
def test_every_installed_task_passes_its_audit(name):
    cls = registry.load(SOURCES[name])
    found = audit(cls(cls.usual_T), N)
    assert found.problems == ()
    assert found.overlap == 0.0
    assert found.solver is not None


def test_an_audit_is_the_same_twice_and_another_seed_has_another_fingerprint():
    assert audit(Local(16), N) == audit(Local(16), N)
    assert audit(Local(16), N).fingerprint != audit(Local(16), N, seed=1).fingerprint


class Shifted(Local):
    """Labels, one position late."""

    def sample(self, n, generator):
        batch = super().sample(n, generator)
        return replace(batch, labels=batch.labels.roll(1, dims=1), slices=batch.slices.roll(1, dims=1))


class Unsolved(Local):
    """A solver that forgets the modulus."""

    def solve(self, batch):
        return batch.tokens.roll(1, dims=1) + batch.tokens.roll(2, dims=1)


class Failing(Local):
    """A solver that needs the labels."""

    def solve(self, batch):
        return batch.labels.masked_select(batch.labels != IGNORE).reshape(len(batch), self.T - 2).max(1).values


class Without(Local):
    """No solver."""

    solve = Task.solve


class Doubled(Local):
    """Its second half is its first half once more, as from two workers of one seed."""

    def sample(self, n, generator):
        half = super().sample((n + 1) // 2, generator)
        return Batch.join([half, half]).rows(slice(n))


class Global(Local):
    """Draws from the global generator."""

    def sample(self, n, generator):
        return super().sample(n, torch.default_generator)


class Deaf(Local):
    """The same sequences whatever the seed."""

    def sample(self, n, generator):
        return super().sample(n, Generator().manual_seed(0))


class Leaky(Local):
    """The answer to the last position stands at the first one."""

    def sample(self, n, generator):
        tokens = torch.randint(8, (n, self.T), generator=generator)
        last = (torch.arange(self.T) == self.T - 1).expand(n, -1)
        return Batch(tokens, torch.where(last, tokens[:, :1], IGNORE), torch.where(last, 0, -1))

    def solve(self, batch):
        return batch.tokens[:, :1].expand(-1, self.T)


class Outside(Local):
    """Tokens that the vocabulary does not hold."""

    def sample(self, n, generator):
        batch = super().sample(n, generator)
        return replace(batch, tokens=batch.tokens + 1)


def stating(task: Task, **stated: float) -> Task:
    for name, value in stated.items():
        setattr(task, name, value)
    return task


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (Shifted(16), "the solver finds"),
        (Unsolved(16), "the solver finds"),
        (Failing(16), "the solver fails"),
        (Without(16), "has no solver"),
        (stating(Local(16), chance=0.01), "chance is stated as 0.0100, a uniform guess gets 0.1250"),
        (stating(Local(16), chance=0.5, floor=0.5), "chance is stated as 0.5000"),
        (stating(MQAR(32), floor=1 / 64), "the guess bag"),
        (stating(Local(16), ceiling=0.8), "the ceiling is 0.8"),
        (stating(Local(16), floor=0.1), "out of order"),
        (Doubled(16), "they repeat themselves"),
        (Global(16), "they depend on more than the generator"),
        (Deaf(16), "another seed gives the same sequences"),
        (Leaky(16), "the guess first_token gets 1.0000"),
        (Outside(16), "outside 0 … 7"),
        (Local(3), "too small"),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_a_planted_fault_turns_the_audit_red(task, told):
    problems = audit(task, N).problems
    assert any(told in problem for problem in problems), problems


def test_sequences_that_two_splits_share_are_told(monkeypatch):
    from attnbench import splits

    monkeypatch.setattr(splits, "in_split", lambda inputs, split: torch.ones(len(inputs), dtype=torch.bool))
    monkeypatch.setattr(splits, "_digest", lambda task, split, seed: seed)
    found = audit(Local(16), N)
    assert found.overlap == 1.0
    assert any("another split" in problem for problem in found.problems)


# The command


def test_the_command_audits_a_task_and_its_status_says_whether_it_holds(monkeypatch, capsys):
    monkeypatch.setattr(tasks_command, "ask", lambda processes, question, *arguments, **more: task_audit(*arguments))
    with pytest.raises(typer.Exit) as stop:
        tasks_command.tasks("local", audit=True, n=N, as_json=True)
    assert stop.value.exit_code == 0
    (facts,) = json.loads(capsys.readouterr().out)["found"]
    assert facts["task"] == "local"
    assert (facts["solver"], facts["overlap"], facts["problems"]) == (1.0, 0.0, [])


def test_the_command_tells_what_is_wrong_with_a_plugins_task():
    plugin = PLUGINS / "first_token.py"
    done = attnbench("tasks", "first_token", "--audit", "--n", N, "--plugin", plugin)
    assert done.returncode == 1
    assert "first_token: FirstToken has no solver" in done.stdout
    assert "the guess first_token gets 1.0000, the floor is stated as 0.1250" in done.stdout


# Who draws, and where, plays no part


def stream(seed: int) -> list[str]:
    """Fingerprints of the first batches of training data."""
    torch.manual_seed(torch.randint(2**31, ()).item())
    return [fingerprint(batch) for batch in itertools.islice(training_batches(MQAR(32), 64, seed), 6)]


SEEDS = (0, 1, 2, 3)


@pytest.mark.parametrize("n_workers", [1, 2, 4])
def test_training_data_are_the_same_with_any_number_of_threads_and_in_any_order(n_workers):
    alone = {seed: stream(seed) for seed in SEEDS}
    with ThreadPoolExecutor(n_workers) as pool:
        assert dict(zip(SEEDS[::-1], pool.map(stream, SEEDS[::-1]), strict=True)) == alone


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_training_data_are_the_same_in_other_processes_however_they_start(method):
    with ProcessPoolExecutor(2 if method == "fork" else 1, mp_context=multiprocessing.get_context(method)) as pool:
        assert list(pool.map(stream, SEEDS[:2])) == [stream(seed) for seed in SEEDS[:2]]


@given(st.integers(0, 99))
@settings(max_examples=5)
def test_no_training_sequence_comes_twice_beyond_chance(seed):
    batches = list(itertools.islice(training_batches(MQAR(32), 100, seed), 10))  # 1,000, as over two short epochs
    assert duplicates(Batch.join(batches)) == 0.0
    assert len({fingerprint(batch) for batch in batches}) == len(batches)
    other = next(training_batches(MQAR(32), 100, seed + 1))
    assert overlap(Batch.join(batches), other) == 0.0

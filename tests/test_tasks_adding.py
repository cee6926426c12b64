"""The adding problem: the answer is the sum of the two marked numbers, and a constant is worth what the task says."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbench import registry
from attnbench.settings import TrainSettings
from attnbench.splits import held_out, training_batches
from attnbench.tasks import IGNORE
from attnbench.tasks.adding import Adding
from attnbench.train import train
from attnbench.transformer import LanguageModel

PLACES = ["halves", "anywhere"]
TASKS = st.builds(Adding, st.integers(2, 40), places=st.sampled_from(PLACES))
SEEDS = st.integers(0, 99)


@given(TASKS, st.integers(0, 8), SEEDS)
def test_the_last_position_alone_asks_for_the_sum_of_the_two_marked_numbers(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (n, task.T)
    assert batch.values.shape == batch.numbers.shape == (n, task.T)
    assert {part.dtype for part in (batch.values, batch.numbers)} == {torch.float32}
    assert (batch.labels[:, :-1] == IGNORE).all()
    assert (batch.labels[:, -1] == 0).all()
    assert (batch.slices[:, :-1] == -1).all()
    edges = [*map(int, task.slice_names), math.inf]
    for tokens, values, number, octave in zip(
        batch.tokens.tolist(), batch.values.tolist(), batch.numbers[:, -1], batch.slices[:, -1].tolist(), strict=True
    ):
        first, second = (t for t, token in enumerate(tokens) if token)
        assert set(tokens) <= {0, 1}
        assert number.item() == torch.tensor(values[first] + values[second]).item()
        assert edges[octave] <= second - first < edges[octave + 1]
        assert task.places == "anywhere" or first < task.T // 2 <= second


@given(TASKS, st.integers(0, 8), SEEDS)
def test_the_solver_finds_every_number_from_what_is_read(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert torch.equal(task.solve(batch), batch.numbers)


@given(TASKS, SEEDS)
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    one, same, other = (task.sample(30, Generator().manual_seed(s)) for s in (seed, seed, seed + 1))
    for name in ("tokens", "labels", "slices", "values", "numbers"):
        assert torch.equal(getattr(one, name), getattr(same, name))
    assert not torch.equal(one.values, other.values)


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("T", [2, 3, 8])
def test_every_legal_pair_of_places_is_as_likely(T, places):
    tokens = Adding(T, places=places).sample(20_000, Generator().manual_seed(0)).tokens
    drawn = {}
    for pair in tokens.nonzero()[:, 1].view(-1, 2).tolist():
        drawn[tuple(pair)] = drawn.get(tuple(pair), 0) + 1 / 20_000
    half = T // 2
    legal = {(i, j) for i in range(T) for j in range(i + 1, T) if places == "anywhere" or i < half <= j}
    assert drawn == pytest.approx(dict.fromkeys(legal, 1 / len(legal)), abs=0.015)


@pytest.mark.parametrize("places", PLACES)
def test_chance_and_floor_are_the_accuracy_of_the_best_constant_and_its_squared_error_a_sixth(places):
    task = Adding(20, places=places)
    answers = task.sample(20_000, Generator().manual_seed(0)).numbers[:, -1]
    within = {guess: ((answers - guess).abs() <= task.tolerance).double().mean().item() for guess in (0.8, 1.0, 1.2)}
    assert task.chance == task.floor == pytest.approx(0.0784)
    assert within[1.0] == pytest.approx(task.floor, abs=0.008)
    assert max(within, key=within.get) == 1.0
    assert (answers - 1).square().mean().item() == pytest.approx(1 / 6, abs=0.005)


def test_adding_names_its_sizes():
    task = Adding(32)
    assert (task.vocab_size, task.answers, task.reads_values, task.tolerance) == (2, "number", True, 0.04)
    assert task.slice_names == ("1", "2", "4", "8", "16")
    assert task.options == {"places": "halves"}
    assert set(task.roles) == {"causal", "bidirectional"}


def test_a_sequence_too_short_names_the_smallest_legal_length():
    assert Adding.min_T() == Adding(2).T == 2
    with pytest.raises(ValueError, match="T of at least 2, got 1"):
        Adding(1)


def test_splits_share_no_sequence():
    task = Adding(2)
    rows = [{tuple(row) for row in held_out(task, split, 500, 0).inputs.tolist()} for split in ("validation", "test")]
    rows.append({tuple(row) for row in next(training_batches(task, 2000, 0)).inputs.tolist()})
    assert len(set().union(*rows)) == sum(map(len, rows))


def test_a_recurrence_takes_time_for_time_and_adds_far_better_than_a_constant():
    build = partial(
        LanguageModel,
        vocab_size=2,
        n_outputs=1,
        reads_values=True,
        d_model=32,
        n_heads=1,
        n_layers=1,
        max_T=20,
        mixer=registry.load(registry.installed(registry.VARIANTS)["gru"]),
        d_ff=0,
        positions="none",
    )
    settings = TrainSettings(
        steps=500, batch_size=64, lr=[1e-2], n_validation=200, n_test=500, eval_every=100, stop_at=0.5
    )
    result = train(build, Adding(20), settings, seed=0)
    assert result.loss < 0.05
    assert result.accuracy > 2 * result.floor

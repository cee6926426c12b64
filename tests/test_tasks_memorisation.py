"""Memorisation: one value per key, the same in every sequence, whatever the seed and the length."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sequences import (
    assert_registered,
    assert_repeatable,
    assert_smallest,
    assert_well_formed,
    drawn,
    rows,
    worth,
)

from attnbench.splits import held_out, training_batches
from attnbench.tasks import IGNORE
from attnbench.tasks.memorisation import Memorisation

TASKS = st.builds(Memorisation, st.integers(8, 40), n_values=st.integers(4, 20))
SEEDS = st.integers(0, 99)


def facts(task, seed) -> dict[int, int]:
    """The value of each key, as sequences tell it."""
    told: dict[int, set[int]] = {}
    for tokens, labels, _ in rows(drawn(task, 500, seed)):
        for key, label in zip(tokens, labels[1:], strict=False):
            if label != IGNORE:
                told.setdefault(key, set()).add(label)
    assert all(len(values) == 1 for values in told.values())
    return {key: values.pop() for key, values in told.items()}


@given(TASKS, st.integers(0, 8), SEEDS)
def test_question_tokens_alone_are_scored_and_each_stands_behind_a_key(task, n, seed):
    batch = drawn(task, n, seed)
    assert_well_formed(task, batch)
    for tokens, labels, slices in rows(batch):
        assert all(token < task.n_values for token in tokens[::2])
        assert set(tokens[1::2]) == {task.question}
        assert set(labels[::2]) == {IGNORE}
        assert all(task.n_values <= label < 2 * task.n_values for label in labels[1::2])
        assert set(slices[1::2]) == {0}


@pytest.mark.parametrize("n_values", [2, 7, 30])
def test_facts_are_one_to_one_and_depend_neither_on_the_seed_nor_on_the_length(n_values):
    known = facts(Memorisation(20, n_values=n_values), 0)
    assert set(known) == set(range(n_values))
    assert set(known.values()) == set(range(n_values, 2 * n_values))
    assert facts(Memorisation(20, n_values=n_values), 1) == facts(Memorisation(31, n_values=n_values), 2) == known


@given(TASKS, SEEDS)
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    assert_repeatable(task, seed)


def test_a_guess_is_worth_chance_and_one_that_knows_the_facts_alone_is_worth_the_floor():
    task = Memorisation(16, n_values=8)
    batch = drawn(task)
    assert task.chance == 1 / 8
    for guess in range(8, 16):
        assert worth(batch, guess) == pytest.approx(task.chance, abs=0.005)
    assert worth(batch, batch.labels.roll(2, 1)) == pytest.approx(task.chance, abs=0.005)  # the answer before
    keys = batch.tokens[:, ::2, None] == torch.arange(8)
    commonest = keys.cumsum(1).argmax(2)  # (N, 8): of the keys up to each one
    facts = torch.empty(8, dtype=torch.int64).index_put_((batch.tokens[:, ::2],), batch.labels[:, 1::2])
    guesses = torch.zeros_like(batch.labels)
    guesses[:, 1::2] = facts[commonest]
    assert worth(batch, guesses) == pytest.approx(task.floor, abs=0.005)


def test_training_sequences_hold_every_key_of_the_test_sequences():
    task = Memorisation(8)
    test = held_out(task, "test", 500, 0).tokens[:, ::2].unique()
    assert torch.isin(test, next(training_batches(task, 2000, 0)).tokens[:, ::2]).all()


def test_memorisation_names_its_sizes():
    task = Memorisation(64)
    assert (task.vocab_size, task.chance, task.slice_names) == (257, 1 / 128, ("all",))
    assert task.options == {"n_values": 128}
    assert_registered("memorisation", Memorisation)


@pytest.mark.parametrize("options", [{}, {"n_values": 2}])
def test_a_sequence_too_short_names_the_smallest_legal_length(options):
    assert_smallest(Memorisation, 8, **options)

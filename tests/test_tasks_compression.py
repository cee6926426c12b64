"""Compression: every place of the string is asked for once, in random order, and answered by its symbol."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sequences import (
    assert_registered,
    assert_repeatable,
    assert_smallest,
    assert_well_formed,
    commonest,
    drawn,
    in_slice,
    rows,
    worth,
)

from attnbench.tasks import IGNORE
from attnbench.tasks.compression import Compression

TASKS = st.builds(Compression, st.integers(9, 50), n_symbols=st.integers(2, 9))
SEEDS = st.integers(0, 99)


@given(TASKS, st.integers(0, 8), SEEDS)
def test_each_question_is_answered_by_the_symbol_of_its_place(task, n, seed):
    batch = drawn(task, n, seed)
    assert_well_formed(task, batch)
    length = (task.T - 1) // 2
    for tokens, labels, slices in rows(batch):
        string, questions = tokens[:length], tokens[length + 1 : 2 * length + 1]
        assert all(symbol < task.n_symbols for symbol in string)
        assert tokens[length] == task.end
        places = [question - task.vocab_size + length for question in questions]
        assert sorted(places) == list(range(length))
        assert tokens[2 * length + 1 :] == [task.padding] * (task.T - 2 * length - 1)
        assert labels[: length + 1] == [IGNORE] * (length + 1)
        assert labels[length + 1 : 2 * length + 1] == [string[place] for place in places]
        assert labels[2 * length + 1 :] == [IGNORE] * (task.T - 2 * length - 1)
        assert all(in_slice(task, slices[length + 1 + i], length + 1 + i - place) for i, place in enumerate(places))


@given(TASKS, SEEDS)
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    assert_repeatable(task, seed)


def test_every_place_is_as_likely_at_every_question():
    task = Compression(11)
    places = drawn(task).tokens[:, 6:] - task.first_question
    share = torch.stack([torch.bincount(column, minlength=5) for column in places.T]) / 20_000
    assert share.numpy() == pytest.approx(1 / 5, abs=0.02)


@pytest.mark.parametrize(("T", "n_symbols"), [(9, 16), (32, 3), (64, 16)])
def test_the_floor_is_the_score_of_the_commonest_symbol_and_a_fixed_guess_is_worth_chance(T, n_symbols):
    task = Compression(T, n_symbols=n_symbols)
    batch = drawn(task)
    assert worth(batch, commonest(batch.tokens, n_symbols)[:, None]) == pytest.approx(task.floor, abs=0.01)
    for guess in (0, n_symbols - 1):
        assert worth(batch, guess) == pytest.approx(task.chance, abs=0.01)


def test_compression_names_its_sizes():
    task = Compression(64)
    assert (task.length, task.vocab_size, task.chance) == (31, 16 + 2 + 31, 1 / 16)
    assert task.slice_names == ("2", "4", "8", "16", "32")
    assert task.options == {"n_symbols": 16}
    assert_registered("compression", Compression)


@pytest.mark.parametrize("options", [{}, {"n_symbols": 2}])
def test_a_sequence_too_short_names_the_smallest_legal_length(options):
    assert_smallest(Compression, 9, **options)

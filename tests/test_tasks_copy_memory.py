"""Copy memory: the string stands at the front and is due at the end, and nowhere else."""

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
    rows,
    worth,
)

from attnbench.tasks import IGNORE
from attnbench.tasks.copy_memory import CopyMemory

SEEDS = st.integers(0, 99)


@st.composite
def tasks(draw) -> CopyMemory:
    n_copied = draw(st.integers(1, 8))
    return CopyMemory(2 * n_copied + draw(st.integers(1, 30)), n_symbols=draw(st.integers(2, 9)), n_copied=n_copied)


@given(tasks(), st.integers(0, 8), SEEDS)
def test_the_string_is_due_at_the_end_behind_one_signal_and_blanks_fill_the_rest(task, n, seed):
    batch = drawn(task, n, seed)
    assert_well_formed(task, batch)
    for tokens, labels, slices in rows(batch):
        string, gap = tokens[: task.n_copied], task.T - 2 * task.n_copied - 1
        assert all(symbol < task.n_symbols for symbol in string)
        assert tokens[task.n_copied :] == [task.blank] * gap + [task.signal] + [task.blank] * task.n_copied
        assert labels == [IGNORE] * (task.T - task.n_copied) + string
        assert slices == [-1] * (task.T - task.n_copied) + list(range(task.n_copied))


@given(st.integers(21, 60), SEEDS)
def test_same_generator_state_same_tensors_and_another_state_others(T, seed):
    assert_repeatable(CopyMemory(T), seed)


@pytest.mark.parametrize(("n_symbols", "n_copied"), [(8, 10), (3, 4), (2, 1)])
def test_the_floor_is_the_score_of_the_commonest_symbol_and_a_fixed_guess_is_worth_chance(n_symbols, n_copied):
    task = CopyMemory(2 * n_copied + 9, n_symbols=n_symbols, n_copied=n_copied)
    batch = drawn(task)
    assert worth(batch, commonest(batch.tokens, n_symbols)[:, None]) == pytest.approx(task.floor, abs=0.01)
    for guess in (0, n_symbols - 1):
        assert worth(batch, guess) == pytest.approx(task.chance, abs=0.01)


def test_copy_memory_names_its_sizes():
    task = CopyMemory(64)
    assert (task.vocab_size, task.chance, task.slice_names) == (10, 1 / 8, tuple(map(str, range(1, 11))))
    assert task.options == {"n_symbols": 8, "n_copied": 10}
    assert_registered("copy_memory", CopyMemory)


@pytest.mark.parametrize("options", [{}, {"n_copied": 1}, {"n_copied": 4, "n_symbols": 2}])
def test_a_sequence_too_short_names_the_smallest_legal_length(options):
    assert_smallest(CopyMemory, 2 * options.get("n_copied", 10) + 1, **options)


def test_symbols_do_not_depend_on_each_other():
    labels = drawn(CopyMemory(21, n_symbols=4)).labels
    pairs = torch.bincount(4 * labels[:, -1] + labels[:, -2], minlength=16) / len(labels)
    assert pairs.numpy() == pytest.approx(1 / 16, abs=0.01)

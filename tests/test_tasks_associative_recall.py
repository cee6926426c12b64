"""Associative recall: the last token is a key of the sequence, the answer its value, the floor a guess among values."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbench.splits import held_out
from attnbench.tasks import IGNORE
from attnbench.tasks.associative_recall import AssociativeRecall

TASKS = st.builds(AssociativeRecall, st.integers(5, 50), n_keys=st.integers(2, 20))
SEEDS = st.integers(0, 99)


@given(TASKS, st.integers(0, 8), SEEDS)
def test_the_last_position_alone_asks_and_its_answer_is_the_value_of_its_key(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (n, task.T)
    assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices)} == {torch.int64}
    edges = [*map(int, task.slice_names), math.inf]
    start = (task.T - 1) % 2
    for tokens, labels, slices in zip(batch.tokens.tolist(), batch.labels.tolist(), batch.slices.tolist(), strict=True):
        assert tokens[:start] == [0] * start
        keys, values, asked = tokens[start:-1:2], tokens[start + 1 : -1 : 2], tokens[-1]
        assert all(1 <= key <= task.n_keys for key in keys)
        assert all(task.n_keys < value <= 2 * task.n_keys for value in values)
        assert len(set(zip(keys, values, strict=True))) == len(set(keys)) == len(set(values))
        assert labels == [IGNORE] * (task.T - 1) + [dict(zip(keys, values, strict=True))[asked]]
        assert slices[:-1] == [-1] * (task.T - 1)
        back = next(g for g in range(1, task.T) if tokens[task.T - 1 - g] == asked)
        assert edges[slices[-1]] <= back < edges[slices[-1] + 1]


@given(TASKS, st.integers(0, 8), SEEDS)
def test_the_solver_finds_every_label_from_what_is_read(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert torch.equal(task.solve(batch), batch.labels)


@given(TASKS, SEEDS)
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    one, same, other = (task.sample(60, Generator().manual_seed(s)) for s in (seed, seed, seed + 1))
    for name in ("tokens", "labels", "slices"):
        assert torch.equal(getattr(one, name), getattr(same, name))
    assert not torch.equal(one.tokens, other.tokens)


def values_of(task, tokens):
    return tokens[:, task.T - 2 * task.n_pairs : -1 : 2]


@pytest.mark.parametrize(("T", "n_keys"), [(5, 4), (6, 2), (20, 8), (64, 16)])
def test_the_floor_is_the_score_of_any_guess_among_the_values_shown(T, n_keys):
    task = AssociativeRecall(T, n_keys=n_keys)
    batch = task.sample(20_000, Generator().manual_seed(0))
    answer, values = batch.labels[:, -1:], values_of(task, batch.tokens)
    counts = (values[:, :, None] == torch.arange(task.vocab_size)).sum(1)
    guesses = {
        "any": ((counts > 0) * torch.rand(counts.shape, generator=Generator().manual_seed(1))).argmax(1, keepdim=True),
        "commonest": counts.argmax(1, keepdim=True),
        "last": values[:, -1:],
    }
    for guess in guesses.values():
        assert (guess == answer).double().mean().item() == pytest.approx(task.floor, abs=0.012)
    seen = (counts > 0).sum(1).double()
    assert seen.reciprocal().mean().item() == pytest.approx(task.floor, abs=0.005)
    assert (answer == 1 + n_keys).double().mean().item() == pytest.approx(task.chance, abs=0.012)


def test_every_key_shown_is_as_likely_to_be_asked_for_however_often_it_came():
    task = AssociativeRecall(9, n_keys=2)
    tokens = task.sample(20_000, Generator().manual_seed(0)).tokens
    once = tokens[(tokens[:, :-1:2] == 1).sum(1) == 1]
    assert (once[:, -1] == 1).double().mean().item() == pytest.approx(0.5, abs=0.03)


def test_the_floor_is_exact_where_it_can_be_counted():
    assert AssociativeRecall(5, n_keys=4).floor == pytest.approx(1 / 4 + 3 / 4 / 2)
    assert AssociativeRecall(7, n_keys=2).floor == pytest.approx(2 / 8 + 6 / 8 / 2)
    assert AssociativeRecall(100_001, n_keys=4).floor == pytest.approx(1 / 4, rel=1e-12)


def test_associative_recall_names_its_sizes():
    task = AssociativeRecall(64)
    assert (task.vocab_size, task.chance) == (33, 1 / 16)
    assert task.slice_names == ("2", "4", "8", "16", "32")
    assert task.options == {"n_keys": 16}
    assert set(task.roles) == {"causal", "bidirectional"}


def test_a_sequence_too_short_names_the_smallest_legal_length():
    assert AssociativeRecall.min_T() == AssociativeRecall(5).T == 5
    with pytest.raises(ValueError, match="T of at least 5, got 4"):
        AssociativeRecall(4)


def test_a_space_of_few_sequences_fills_no_test_set():
    with pytest.raises(ValueError, match="too small"):
        held_out(AssociativeRecall(5, n_keys=2), "test", 12, seed=0)

"""Selective copying: the labels at the marks are what is left of a sequence without its blanks, in order."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbench.splits import held_out
from attnbench.tasks import IGNORE
from attnbench.tasks.selective_copy import SelectiveCopy

SEEDS = st.integers(0, 99)


@st.composite
def tasks(draw) -> SelectiveCopy:
    n_items = draw(st.integers(1, 6))
    T = draw(st.integers(2 * n_items, 2 * n_items + 40))
    return SelectiveCopy(T, n_items=n_items, n_symbols=draw(st.integers(2, 9)))


@given(tasks(), st.integers(0, 8), SEEDS)
def test_each_mark_asks_for_its_item_and_nothing_else_is_scored(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (n, task.T)
    assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices)} == {torch.int64}
    edges = [*map(int, task.slice_names), math.inf]
    first_mark = task.T - task.n_items
    for tokens, labels, slices in zip(batch.tokens.tolist(), batch.labels.tolist(), batch.slices.tolist(), strict=True):
        places = [t for t, token in enumerate(tokens) if token < task.n_symbols]
        assert tokens[first_mark:] == [task.mark] * task.n_items
        assert sorted(tokens[:first_mark])[task.n_items :] == [task.blank] * (first_mark - task.n_items)
        assert labels == [IGNORE] * first_mark + [tokens[t] for t in places]
        assert slices[:first_mark] == [-1] * first_mark
        for i, (place, octave) in enumerate(zip(places, slices[first_mark:], strict=True)):
            assert edges[octave] <= first_mark + i - place < edges[octave + 1]


@given(tasks(), st.integers(0, 8), SEEDS)
def test_the_solver_finds_every_label_from_what_is_read(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert torch.equal(task.solve(batch), batch.labels)


@given(tasks(), SEEDS)
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    one, same, other = (task.sample(60, Generator().manual_seed(s)) for s in (seed, seed, seed + 1))
    for name in ("tokens", "labels", "slices"):
        assert torch.equal(getattr(one, name), getattr(same, name))
    assert not torch.equal(one.tokens, other.tokens)


def test_every_set_of_places_is_as_likely_the_last_one_included():
    task = SelectiveCopy(7, n_items=2)  # 2 of 5 places
    places = (task.sample(20_000, Generator().manual_seed(0)).tokens < task.n_symbols).nonzero()[:, 1].view(-1, 2)
    counts = torch.bincount(places[:, 0] * 5 + places[:, 1], minlength=25).view(5, 5) / 20_000
    assert (counts.triu(1)[counts > 0].numel(), counts.tril().sum().item()) == (10, 0)
    assert counts[counts > 0].numpy() == pytest.approx(1 / 10, abs=0.01)


def test_a_fixed_guess_is_worth_chance_and_the_commonest_symbol_what_the_task_says():
    task = SelectiveCopy(64)
    batch = task.sample(20_000, Generator().manual_seed(0))
    answers = batch.labels[:, -task.n_items :]
    for guess in (0, 7, 15):
        assert (answers == guess).double().mean().item() == pytest.approx(task.chance, abs=0.005)
    counts = torch.stack([(batch.tokens == symbol).sum(1) for symbol in range(task.n_symbols)], 1)
    commonest = counts.argmax(1, keepdim=True)
    assert (answers == commonest).double().mean().item() == pytest.approx(task.floor, abs=0.005)
    assert (task.chance, task.floor_from) == (1 / 16, "the commonest symbol of the sequence")


def test_selective_copy_names_its_sizes():
    task = SelectiveCopy(64)
    assert (task.vocab_size, task.slice_names) == (18, ("8", "16", "32"))
    assert task.options == {"n_items": 8, "n_symbols": 16}
    assert set(task.roles) == {"causal", "bidirectional"}


@pytest.mark.parametrize("n_items", [1, 4, 8])
def test_a_sequence_too_short_names_the_smallest_legal_length(n_items):
    smallest = SelectiveCopy.min_T(n_items=n_items)
    task = SelectiveCopy(smallest, n_items=n_items)
    batch = task.sample(5, Generator().manual_seed(0))
    assert torch.equal(batch.labels[:, n_items:], batch.tokens[:, :n_items])
    with pytest.raises(ValueError, match=f"T of at least {2 * n_items}, got {2 * n_items - 1}"):
        SelectiveCopy(smallest - 1, n_items=n_items)


def test_min_t_is_the_smallest_legal_length_of_default_options():
    assert SelectiveCopy.min_T() == SelectiveCopy(SelectiveCopy.min_T()).T == 16


def test_a_space_of_12_sequences_fills_no_test_set():
    with pytest.raises(ValueError, match="too small"):
        held_out(SelectiveCopy(4, n_items=1, n_symbols=4), "test", 12, seed=0)

"""Sorting strings: what a sequence is, and what a guess by rank scores."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbench.tasks import IGNORE
from attnbench.tasks.sort import Sort


@st.composite
def tasks(draw) -> Sort:
    min_length = draw(st.integers(1, 6))
    T = draw(st.integers(2 * min_length, 2 * min_length + 30))
    train = draw(st.sampled_from([0, min_length, min_length + 3]))
    return Sort(T, n_symbols=draw(st.integers(2, 9)), min_length=min_length, train_max_length=train)


@given(tasks(), st.integers(0, 8), st.integers(0, 99))
def test_behind_the_separator_stands_the_sorted_string_and_each_label_is_its_next_symbol(task, n, seed):
    for drawn in (task, task.for_training()):
        batch = drawn.sample(n, Generator().manual_seed(seed))
        edges = [*map(int, task.slice_names), math.inf]
        for tokens, labels, slices in zip(
            *map(torch.Tensor.tolist, (batch.tokens, batch.labels, batch.slices)), strict=True
        ):
            length = tokens.index(task.n_symbols)
            expected = sorted(tokens[:length])
            rest = task.T - 2 * length
            assert task.min_length <= length <= drawn.max_length
            assert tokens[length + 1 :] == expected[:-1] + [task.n_symbols + 1] * rest
            assert labels == [IGNORE] * length + expected + [IGNORE] * rest
            assert [index >= 0 for index in slices] == [label != IGNORE for label in labels]
            assert edges[slices[length]] <= length < edges[slices[length] + 1]


@given(tasks(), st.integers(0, 8), st.integers(0, 99))
def test_the_solver_finds_every_label(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    scored = batch.labels != IGNORE
    assert torch.equal(task.solve(batch)[scored], batch.labels[scored])


@given(tasks(), st.integers(0, 99))
def test_same_generator_state_same_tensors(task, seed):
    one, same = (task.sample(20, Generator().manual_seed(seed)) for _ in range(2))
    assert torch.equal(one.tokens, same.tokens)
    assert torch.equal(one.labels, same.labels)


@pytest.mark.parametrize("task", [Sort(32), Sort(10, n_symbols=3, min_length=1)])
def test_chance_and_floor_are_what_guesses_score(task):
    batch = task.sample(20_000, Generator().manual_seed(5))
    scored = batch.labels != IGNORE
    answers = batch.labels[scored]
    uniform = torch.randint(task.n_symbols, answers.shape, generator=Generator().manual_seed(6))
    assert (uniform == answers).double().mean() == pytest.approx(task.chance, abs=0.005)
    length = scored.sum(1)[:, None].expand_as(scored)[scored].tolist()
    place = scored.nonzero()[:, 1].tolist()
    before = batch.tokens[scored].tolist()  # at the separator it is the separator
    seen: dict[tuple[int, int, int], Counter[int]] = {}
    for key, answer in zip(zip(length, place, before, strict=True), answers.tolist(), strict=True):
        seen.setdefault(key, Counter())[answer] += 1
    best = sum(counter.most_common(1)[0][1] for counter in seen.values())
    assert best / len(answers) == pytest.approx(task.floor, abs=0.01)


def test_one_symbol_is_guessed_at_chance_and_two_of_two_at_three_quarters():
    assert Sort(2, n_symbols=5, min_length=1).floor == pytest.approx(0.2)
    assert Sort(4, n_symbols=2, min_length=2).floor == pytest.approx(0.75)


@pytest.mark.parametrize("min_length", [1, 4])
def test_a_sequence_too_short_names_the_smallest_legal_length(min_length):
    assert Sort.min_T(min_length=min_length) == Sort(2 * min_length, min_length=min_length).T
    with pytest.raises(ValueError, match=f"sort .* T of at least {2 * min_length}, got {2 * min_length - 1}"):
        Sort(2 * min_length - 1, min_length=min_length)

"""Dyck: brackets nest, only the closing ones are due, and the floor is what counting them is worth."""

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
    in_slice,
    rows,
    worth,
)

from attnbench.tasks import IGNORE
from attnbench.tasks.dyck import Dyck

SEEDS = st.integers(0, 99)


@st.composite
def tasks(draw) -> Dyck:
    max_depth = draw(st.integers(2, 8))
    T = max_depth + draw(st.integers(1, 40))
    return Dyck(T, n_types=draw(st.integers(2, 9)), max_depth=max_depth)


@given(tasks(), st.integers(0, 8), SEEDS)
def test_brackets_nest_and_each_closing_one_is_due_one_position_before_it(task, n, seed):
    batch = drawn(task, n, seed)
    assert_well_formed(task, batch)
    for tokens, labels, slices in rows(batch):
        opened: list[tuple[int, int]] = []
        for t, token in enumerate(tokens):
            if token < task.n_types:
                opened.append((t, token))
                assert len(opened) <= task.max_depth
            else:
                at, kind = opened.pop()
                assert token == labels[t - 1] == kind + task.n_types
                assert in_slice(task, slices[t - 1], t - at)
        assert [label != IGNORE for label in labels] == [token >= task.n_types for token in tokens[1:]] + [False]
        assert any(label != IGNORE for label in labels)


@given(tasks(), SEEDS)
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    assert_repeatable(task, seed)


def test_a_fair_coin_opens_or_closes_and_every_type_is_as_likely():
    task = Dyck(40, n_types=4, max_depth=3)
    tokens = drawn(task, 5000).tokens
    opens = tokens < 4
    depth = (2 * opens.long() - 1).cumsum(1)[:, :-1]
    for d, share in ((0, 1.0), (1, 0.5), (2, 0.5), (3, 0.0)):
        assert opens[:, 1:][depth == d].double().mean().item() == pytest.approx(share, abs=0.015 if 0 < d < 3 else 0)
    assert (torch.bincount(tokens[opens]) / opens.sum()).numpy() == pytest.approx(1 / 4, abs=0.01)


def counting(task, tokens):
    """(N, T) the guess from the last token and from how many brackets of each type are open."""
    kinds = torch.arange(task.n_types)
    n_open = (tokens[..., None] == kinds).long().cumsum(1) - (tokens[..., None] == kinds + task.n_types).long().cumsum(
        1
    )
    return task.n_types + tokens.where(tokens < task.n_types, n_open.argmax(-1))


@pytest.mark.parametrize(("T", "n_types", "max_depth"), [(64, 8, 8), (30, 2, 3), (9, 5, 8)])
def test_the_floor_is_what_counting_is_worth_and_a_fixed_guess_is_worth_chance(T, n_types, max_depth):
    task = Dyck(T, n_types=n_types, max_depth=max_depth)
    batch = drawn(task)
    assert worth(batch, counting(task, batch.tokens)) == pytest.approx(task.floor, abs=0.01)
    assert task.chance == 1 / n_types
    for guess in (n_types, 2 * n_types - 1):
        assert worth(batch, guess) == pytest.approx(task.chance, abs=0.01)


def test_dyck_names_its_sizes():
    task = Dyck(64)
    assert (task.vocab_size, task.chance, task.slice_names) == (16, 1 / 8, ("1", "2", "4", "8", "16", "32"))
    assert task.options == {"n_types": 8, "max_depth": 8}
    assert task.floor == pytest.approx(0.8, abs=0.02)
    assert_registered("dyck", Dyck)


@pytest.mark.parametrize("options", [{}, {"max_depth": 2}, {"n_types": 2, "max_depth": 5}])
def test_a_sequence_too_short_names_the_smallest_legal_length(options):
    assert_smallest(Dyck, options.get("max_depth", 8) + 1, **options)

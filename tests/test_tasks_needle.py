"""Needles: each key once in the noise with its digits behind it, and one of them asked for at the end."""

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
from attnbench.tasks.needle import Needle

SEEDS = st.integers(0, 99)


@st.composite
def tasks(draw) -> Needle:
    options = {"n_keys": draw(st.integers(1, 5)), "n_digits": draw(st.integers(1, 3))}
    T = Needle.min_T(**options) + draw(st.integers(0, 40))
    return Needle(T, **options, n_noise=draw(st.integers(1, 9)))


def starts(task, tokens) -> dict[int, int]:
    """Where each key stands in the haystack."""
    hay = tokens[: task.T - task.n_digits]
    return {token: at for at, token in enumerate(hay) if token >= task.first_key}


@given(tasks(), st.integers(0, 8), SEEDS)
def test_the_last_positions_ask_for_the_digits_behind_one_of_the_keys(task, n, seed):
    batch = drawn(task, n, seed)
    assert_well_formed(task, batch)
    for tokens, labels, slices in rows(batch):
        at, end = starts(task, tokens), task.T - task.n_digits
        assert set(at) == set(range(task.first_key, task.vocab_size))
        needles = {key: tokens[start + 1 : start + 1 + task.n_digits] for key, start in at.items()}
        taken = {start + i for start in at.values() for i in range(1 + task.n_digits)}
        assert len(taken) == task.n_keys * (1 + task.n_digits)
        assert max(taken) < end
        assert all(task.n_noise <= digit < task.first_key for needle in needles.values() for digit in needle)
        assert all(tokens[t] < task.n_noise for t in range(end) if t not in taken)
        answer = needles[tokens[end]]
        assert tokens[end + 1 :] == answer[:-1]
        assert labels == [IGNORE] * end + answer
        depth = at[tokens[end]] / (end - task.n_digits)  # 0 at the front, below 1
        assert slices == [-1] * end + [int(8 * depth)] * task.n_digits


@given(tasks(), SEEDS)
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    assert_repeatable(task, seed)


def test_every_set_of_places_is_as_likely_and_so_is_every_key():
    task = Needle(9, n_keys=2, n_digits=1)  # places for 2 needles of 2 in 8 positions: 15 times 2 orders
    batch = drawn(task)
    at = torch.tensor(
        [[starts(task, row)[key] for key in (task.first_key, task.first_key + 1)] for row, *_ in rows(batch)]
    )
    pairs, counts = torch.unique(at, dim=0, return_counts=True)
    assert len(pairs) == 30
    assert (counts / 20_000).numpy() == pytest.approx(1 / 30, abs=0.005)
    assert (batch.tokens[:, -1] == task.first_key).double().mean().item() == pytest.approx(0.5, abs=0.015)


@pytest.mark.parametrize(("n_keys", "n_digits"), [(4, 1), (2, 1), (6, 3)])
def test_the_floor_is_the_commonest_digit_of_the_needles_and_a_fixed_guess_is_worth_chance(n_keys, n_digits):
    task = Needle(48, n_keys=n_keys, n_digits=n_digits)
    batch = drawn(task)
    hay = batch.tokens[:, : task.T - n_digits]
    key = (hay >= task.first_key).nonzero()[:, 1].view(-1, n_keys)
    guesses = [commonest(hay.gather(1, key + 1 + i) - task.n_noise, 10) + task.n_noise for i in range(n_digits)]
    right = torch.stack(guesses, dim=1) == batch.labels[:, -n_digits:]
    assert right.double().mean().item() == pytest.approx(task.floor, abs=0.01)
    for guess in (task.n_noise, task.first_key - 1):
        assert worth(batch, guess) == pytest.approx(task.chance, abs=0.01)


def test_needle_names_its_sizes():
    task = Needle(128)
    assert (task.vocab_size, task.chance) == (16 + 10 + 4, 1 / 10)
    assert task.slice_names == ("0%", "12.5%", "25%", "37.5%", "50%", "62.5%", "75%", "87.5%")
    assert task.options == {"n_keys": 4, "n_digits": 1, "n_noise": 16}
    assert_registered("needle", Needle)


@pytest.mark.parametrize(
    ("smallest", "options"), [(9, {}), (3, {"n_keys": 1}), (15, {"n_keys": 3, "n_digits": 3, "n_noise": 1})]
)
def test_a_sequence_too_short_names_the_smallest_legal_length(smallest, options):
    assert_smallest(Needle, smallest, **options)

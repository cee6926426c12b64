"""Induction: each answer is what followed the same token before, and the floor what guessing in the string is worth."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbench.splits import held_out
from attnbench.tasks import IGNORE
from attnbench.tasks.induction import Induction

SEEDS = st.integers(0, 99)
FORMS = ["repeat", "trigger"]


@st.composite
def tasks(draw, forms=tuple(FORMS)) -> Induction:
    form = draw(st.sampled_from(forms))
    T = draw(st.integers(Induction.min_T(form=form), 50))
    return Induction(T, form=form, n_symbols=draw(st.integers(4, 40)))


def rows(batch):
    return zip(batch.tokens.tolist(), batch.labels.tolist(), batch.slices.tolist(), strict=True)


def in_slice(task, index, gap) -> bool:
    edges = [*map(int, task.slice_names), math.inf]
    return edges[index] <= gap < edges[index + 1]


@given(tasks(["repeat"]), st.integers(0, 8), SEEDS)
def test_a_string_of_different_symbols_runs_to_the_end_and_is_scored_from_its_second_run_on(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (n, task.T)
    assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices)} == {torch.int64}
    for tokens, labels, slices in rows(batch):
        length = len(set(tokens))
        assert 4 <= length <= min(task.T // 2, task.n_symbols)
        assert all(0 <= token < task.n_symbols for token in tokens)
        assert all(tokens[t] == tokens[t % length] for t in range(task.T))
        assert labels == [IGNORE] * length + [tokens[t - length + 1] for t in range(length, task.T)]
        assert slices[:length] == [-1] * length
        assert all(in_slice(task, index, length - 1) for index in slices[length:])


@given(tasks(["trigger"]), st.integers(0, 8), SEEDS)
def test_the_last_trigger_alone_asks_for_what_followed_the_first_one(task, n, seed):
    for tokens, labels, slices in rows(task.sample(n, Generator().manual_seed(seed))):
        first, last = (t for t, token in enumerate(tokens) if token == task.trigger)
        assert last == task.T - 1
        assert 0 <= tokens[first + 1] < task.n_symbols
        assert labels == [IGNORE] * last + [tokens[first + 1]]
        assert slices[:-1] == [-1] * last
        assert in_slice(task, slices[-1], last - first - 1)


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


def test_every_length_of_a_string_is_as_likely():
    scored = (Induction(20).sample(20_000, Generator().manual_seed(0)).labels != IGNORE).sum(1)
    assert (torch.bincount(20 - scored)[4:] / 20_000).numpy() == pytest.approx(1 / 7, abs=0.01)


def test_every_place_of_the_trigger_is_as_likely():
    task = Induction(10, form="trigger")
    first = (task.sample(20_000, Generator().manual_seed(0)).tokens == task.trigger).long().argmax(1)
    assert (torch.bincount(first) / 20_000).numpy() == pytest.approx(torch.full((8,), 1 / 8).numpy(), abs=0.01)


@pytest.mark.parametrize(("T", "n_symbols"), [(8, 32), (21, 5), (64, 32)])
def test_the_floor_is_what_a_guess_among_the_other_symbols_of_the_string_scores(T, n_symbols):
    task = Induction(T, n_symbols=n_symbols)
    batch = task.sample(20_000, Generator().manual_seed(0))
    here = torch.zeros(20_000, n_symbols).scatter_(1, batch.tokens, 1)  # every symbol of the string has come by then
    here = here[:, None].expand(-1, T, -1)[batch.labels != IGNORE]
    here.scatter_(1, batch.tokens[batch.labels != IGNORE][:, None], 0)
    guess = here.mul_(torch.rand(here.shape, generator=Generator().manual_seed(1))).argmax(1)
    right = (guess == batch.labels[batch.labels != IGNORE]).double().mean().item()
    assert right == pytest.approx(task.floor, abs=0.01)
    assert task.floor > task.chance == 1 / n_symbols


@pytest.mark.parametrize("form", FORMS)
def test_a_fixed_guess_is_worth_chance(form):
    task = Induction(24, form=form, n_symbols=16)
    labels = task.sample(20_000, Generator().manual_seed(0)).labels
    for guess in (0, 15):
        assert (labels[labels != IGNORE] == guess).double().mean().item() == pytest.approx(task.chance, abs=0.006)
    assert form == "repeat" or task.floor == task.chance


def test_induction_names_its_sizes():
    task = Induction(64)
    assert (task.vocab_size, task.chance, task.slice_names) == (33, 1 / 32, ("3", "6", "12", "24"))
    assert task.options == {"form": "repeat", "n_symbols": 32}
    assert task.roles == ("causal",)
    assert Induction(64, form="trigger").slice_names == ("1", "2", "4", "8", "16", "32")


@pytest.mark.parametrize(("form", "smallest"), [("repeat", 8), ("trigger", 3)])
def test_a_sequence_too_short_names_the_smallest_legal_length(form, smallest):
    assert Induction.min_T(form=form) == Induction(smallest, form=form).T == smallest
    with pytest.raises(ValueError, match=f"T of at least {smallest}, got {smallest - 1}"):
        Induction(smallest - 1, form=form)


def test_min_t_is_the_smallest_legal_length_of_default_options():
    assert Induction.min_T() == Induction(Induction.min_T()).T == 8


def test_a_space_of_24_strings_fills_no_test_set():
    with pytest.raises(ValueError, match="too small"):
        held_out(Induction(8, n_symbols=4), "test", 24, seed=0)

"""Parity and counting modulo a number: states that each move changes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbench.splits import held_out
from attnbench.tasks import IGNORE
from attnbench.tasks.modular_counting import ModularCounting
from attnbench.tasks.parity import Parity
from attnbench.tasks.running import Running


@st.composite
def tasks(draw) -> Running:
    T, train_max_T = draw(st.integers(1, 40)), draw(st.integers(0, 50))
    if draw(st.booleans()):
        return Parity(T, train_max_T=train_max_T)
    return ModularCounting(T, n_states=draw(st.integers(2, 7)), train_max_T=train_max_T)


def states(task: Running, tokens: list[int]) -> list[int]:
    """A person's count: move after move."""
    state, found = 0, []
    for token in tokens:
        if token == task.padding:
            break
        state = (state + (token if isinstance(task, Parity) else token - 1)) % task.n_states
        found.append(state)
    return found


@given(tasks(), st.integers(0, 8), st.integers(0, 99))
def test_labels_are_the_states_so_far_and_padding_is_not_scored(task, n, seed):
    for drawn in (task, task.for_training()):
        batch = drawn.sample(n, Generator().manual_seed(seed))
        assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (n, task.T)
        for tokens, labels in zip(batch.tokens.tolist(), batch.labels.tolist(), strict=True):
            expected = states(task, tokens)
            assert len(expected) == drawn.n_moves_drawn
            assert labels == expected + [IGNORE] * (task.T - len(expected))
            assert max(tokens + labels) < task.vocab_size


@given(tasks(), st.integers(0, 8), st.integers(0, 99))
def test_the_solver_finds_every_label(task, n, seed):
    for drawn in (task, task.for_training()):
        batch = drawn.sample(n, Generator().manual_seed(seed))
        scored = batch.labels != IGNORE
        assert torch.equal(task.solve(batch)[scored], batch.labels[scored])


@given(tasks(), st.integers(0, 99))
def test_slices_are_octaves_of_the_position_and_training_ends_at_an_edge(task, seed):
    trained = task.for_training().sample(2, Generator().manual_seed(seed))
    tested = task.sample(2, Generator().manual_seed(seed))
    edges = [*map(int, task.slice_names), task.T + 1]
    for at, index in enumerate(tested.slices[0].tolist(), start=1):
        assert edges[index] <= at < edges[index + 1]
    if 0 < task.train_max_T < task.T:
        assert not {*trained.slices[trained.slices >= 0].tolist()} & {*tested.slices[0, task.train_max_T :].tolist()}


@given(tasks(), st.integers(0, 99))
def test_same_generator_state_same_tensors(task, seed):
    one, same = (task.sample(20, Generator().manual_seed(seed)) for _ in range(2))
    assert torch.equal(one.tokens, same.tokens)
    assert torch.equal(one.labels, same.labels)


@pytest.mark.parametrize("task", [Parity(12), ModularCounting(64), ModularCounting(9, n_states=7)])
def test_chance_and_floor_are_what_guesses_score(task):
    batch = task.sample(20_000, Generator().manual_seed(5))
    uniform = torch.randint(task.n_states, batch.labels.shape, generator=Generator().manual_seed(6))
    assert (uniform == batch.labels).double().mean() == pytest.approx(task.chance, abs=0.005)
    right = 0
    for at in range(task.T):  # the commonest label of each token at each position
        table = torch.zeros(len(task.moves), task.n_states)
        table.index_put_((batch.tokens[:, at], batch.labels[:, at]), torch.ones(20_000), accumulate=True)
        right += int(table.amax(1).sum())
    assert right / batch.labels.numel() == pytest.approx(task.floor, abs=0.01)


@pytest.mark.parametrize("n", [4, 1000])
def test_parity_of_eight_bits_gives_disjoint_splits_or_says_that_it_is_too_small(n):
    task = Parity(8)
    if n == 1000:
        with pytest.raises(ValueError, match=r"parity at T = 8 .* is too small"):
            held_out(task, "test", n, seed=0)
        return
    rows = [
        set(map(tuple, held_out(task, split, n, 0).tokens.tolist())) for split in ("training", "validation", "test")
    ]
    assert len(set.union(*rows)) == 3 * n


def test_the_tasks_name_their_sizes():
    assert (Parity(32).vocab_size, Parity(32).chance, Parity(32).floor) == (3, 0.5, (1 + 31 / 2) / 32)
    assert Parity(16, train_max_T=5).slice_names == ("1", "2", "4", "6", "8", "16")
    assert (ModularCounting(32).vocab_size, ModularCounting(32).chance) == (6, 0.2)
    assert ModularCounting(8, n_states=3).options == {"n_states": 3, "train_max_T": 0}


@pytest.mark.parametrize("kind", [Parity, ModularCounting])
def test_no_move_is_no_task(kind):
    assert kind(kind.min_T()).T == 1
    with pytest.raises(ValueError, match="T of at least 1, got 0"):
        kind(0)

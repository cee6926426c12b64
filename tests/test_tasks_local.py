"""The task `local`: every label is the sum of the two tokens before it, and one of them alone tells nothing."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbench.tasks import IGNORE
from attnbench.tasks.local import Local

TASKS = st.builds(Local, st.integers(3, 40), n_values=st.integers(2, 9))
SEEDS = st.integers(0, 99)


@given(TASKS, st.integers(0, 8), SEEDS)
def test_each_label_is_the_sum_of_the_two_tokens_before_it(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (n, task.T)
    assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices)} == {torch.int64}
    for tokens, labels, slices in zip(
        *(part.tolist() for part in (batch.tokens, batch.labels, batch.slices)), strict=True
    ):
        assert all(0 <= token < task.vocab_size for token in tokens)
        assert labels[:2] == [IGNORE, IGNORE]
        assert slices[:2] == [-1, -1]
        for t in range(2, task.T):
            assert labels[t] == (tokens[t - 1] + tokens[t - 2]) % task.vocab_size
            low, *above = task.slice_names[slices[t] :]
            assert int(low) <= t
            assert not above or t < int(above[0])


@given(TASKS, SEEDS)
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    one, same, other = (task.sample(80, Generator().manual_seed(s)) for s in (seed, seed, seed + 1))
    assert torch.equal(one.tokens, same.tokens)
    assert torch.equal(one.labels, same.labels)
    assert not torch.equal(one.tokens, other.tokens)


@pytest.mark.parametrize("known", [0, 1, 2])
def test_one_token_tells_nothing_about_a_label(known):
    task = Local(10, n_values=5)
    batch = task.sample(20_000, Generator().manual_seed(0))
    label, seen = batch.labels[:, 6], batch.tokens[:, 6 - known]
    pairs = torch.bincount(label * 5 + seen, minlength=25).view(5, 5) / len(label)
    assert pairs.numpy() == pytest.approx(1 / 25, abs=0.005)


def test_local_names_its_sizes():
    task = Local(32)
    assert (task.vocab_size, task.chance, task.floor) == (8, 1 / 8, 1 / 8)
    assert (task.slice_names, task.slice_unit) == (("2", "4", "8", "16"), "position")
    assert task.options == {"n_values": 8}
    assert task.for_training() is task
    assert set(task.roles) == {"causal", "bidirectional"}


def test_a_sequence_too_short_names_the_smallest_legal_length():
    assert Local.min_T() == Local(3).T == 3
    with pytest.raises(ValueError, match="T of at least 3, got 2"):
        Local(2)

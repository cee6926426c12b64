"""Copying strings: what a sequence is, read back as a string."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbench.splits import held_out, training_batches
from attnbench.tasks import IGNORE
from attnbench.tasks.copy import Copy


@st.composite
def tasks(draw) -> Copy:
    min_length = draw(st.integers(1, 6))
    T = draw(st.integers(2 * min_length, 2 * min_length + 30))
    return Copy(T, n_symbols=draw(st.integers(2, 9)), min_length=min_length)


def lengths(task: Copy, tokens) -> list[int]:
    return [row.index(task.n_symbols) for row in tokens.tolist()]


@given(tasks(), st.integers(0, 8), st.integers(0, 99))
def test_a_sequence_is_a_string_and_the_string_again(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (n, task.T)
    assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices)} == {torch.int64}
    for tokens, labels, slices in zip(
        *map(torch.Tensor.tolist, (batch.tokens, batch.labels, batch.slices)), strict=True
    ):
        length = tokens.index(task.n_symbols)
        string = tokens[:length]
        assert task.min_length <= length <= task.T // 2
        assert all(0 <= symbol < task.n_symbols for symbol in string)
        n_padded = task.T - 2 * length
        assert tokens[length:] == [task.n_symbols, *string[:-1], *[task.n_symbols + 1] * n_padded]
        assert labels == [*[IGNORE] * length, *string, *[IGNORE] * n_padded]
        index = sum(int(edge) <= length for edge in task.slice_names) - 1
        assert slices == [*[-1] * length, *[index] * length, *[-1] * n_padded]


@given(tasks(), st.integers(0, 99))
def test_same_generator_state_same_tensors(task, seed):
    one, same = (task.sample(30, Generator().manual_seed(seed)) for _ in range(2))
    assert torch.equal(one.tokens, same.tokens)
    assert torch.equal(one.labels, same.labels)


def test_lengths_are_uniform():
    task = Copy(20, min_length=3)
    counts = torch.bincount(torch.tensor(lengths(task, task.sample(40_000, Generator().manual_seed(0)).tokens)))
    assert counts[:3].sum() == 0
    assert (counts[3:] / 40_000).numpy() == pytest.approx(1 / 8, abs=0.01)


def test_short_strings_in_training_and_validation_and_all_lengths_in_test_data():
    task = Copy(40, min_length=4, train_max_length=10)
    longest = {split: max(lengths(task, held_out(task, split, 400, 0).tokens)) for split in ("validation", "test")}
    longest["training"] = max(lengths(task, next(training_batches(task, 400, 0)).tokens))
    assert longest == {"validation": 10, "test": 20, "training": 10}
    assert task.slice_names == task.for_training().slice_names == ("4", "8", "11", "16")
    assert Copy(40).for_training().max_length == 20
    assert Copy(40, train_max_length=50).for_training().max_length == 20


def test_copy_names_its_sizes_and_is_causal_only():
    task = Copy(48, min_length=8)
    assert (task.vocab_size, task.chance, task.slice_names) == (18, 1 / 16, ("8", "16"))
    assert task.options == {"n_symbols": 16, "min_length": 8, "train_max_length": 0}
    assert task.roles == ("causal",)


@pytest.mark.parametrize("min_length", [1, 4])
def test_a_sequence_too_short_names_the_smallest_legal_length(min_length):
    assert Copy.min_T(min_length=min_length) == Copy(2 * min_length, min_length=min_length).T
    with pytest.raises(ValueError, match=f"T of at least {2 * min_length}, got {2 * min_length - 1}"):
        Copy(2 * min_length - 1, min_length=min_length)


def test_a_training_without_strings_is_refused():
    with pytest.raises(ValueError, match="train_max_length must be 0 or at least min_length = 4, got 3"):
        Copy(40, train_max_length=3)

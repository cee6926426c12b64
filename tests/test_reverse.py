"""Reversing strings as sequence to sequence: what source and target are, and how batches carry a source."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbench.splits import fingerprint, held_out, in_split, training_batches
from attnbench.tasks import IGNORE, Batch
from attnbench.tasks.reverse import Reverse


@st.composite
def tasks(draw) -> Reverse:
    min_length = draw(st.integers(1, 6))
    T = draw(st.integers(min_length, min_length + 20))
    return Reverse(T, n_symbols=draw(st.integers(2, 9)), min_length=min_length)


def source_of(batch: Batch):
    assert batch.source is not None
    return batch.source


def lengths(batch: Batch) -> list[int]:
    return source_of(batch).mask.sum(1).tolist()


@given(tasks(), st.integers(0, 8), st.integers(0, 99))
def test_the_label_is_the_source_backwards_and_the_decoder_reads_it_one_late(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    source = source_of(batch)
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == source.tokens.shape == (n, task.T)
    assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices, source.tokens)} == {torch.int64}
    columns = (batch.tokens, batch.labels, batch.slices, source.tokens, source.mask)
    for tokens, labels, slices, read, mask in zip(*map(torch.Tensor.tolist, columns), strict=True):
        length = sum(mask)
        n_padded = task.T - length
        string = read[:length]
        assert task.min_length <= length <= task.T
        assert mask == [True] * length + [False] * n_padded
        assert all(0 <= symbol < task.n_symbols for symbol in string)
        assert read[length:] == [task.n_symbols + 1] * n_padded
        assert labels == string[::-1] + [IGNORE] * n_padded
        assert tokens == [task.n_symbols, *string[:0:-1], *[task.n_symbols + 1] * n_padded]
        index = sum(int(edge) <= length for edge in task.slice_names) - 1
        assert slices == [index] * length + [-1] * n_padded


@given(tasks(), st.integers(0, 99))
def test_same_generator_state_same_tensors(task, seed):
    one, same = (task.sample(30, Generator().manual_seed(seed)) for _ in range(2))
    assert torch.equal(one.inputs, same.inputs)
    assert torch.equal(one.labels, same.labels)


def test_short_strings_in_training_and_validation_and_all_lengths_in_test_data():
    task = Reverse(20, min_length=4, train_max_length=10)
    longest = {split: max(lengths(held_out(task, split, 400, 0))) for split in ("validation", "test")}
    longest["training"] = max(lengths(next(training_batches(task, 400, 0))))
    assert longest == {"validation": 10, "test": 20, "training": 10}
    assert task.slice_names == task.for_training().slice_names == ("4", "8", "11", "16")


def test_splits_keep_each_source_with_its_target_and_share_none():
    task = Reverse(6, min_length=5, n_symbols=3)  # 972 strings: plain draws would overlap
    drawn = {split: held_out(task, split, 60, 0) for split in ("validation", "test")}
    drawn["training"] = next(training_batches(task, 3000, 0))
    rows = {}
    for split, batch in drawn.items():
        assert in_split(batch.inputs, split).all()
        assert len(source_of(batch).tokens) == len(batch)
        flipped = [
            row[: sum(mask)][::-1]
            for row, mask in zip(source_of(batch).tokens.tolist(), source_of(batch).mask.tolist(), strict=True)
        ]
        assert [[label for label in row if label != IGNORE] for row in batch.labels.tolist()] == flipped
        rows[split] = {tuple(row) for row in source_of(batch).tokens.tolist()}
    assert not rows["training"] & (rows["validation"] | rows["test"])
    assert not rows["validation"] & rows["test"]


def test_what_is_read_includes_the_source():
    batch = Reverse(6).sample(4, Generator().manual_seed(0))
    assert torch.equal(batch.inputs, torch.cat((source_of(batch).tokens, batch.tokens), dim=1))
    changed = source_of(batch).tokens.clone()
    changed[0, 0] += 1
    other = Batch(batch.tokens, batch.labels, batch.slices, type(source_of(batch))(changed, source_of(batch).mask))
    assert fingerprint(other) != fingerprint(batch)


def test_rows_and_join_carry_the_source():
    batch = Reverse(9).sample(7, Generator().manual_seed(0))
    again = Batch.join([batch.rows(slice(3)), batch.rows(torch.arange(3, 7))])
    assert torch.equal(again.inputs, batch.inputs)
    assert torch.equal(source_of(again).mask, source_of(batch).mask)
    assert torch.equal(again.labels, batch.labels)


def test_reverse_names_its_sizes():
    task = Reverse(16)
    assert (task.vocab_size, task.chance, task.slice_names) == (18, 1 / 16, ("4", "8", "16"))
    assert task.options == {"n_symbols": 16, "min_length": 4, "train_max_length": 0}
    assert (task.kind, task.roles) == ("seq2seq", ("causal",))


@pytest.mark.parametrize("min_length", [1, 4])
def test_a_sequence_too_short_names_the_smallest_legal_length(min_length):
    assert Reverse.min_T(min_length=min_length) == Reverse(min_length, min_length=min_length).T
    with pytest.raises(ValueError, match=f"T of at least {min_length}, got {min_length - 1}"):
        Reverse(min_length - 1, min_length=min_length)


def test_a_training_without_strings_is_refused():
    with pytest.raises(ValueError, match="train_max_length must be 0 or at least min_length = 4, got 3"):
        Reverse(40, train_max_length=3)


def test_the_floor_is_what_guessing_the_commonest_symbol_that_is_left_gets():
    task = Reverse(16)
    batch = task.sample(3000, Generator().manual_seed(9))
    expected, n = 0.0, 0
    for string, real in zip(source_of(batch).tokens.tolist(), source_of(batch).mask.sum(1).tolist(), strict=True):
        for n_left in range(1, real + 1):
            left = string[:n_left]
            expected += max(map(left.count, left)) / n_left
        n += real
    assert task.floor == pytest.approx(expected / n, abs=0.005)

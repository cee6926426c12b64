"""Synthetic tasks, and their splits."""

import hashlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from attnbench import splits
from attnbench.splits import fingerprint, held_out, in_split, training_batches, training_sample
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.copy import Copy
from attnbench.tasks.distance import Distance
from attnbench.tasks.draw import edges, slice_of
from attnbench.tasks.mqar import MQAR

SPLITS = ("training", "validation", "test")


class Parity(Task):
    """Whether the number of ones so far is odd: 2^T sequences in all."""

    vocab_size, chance, floor, slice_names, title = 2, 0.5, 0.5, ("all",), "parity"

    def sample(self, n, generator):
        tokens = torch.randint(2, (n, self.T), generator=generator)
        return Batch(tokens, tokens.cumsum(1) % 2, torch.zeros_like(tokens))

    @classmethod
    def min_T(cls, **options):
        return 1


@st.composite
def distances(draw) -> Distance:
    n_slots = draw(st.integers(1, 6))
    T = draw(st.integers(2 * n_slots, 2 * n_slots + 40))
    return Distance(T, n_slots=n_slots, n_values=draw(st.integers(2, 9)), n_noise=draw(st.integers(1, 5)))


def gaps(task: Distance, batch: Batch) -> Tensor:
    """(N,) distance from a query to the one place where its payload stands, found by searching for it."""
    payload = (batch.tokens >= task.n_noise) & (batch.tokens < task.n_noise + task.n_slots * task.n_values)
    assert (payload.sum(1) == task.n_slots).all()
    return task.T - task.n_slots - payload.long().argmax(1)


@given(distances(), st.integers(0, 20), st.integers(0, 99))
def test_each_query_is_answered_by_the_payload_of_its_slot(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (n, task.T)
    assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices)} == {torch.int64}
    assert ((batch.tokens >= 0) & (batch.tokens < task.vocab_size)).all()
    for row, gap in enumerate(gaps(task, batch).tolist()):
        for slot in range(task.n_slots):
            at = task.T - task.n_slots + slot
            label = int(batch.labels[row, at])
            assert label == batch.tokens[row, at - gap]
            assert (label - task.n_noise) // task.n_values == slot
            assert batch.tokens[row, at] == task.vocab_size - task.n_slots + slot


@given(distances(), st.integers(1, 20), st.integers(0, 99))
def test_only_queries_are_scored_and_each_in_the_octave_of_its_gap(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    scored = batch.labels != IGNORE
    assert scored[:, -task.n_slots :].all()
    assert not scored[:, : -task.n_slots].any()
    assert ((batch.slices >= 0) == scored).all()
    edges = [*map(int, task.slice_names), math.inf]
    for gap, octave in zip(gaps(task, batch).tolist(), batch.slices[:, -1].tolist(), strict=True):
        assert edges[octave] <= gap < edges[octave + 1]


@given(distances(), st.integers(0, 99))
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    one, same, other = (task.sample(50, Generator().manual_seed(s)) for s in (seed, seed, seed + 1))
    assert torch.equal(one.tokens, same.tokens)
    assert torch.equal(one.labels, same.labels)
    assert not torch.equal(one.tokens, other.tokens)


@pytest.mark.parametrize(("n_slots", "T"), [(1, 2), (1, 9), (3, 24), (4, 8), (4, 70)])
def test_every_legal_gap_occurs_and_no_other(n_slots, T):
    task = Distance(T, n_slots=n_slots)
    seen = set(gaps(task, task.sample(20_000, Generator().manual_seed(0))).tolist())
    assert seen == set(range(n_slots, T - n_slots + 1))


def test_gaps_are_log_uniform():
    task = Distance(132)
    drawn = gaps(task, task.sample(100_000, Generator().manual_seed(0)))
    for low, high in ((4, 8), (8, 16), (64, 129)):
        expected = math.log(high / low) / math.log(129 / 4)
        assert ((drawn >= low) & (drawn < high)).double().mean() == pytest.approx(expected, abs=0.01)


def test_distance_names_its_sizes():
    task = Distance(128)
    assert (task.vocab_size, task.chance, task.floor) == (52, 1 / 8, 1 / 8)
    assert task.slice_names == ("4", "8", "16", "32", "64")
    assert Distance(24, n_slots=3).slice_names == ("3", "6", "12")
    assert task.options == {"n_slots": 4, "n_values": 8, "n_noise": 16, "train_max_gap": 0}


@given(distances(), st.integers(0, 60), st.integers(0, 99))
def test_short_gaps_in_training_and_validation_and_every_gap_in_test_data(task, more, seed):
    longest = task.n_slots + more
    options = task.options | {"train_max_gap": longest}
    half = Distance(task.T, **options)
    trained = {*gaps(half, half.for_training().sample(500, Generator().manual_seed(seed))).tolist()}
    assert max(trained) <= min(longest, task.max_gap)
    assert half.for_training().slice_names == half.slice_names
    assert torch.equal(
        half.sample(20, Generator().manual_seed(seed)).tokens, task.sample(20, Generator().manual_seed(seed)).tokens
    )
    assert task.for_training() is task


def test_splits_draw_short_gaps_but_for_the_test_split():
    task = Distance(64, train_max_gap=16)
    longest = {split: int(gaps(task, held_out(task, split, 500, seed=0)).max()) for split in ("validation", "test")}
    longest["training"] = int(gaps(task, next(training_batches(task, 500, seed=0))).max())
    assert longest == {"validation": 16, "test": 60, "training": 16}


def test_no_slice_mixes_trained_gaps_with_others():
    assert Distance(64, train_max_gap=20).slice_names == ("4", "8", "16", "21", "32")
    assert Distance(64, train_max_gap=15).slice_names == ("4", "8", "16", "32")
    assert Distance(64, train_max_gap=60).slice_names == ("4", "8", "16", "32")
    with pytest.raises(ValueError, match="train_max_gap must be 0 or at least n_slots = 4, got 3"):
        Distance(64, train_max_gap=3)


@pytest.mark.parametrize("n_slots", [1, 4, 7])
def test_a_sequence_too_short_names_the_smallest_legal_length(n_slots):
    assert 2 * n_slots == Distance(2 * n_slots, n_slots=n_slots).T
    with pytest.raises(ValueError, match=f"T of at least {2 * n_slots}, got {2 * n_slots - 1}"):
        Distance(2 * n_slots - 1, n_slots=n_slots)


def test_min_t_is_the_smallest_legal_length_of_default_options():
    assert Distance.min_T() == Distance(Distance.min_T()).T
    with pytest.raises(ValueError, match="at least"):
        Distance(Distance.min_T() - 1)


@settings(max_examples=30)
@given(distances(), st.integers(0, 9))
def test_each_sequence_is_in_exactly_one_split(task, seed):
    tokens = task.sample(200, Generator().manual_seed(seed)).tokens
    member = torch.stack([in_split(tokens, split) for split in SPLITS])
    assert (member.sum(0) == 1).all()
    order = torch.randperm(200)
    assert torch.equal(in_split(tokens[order], "test"), in_split(tokens, "test")[order])


def test_splits_share_no_sequence_even_where_plain_draws_would():
    task = Parity(12)  # 4,096 sequences: a training set of this size would contain most of any test set
    training = next(training_batches(task, 20_000, seed=0)).tokens
    rows = {"training": {tuple(row) for row in training.tolist()}}
    for split in ("validation", "test"):
        tokens = held_out(task, split, 300, seed=0).tokens
        rows[split] = {tuple(row) for row in tokens.tolist()}
        assert len(rows[split]) == len(tokens) == 300
    assert len(rows["training"]) > 2_500
    assert not rows["training"] & (rows["validation"] | rows["test"])
    assert not rows["validation"] & rows["test"]


SMALL = {  # some hundred sequences each
    "copy": Copy(10, n_symbols=3),
    "mqar": MQAR(8, n_pairs=1, vocab_size=16),
    "distance": Distance(6, n_slots=2, n_values=3, n_noise=4, train_max_gap=4),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_tasks_share_no_sequence_between_splits(name):
    rows = {
        split: {tuple(row) for row in held_out(SMALL[name], split, 15, seed=0).inputs.tolist()}
        for split in ("validation", "test")
    }
    rows["training"] = {tuple(row) for row in next(training_batches(SMALL[name], 5_000, seed=0)).inputs.tolist()}
    assert min(map(len, rows.values())) >= 15
    assert len(set().union(*rows.values())) == sum(map(len, rows.values()))


def test_a_space_of_16_strings_fills_no_test_set():
    with pytest.raises(ValueError, match=r"copy at T = 8 .* too small: found \d distinct test .* 100 are needed"):
        held_out(Copy(8, n_symbols=2, min_length=4), "test", 100, seed=0)


def test_splits_are_disjoint_across_seeds():
    task = Parity(12)
    training = {tuple(row) for row in next(training_batches(task, 20_000, seed=1)).tokens.tolist()}
    assert not training & {tuple(row) for row in held_out(task, "test", 300, seed=0).tokens.tolist()}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_task_too_small_for_its_split_says_so(split):
    with pytest.raises(ValueError, match=rf"parity at T = 8 .* too small: found \d+ distinct {split}.* 1000"):
        held_out(Parity(8), split, 1000, seed=0)


def test_long_sequences_which_are_drawn_two_at_a_time_fill_their_splits(monkeypatch):
    task = Parity(40)
    whole = held_out(task, "test", 100, seed=0)
    monkeypatch.setattr(splits, "_BLOCK_TOKENS", 2 * task.T)
    assert len(held_out(task, "test", 100, seed=0)) == len(whole) == 100
    with pytest.raises(ValueError, match=r"parity at T = 8 .* too small: found \d+ distinct test"):
        held_out(Parity(8), "test", 1000, seed=0)


def test_what_guesses_are_fitted_on_is_training_data_of_one_block_at_most(monkeypatch):
    sample = training_sample(Parity(12), 2000, seed=0)
    assert len(sample) == 2000
    assert in_split(sample.inputs, "training").all()
    monkeypatch.setattr(splits, "_BLOCK_TOKENS", 64 * 12)
    assert len(training_sample(Parity(12), 2000, seed=0)) == 64


def test_a_task_without_a_training_sequence_says_so():
    everything = Parity(6).sample(500, Generator().manual_seed(0))
    elsewhere = everything.rows(in_split(everything.tokens, "test"))

    class OneSequence(Parity):
        def sample(self, n, generator):
            return elsewhere.rows(torch.zeros(n, dtype=torch.int64))

    with pytest.raises(ValueError, match="no training sequence"):
        next(training_batches(OneSequence(6), 1, seed=0))


@pytest.mark.parametrize("batch_size", [1, 7, 5000])
def test_training_batches_are_whole_fresh_and_do_not_depend_on_the_batch_size(batch_size):
    task = Distance(16)
    stream = training_batches(task, batch_size, seed=0)
    batches = [next(stream) for _ in range(3)]
    assert [len(batch) for batch in batches] == [batch_size] * 3
    joined = Batch.join(batches).tokens
    assert torch.equal(joined, next(training_batches(task, 3 * batch_size, seed=0)).tokens)
    assert len({tuple(row) for row in joined.tolist()}) == len(joined)


@pytest.mark.parametrize(("n_distinct", "batch_size"), [(1, 5), (7, 7), (10, 4), (3, 8)])
def test_few_training_sequences_are_each_seen_once_before_any_is_seen_again(n_distinct, batch_size):
    task = Distance(16)
    stream = training_batches(task, batch_size, 0, n_distinct)
    rows = torch.cat([next(stream).tokens for _ in range(n_distinct)])  # n_distinct · batch_size in all
    expected = held_out(task, "training", n_distinct, 0).tokens
    assert in_split(expected, "training").all()
    for seen in rows.split(n_distinct):
        assert {tuple(row) for row in seen.tolist()} == {tuple(row) for row in expected.tolist()}
    if n_distinct == 10:
        assert not torch.equal(rows[:10], rows[10:20])
    again = training_batches(task, batch_size, 0, n_distinct)
    assert torch.equal(torch.cat([next(again).tokens for _ in range(n_distinct)]), rows)


def test_more_training_sequences_than_there_are_is_an_error():
    with pytest.raises(ValueError, match=r"parity at T = 6 .* found \d+ distinct training .* 100 are needed"):
        next(training_batches(Parity(6), 8, 0, 100))


def test_data_depend_on_task_options_length_seed_and_split_and_on_nothing_else():
    def key(task, split="test", seed=0):
        return fingerprint(held_out(task, split, 20, seed))

    torch.manual_seed(1)
    one = key(Distance(32))
    torch.manual_seed(2)
    assert key(Distance(32)) == one
    named = Distance(32)
    named.options = {**named.options, "another": 1}  # one that changes no draw by itself
    others = [
        key(named),
        key(Distance(33)),
        key(Distance(32, n_values=9)),
        key(Distance(32, n_noise=15)),
        key(Distance(32), seed=1),
        key(Distance(32), split="validation"),
    ]
    assert len({one, *others}) == 7


def test_a_fingerprint_is_the_digest_of_tokens_and_labels():
    batch = Distance(8).sample(3, Generator())
    expected = hashlib.sha256(batch.tokens.numpy().tobytes() + batch.labels.numpy().tobytes()).hexdigest()
    assert fingerprint(batch) == expected
    assert fingerprint(batch.rows(slice(2))) != expected


@given(st.integers(1, 30), st.integers(0, 200), st.integers(0, 200))
def test_slices_partition_sizes_and_end_where_training_ends(low, span, trained):
    lower = edges(low, low + span, trained)
    assert lower[0] == low
    assert lower == sorted(set(lower))
    assert lower[-1] <= low + span
    sizes = torch.arange(low, low + span + 1)
    found = slice_of(sizes, lower)
    for size, index in zip(sizes.tolist(), found.tolist(), strict=True):
        upper = [*lower, math.inf][index + 1]
        assert lower[index] <= size < upper <= max(math.inf if index + 1 == len(lower) else 2 * lower[index], size + 1)
        assert (size <= trained) == (lower[index] <= trained) or trained < low

"""Multi-query recall: what a sequence is, by a solver that reads it like a person."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbench.tasks import IGNORE, Batch
from attnbench.tasks.mqar import MQAR


@st.composite
def tasks(draw) -> MQAR:
    n_pairs = draw(st.integers(1, 6))
    T = draw(st.integers(4 * n_pairs, 4 * n_pairs + 40))
    vocab_size = 2 * draw(st.integers(n_pairs + 1, n_pairs + 20))
    return MQAR(T, n_pairs=n_pairs, vocab_size=vocab_size, slots=draw(st.sampled_from(["power", "uniform"])))


def solve(task: MQAR, tokens: list[int]) -> dict[int, tuple[int, int]]:
    """Position of each query -> its answer, and how far back its key stands."""
    head = 2 * task.n_pairs
    known = {tokens[at]: (tokens[at + 1], at) for at in range(0, head, 2)}
    assert len(known) == task.n_pairs
    return {
        at: (known[token][0], at - known[token][1]) for at, token in enumerate(tokens) if at >= head and token in known
    }


@given(tasks(), st.integers(0, 8), st.integers(0, 99))
def test_labels_are_what_a_reader_finds_and_stand_nowhere_else(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (n, task.T)
    assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices)} == {torch.int64}
    edges = [*map(int, task.slice_names), math.inf]
    for tokens, labels, slices in zip(
        *map(torch.Tensor.tolist, (batch.tokens, batch.labels, batch.slices)), strict=True
    ):
        answers = solve(task, tokens)
        assert {at: label for at, label in enumerate(labels) if label != IGNORE} == {
            at: value for at, (value, _) in answers.items()
        }
        assert [at for at, index in enumerate(slices) if index >= 0] == list(answers)
        assert all(edges[slices[at]] <= back < edges[slices[at] + 1] for at, (_, back) in answers.items())


@given(tasks(), st.integers(1, 8), st.integers(0, 99))
def test_each_key_is_asked_for_once_at_an_even_offset_and_all_else_is_filler(task, n, seed):
    for tokens in task.sample(n, Generator().manual_seed(seed)).tokens.tolist():
        head, tail = tokens[: 2 * task.n_pairs], tokens[2 * task.n_pairs :]
        keys, values = head[::2], head[1::2]
        assert len(set(keys)) == len(set(values)) == task.n_pairs
        assert all(
            1 <= key < task.vocab_size // 2 <= value < task.vocab_size for key, value in zip(keys, values, strict=True)
        )
        assert sorted(token for token in tail[::2] if token) == sorted(keys)
        assert not any(tail[1::2])


@given(tasks(), st.integers(0, 99))
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    one, same, other = (task.sample(30, Generator().manual_seed(s)) for s in (seed, seed, seed + 1))
    assert torch.equal(one.tokens, same.tokens)
    assert torch.equal(one.labels, same.labels)
    assert not torch.equal(one.tokens, other.tokens)


def queries(batch: Batch, task: MQAR):
    """(N, n_slots) bool: which even offsets hold a query."""
    return batch.labels[:, 2 * task.n_pairs : task.T // 2 * 2 : 2] != IGNORE


def test_slots_are_drawn_by_weight():
    drawn = {}
    for slots in ("power", "uniform"):
        task = MQAR(34, n_pairs=1, vocab_size=8, slots=slots)
        drawn[slots] = queries(task.sample(40_000, Generator().manual_seed(0)), task).double().mean(0)
    weights = torch.arange(1, 17, dtype=torch.float64) ** -0.99
    assert drawn["power"] == pytest.approx((weights / weights.sum()).numpy(), abs=0.01)
    assert drawn["uniform"] == pytest.approx(torch.full((16,), 1 / 16).numpy(), abs=0.01)


def test_every_query_may_ask_for_any_key():
    task = MQAR(16, n_pairs=4, vocab_size=10, slots="uniform")
    batch = task.sample(4000, Generator().manual_seed(0))
    asked = batch.tokens[:, 8::2]  # as many slots as pairs: each holds a query
    keys = batch.tokens[:, None, :8:2]
    rank = (asked[:, :, None] == keys).long().argmax(-1)
    counts = torch.stack([torch.bincount(column, minlength=4) for column in rank.T])
    assert (counts / 4000).numpy() == pytest.approx(0.25, abs=0.03)


def test_mqar_names_its_sizes():
    task = MQAR(64)
    assert (task.vocab_size, task.chance, task.floor) == (128, 1 / 64, 1 / 8)
    assert task.slice_names == ("2", "4", "8", "16", "32")
    assert task.options == {"n_pairs": 8, "vocab_size": 128, "slots": "power"}


@pytest.mark.parametrize("n_pairs", [1, 4, 7])
def test_a_sequence_too_short_names_the_smallest_legal_length(n_pairs):
    assert MQAR.min_T(n_pairs=n_pairs) == MQAR(4 * n_pairs, n_pairs=n_pairs).T
    with pytest.raises(ValueError, match=f"T of at least {4 * n_pairs}, got {4 * n_pairs - 1}"):
        MQAR(4 * n_pairs - 1, n_pairs=n_pairs)


def test_min_t_is_the_smallest_legal_length_of_default_options():
    assert MQAR.min_T() == MQAR(MQAR.min_T()).T
    with pytest.raises(ValueError, match="at least"):
        MQAR(MQAR.min_T() - 1)


@pytest.mark.parametrize("vocab_size", [8, 9, 11])
def test_a_vocabulary_without_a_key_for_each_pair_is_refused(vocab_size):
    with pytest.raises(ValueError, match=f"even vocab_size of at least 10, got vocab_size = {vocab_size}"):
        MQAR(64, n_pairs=4, vocab_size=vocab_size)

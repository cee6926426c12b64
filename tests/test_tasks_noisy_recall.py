"""Noisy recall: keys that come again ask for their value, noise asks for nothing, and no guess beats the floor."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbench.splits import held_out
from attnbench.tasks import IGNORE
from attnbench.tasks.noisy_recall import NoisyRecall

SEEDS = st.integers(0, 99)


@st.composite
def tasks(draw) -> NoisyRecall:
    n_noise, n_keys = draw(st.integers(1, 5)), draw(st.integers(2, 8))
    return NoisyRecall(
        draw(st.integers(5, 50)),
        vocab_size=2 * n_keys + n_noise,
        n_noise=n_noise,
        noise=draw(st.sampled_from([0, 0.2, 0.9])),
    )


def pairs_of(task, tokens):
    """Where a key stands, and which; noise pairs are checked and left out."""
    for t in range(0, task.T, 2):
        pair = tokens[t : t + 2]
        if pair[0] >= 2 * task.n_keys:
            assert all(2 * task.n_keys <= token < task.vocab_size for token in pair)
            continue
        assert 0 <= pair[0] < task.n_keys
        assert all(task.n_keys <= value < 2 * task.n_keys for value in pair[1:])
        yield t, pair


@given(tasks(), st.integers(0, 8), SEEDS)
def test_a_key_that_was_shown_asks_for_its_value_and_nothing_else_is_scored(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (n, task.T)
    assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices)} == {torch.int64}
    edges = [*map(int, task.slice_names), math.inf]
    for tokens, labels, slices in zip(batch.tokens.tolist(), batch.labels.tolist(), batch.slices.tolist(), strict=True):
        value, last, expected = {}, {}, [IGNORE] * task.T
        for t, (key, *shown) in pairs_of(task, tokens):
            if key in value:
                expected[t] = value[key]
                assert edges[slices[t]] <= t - last[key] < edges[slices[t] + 1]
                assert shown in ([value[key]], [])
            value |= dict.fromkeys([key], *shown) if shown else {}
            last[key] = t
        assert labels == expected
        assert len(set(value.values())) == len(value)
        assert [index >= 0 for index in slices] == [label != IGNORE for label in labels]


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


@pytest.mark.parametrize("noise", [0, 0.2, 0.7])
def test_the_share_of_noise_is_what_was_asked_for(noise):
    tokens = NoisyRecall(20, noise=noise).sample(20_000, Generator().manual_seed(0)).tokens
    assert (tokens[:, ::2] >= 16).double().mean().item() == pytest.approx(noise, abs=0.005)
    assert torch.equal(tokens[:, ::2] >= 16, tokens[:, 1::2] >= 16)


def guessed(task, batch, how) -> float:
    """Accuracy, over scored positions, of a guess among the values that stand before a position."""
    generator, right, n_scored = Generator().manual_seed(1), 0, 0
    value = torch.arange(task.n_keys, 2 * task.n_keys)
    for t in range(2, task.T, 2):
        counts = (batch.tokens[:, :t, None] == value).sum(1)
        scored = batch.labels[:, t] != IGNORE
        noise = torch.rand(counts.shape, generator=generator)
        rank = counts + noise if how == "commonest" else (counts > 0) * (1 + noise)
        right += (value[rank.argmax(1)] == batch.labels[:, t])[scored].sum().item()
        n_scored += scored.sum().item()
    return right / n_scored


@pytest.mark.parametrize("how", ["any", "commonest"])
@pytest.mark.parametrize(("T", "noise"), [(5, 0.2), (16, 0), (33, 0.5)])
def test_the_floor_is_the_score_of_any_guess_among_the_values_shown_so_far(T, noise, how):
    task = NoisyRecall(T, noise=noise)
    batch = task.sample(20_000, Generator().manual_seed(0))
    assert guessed(task, batch, how) == pytest.approx(task.floor, abs=0.01)
    labels = batch.labels[batch.labels != IGNORE]
    assert (labels == task.n_keys).double().mean().item() == pytest.approx(task.chance, abs=0.01)


def test_noisy_recall_names_its_sizes():
    task = NoisyRecall(128)
    assert (task.vocab_size, task.chance) == (32, 1 / 8)
    assert task.slice_names == ("2", "4", "8", "16", "32", "64")
    assert task.options == {"vocab_size": 32, "n_noise": 16, "noise": 0.2}
    assert task.roles == ("causal",)


def test_a_sequence_too_short_names_the_smallest_legal_length():
    assert NoisyRecall.min_T() == NoisyRecall(5).T == 5
    with pytest.raises(ValueError, match="T of at least 5, got 4"):
        NoisyRecall(4)


@pytest.mark.parametrize("vocab_size", [17, 18, 19, 21])
def test_a_vocabulary_without_two_keys_and_as_many_values_is_refused(vocab_size):
    with pytest.raises(ValueError, match=f"an even number from 4 on, got vocab_size = {vocab_size}"):
        NoisyRecall(64, vocab_size=vocab_size)


def test_a_space_of_few_sequences_fills_no_test_set():
    with pytest.raises(ValueError, match="too small"):
        held_out(NoisyRecall(5, vocab_size=5, n_noise=1), "test", 100, seed=0)

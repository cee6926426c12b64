"""N-gram lookup: the key stands once in the string, and the answer is what follows it there."""

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
    in_slice,
    rows,
    worth,
)

from attnbench.tasks import IGNORE
from attnbench.tasks.ngram_lookup import NgramLookup

SEEDS = st.integers(0, 99)
KEYS = ["prefix", "suffix"]


@st.composite
def tasks(draw) -> NgramLookup:
    n_gram, n_answer = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    T = draw(st.integers(2 * (n_gram + n_answer), 40))
    fewest = next(n for n in range(2, 50) if n**n_gram >= T - n_gram - n_answer)
    options = {"n_gram": n_gram, "n_answer": n_answer, "n_symbols": fewest + draw(st.integers(0, 9))}
    return NgramLookup(T, key=draw(st.sampled_from(KEYS)), **options)


@given(tasks(), st.integers(0, 8), SEEDS)
def test_the_key_stands_once_in_the_string_and_the_answer_is_what_follows_it(task, n, seed):
    batch = drawn(task, n, seed)
    assert_well_formed(task, batch)
    for tokens, labels, slices in rows(batch):
        mark = tokens.index(task.separator)
        first = task.n_gram if task.key == "prefix" else 0  # of the string
        string, behind = tokens[first:mark], tokens[mark + 1 :]
        key = tokens[:first] or behind[: task.n_gram]
        given_ = behind if task.key == "prefix" else behind[task.n_gram :]
        places = [at for at in range(len(string)) if string[at : at + task.n_gram] == key]
        assert len(string) == task.T - task.n_gram - task.n_answer
        assert len(places) == 1
        at = places[0] + task.n_gram
        answer = string[at : at + task.n_answer]
        assert len(answer) == task.n_answer
        assert given_ == answer[:-1]
        due = task.T - task.n_answer
        assert labels == [IGNORE] * due + answer
        assert slices[:due] == [-1] * due
        assert all(in_slice(task, index, due - first - at) for index in slices[due:])


@given(tasks(), SEEDS)
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    assert_repeatable(task, seed)


@pytest.mark.parametrize("key", KEYS)
def test_both_the_nearest_and_the_farthest_place_of_a_key_occur(key):
    task = NgramLookup(20, key=key, n_gram=1, n_answer=2)
    seen = set(drawn(task, 2000).slices[:, -1].tolist())
    assert seen == set(range(len(task.slice_names)))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("options", [{}, {"n_gram": 3, "n_answer": 2, "n_symbols": 26}])
def test_the_floor_is_the_score_of_the_commonest_symbol_and_a_fixed_guess_is_worth_chance(key, options):
    task = NgramLookup(64, key=key, **options)
    batch = drawn(task)
    string = batch.tokens[:, task.n_gram : -task.n_answer - 1] if key == "prefix" else batch.tokens[:, : task.length]
    assert worth(batch, commonest(string, task.n_symbols)[:, None]) == pytest.approx(task.floor, abs=0.01)
    for guess in (0, task.n_symbols - 1):
        assert worth(batch, guess) == pytest.approx(task.chance, abs=0.01)


def test_ngram_lookup_names_its_sizes():
    task = NgramLookup(64)
    assert (task.vocab_size, task.chance, task.slice_names) == (33, 1 / 32, ("6", "12", "24", "48"))
    assert NgramLookup(64, key="prefix").slice_names == ("4", "8", "16", "32")
    assert task.options == {"key": "suffix", "n_gram": 2, "n_answer": 4, "n_symbols": 32}
    assert_registered("ngram_lookup", NgramLookup)


@pytest.mark.parametrize("options", [{}, {"key": "prefix"}, {"n_gram": 1, "n_answer": 1}, {"n_gram": 3}])
def test_a_sequence_too_short_names_the_smallest_legal_length(options):
    assert_smallest(NgramLookup, 2 * (options.get("n_gram", 2) + options.get("n_answer", 4)), **options)


def test_too_few_ngrams_for_the_string_are_refused():
    assert NgramLookup(22, n_symbols=4).length == 16
    with pytest.raises(ValueError, match="needs 17 different n-grams at least; n_symbols = 4 and n_gram = 2 give 16"):
        NgramLookup(23, n_symbols=4)


def test_a_draw_is_the_same_whatever_the_global_state():
    task = NgramLookup(22, n_symbols=4)  # where most strings are drawn more than once
    torch.manual_seed(1)
    one = drawn(task, 200).tokens
    torch.manual_seed(2)
    assert torch.equal(drawn(task, 200).tokens, one)

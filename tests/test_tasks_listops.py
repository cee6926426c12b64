"""ListOps: expressions as text, evaluated by a reader of its own."""

from random import Random
from statistics import median

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from attnbench.splits import held_out
from attnbench.tasks import IGNORE
from attnbench.tasks.listops import ListOps
from attnbench.tasks.trees import Shape, grow, values

WORDS = [*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]"]
APPLY = {"[MIN": min, "[MAX": max, "[MED": lambda x: int(median(x)), "[SM": lambda x: sum(x) % 10}


@st.composite
def tasks(draw) -> ListOps:
    min_length = draw(st.integers(4, 12))
    max_length = draw(st.sampled_from([0, min_length + 12]))
    return ListOps(
        min_length + 13 + draw(st.integers(0, 9)),
        min_length=min_length,
        max_length=max_length,
        max_depth=draw(st.integers(4, 7)),
        max_args=draw(st.integers(3, 6)),
    )


def evaluate(words: list[str]) -> tuple[int, list[str], int]:
    """What the expression at the head of some words comes to, the words behind it, and its levels."""
    head, *rest = words
    if head not in APPLY:
        return int(head), rest, 1
    arguments, depth = [], 0
    while rest[0] != "]":
        value, rest, levels = evaluate(rest)
        arguments.append(value)
        depth = max(depth, levels)
    return APPLY[head](arguments), rest[1:], depth + 1


@given(tasks(), st.integers(0, 5), st.integers(0, 99))
def test_the_label_at_the_end_is_what_the_text_comes_to_and_nothing_else_is_scored(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (n, task.T)
    assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices)} == {torch.int64}
    assert (batch.labels[:, :-1] == IGNORE).all()
    assert (batch.slices[:, :-1] == -1).all()
    edges = [*map(int, task.slice_names), task.T]
    for tokens, label, index in zip(
        batch.tokens, batch.labels[:, -1].tolist(), batch.slices[:, -1].tolist(), strict=True
    ):
        *words, equals = task.decode(tokens).split()
        value, behind, depth = evaluate(words)
        assert (value, behind, equals) == (label, [], "=")
        assert depth <= task.options["max_depth"]
        assert task.options["min_length"] <= len(words) <= (task.options["max_length"] or task.T - 1)
        assert edges[index] <= len(words) < edges[index + 1]


def test_a_thousand_expressions_survive_decoding_whole_and_agree_with_the_reader():
    task = ListOps(65, max_length=64)
    batch = task.sample(1000, Generator().manual_seed(0))
    for tokens, label in zip(batch.tokens.tolist(), batch.labels[:, -1].tolist(), strict=True):
        *words, _ = task.decode(torch.tensor(tokens)).split()
        assert len(words) <= 64
        assert [WORDS.index(word) for word in words] == tokens[: len(words)]
        assert len(set(tokens[len(words) : -1])) <= 1  # padding alone
        assert sum(word in APPLY for word in words) == words.count("]") > 0
        assert evaluate(words)[:2] == (label, [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[MAX 4 3 [MIN 2 3 ] 1 0 ]", 4),
        ("[MED 1 8 9 2 ]", 5),
        ("[MED 1 2 ]", 1),
        ("[MED 7 7 0 ]", 7),
        ("[SM 9 9 [SM 5 6 ] ]", 9),
        ("[MIN 3 [MAX 1 2 ] ]", 2),
    ],
)
def test_known_expressions(text, value):
    tokens = torch.tensor([[WORDS.index(word) for word in text.split()]])
    assert ListOps.decode(tokens[0]) == text
    assert values(tokens, max_depth=3).item() == value == evaluate(text.split())[0]


@settings(max_examples=40)
@given(tasks(), st.integers(0, 8), st.integers(0, 99))
def test_the_solver_finds_every_label(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert torch.equal(task.solve(batch)[:, -1], batch.labels[:, -1])


@settings(max_examples=15)
@given(tasks(), st.integers(0, 99))
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    one, same, other = (task.sample(30, Generator().manual_seed(s)) for s in (seed, seed, seed + 1))
    assert torch.equal(one.tokens, same.tokens)
    assert torch.equal(one.labels, same.labels)
    assert not torch.equal(one.tokens, other.tokens)


def test_chance_and_floor_are_what_guesses_score():
    task = ListOps(64)
    batch = task.sample(20_000, Generator().manual_seed(5))
    answers, first = batch.labels[:, -1], batch.tokens[:, 0]
    uniform = torch.randint(10, answers.shape, generator=Generator().manual_seed(6))
    assert (uniform == answers).double().mean() == pytest.approx(task.chance, abs=0.01)
    right = sum(
        int((answers[first == operator] == answers[first == operator].mode().values).sum())
        for operator in first.unique()
    )
    assert right / 20_000 == pytest.approx(task.floor, abs=0.015)
    assert task.floor == ListOps(64).floor > 2 * task.chance


def plain_length(depth: int, shape: Shape, random: Random) -> int:
    """Tokens of a tree drawn as Nangia and Bowman draw it, argument by argument; the root is an operator."""
    if depth > 1 and (depth == shape.max_depth or random.random() >= shape.p_operator):
        return 1
    return 2 + sum(plain_length(depth + 1, shape, random) for _ in range(random.randint(2, shape.max_args)))


def test_trees_are_kept_as_often_and_are_as_long_as_those_of_a_plain_recursion():
    shape, random = Shape(max_depth=5, max_args=4, p_operator=0.3, min_length=8, max_length=40), Random(0)
    lengths = [plain_length(1, shape, random) for _ in range(10_000)]
    kept = [length for length in lengths if 8 <= length <= 40]
    trees = grow(10_000, shape, Generator().manual_seed(0))
    assert len(trees) / 10_000 == pytest.approx(len(kept) / 10_000, abs=0.025)
    assert (trees < 15).sum(1).double().mean().item() == pytest.approx(sum(kept) / len(kept), abs=0.6)


def test_expressions_of_the_original_size():
    task = ListOps(2000, min_length=501, max_length=1999, max_depth=10, max_args=10)
    batch = task.sample(60, Generator().manual_seed(0))
    lengths = (batch.tokens < 15).sum(1)
    assert 500 < lengths.min() <= lengths.max() < 2000
    assert torch.equal(task.solve(batch)[:, -1], batch.labels[:, -1])


def test_lengths_that_no_tree_has_are_an_error():
    task = ListOps(40, min_length=20, max_depth=2, max_args=3)
    with pytest.raises(ValueError, match="finds no expression"):
        task.sample(1, Generator().manual_seed(0))


def test_few_expressions_end_in_the_error_of_the_splits():
    with pytest.raises(ValueError, match="too small"):
        held_out(ListOps(5, min_length=4), "test", 200, seed=0)


def test_a_sequence_too_short_names_the_smallest_legal_length():
    assert ListOps.min_T() == ListOps(ListOps.min_T()).T == 22
    assert len(ListOps(22).sample(2, Generator().manual_seed(0))) == 2
    with pytest.raises(ValueError, match="T of at least 22, got 21"):
        ListOps(21)
    with pytest.raises(ValueError, match="T of at least 65, got 64"):
        ListOps(64, max_length=64)
    with pytest.raises(ValueError, match="max_length must be 0 or at least min_length = 21, got 20"):
        ListOps(64, max_length=20)

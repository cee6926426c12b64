"""Images read pixel by pixel: two curves and two dots, and a bar in noise."""

from collections import Counter
from math import isqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from attnbench.tasks import IGNORE
from attnbench.tasks.image_bars import ImageBars
from attnbench.tasks.pathfinder import Pathfinder
from attnbench.tasks.pixels import Pixels

STEPS = {0: (0, 1), 1: (1, 0), 2: (1, 1), 3: (1, -1)}


@st.composite
def tasks(draw) -> Pixels:
    T = draw(st.integers(16, 150))
    if draw(st.booleans()):
        return Pathfinder(T)
    return ImageBars(T, noise=draw(st.sampled_from([0.0, 0.1, 0.3])))


def connected(pixels: dict[tuple[int, int], int]) -> int:
    """1 when one walks from dot to dot over curves."""
    start, goal = (at for at, value in pixels.items() if value == 2)
    reached, todo = {start}, [start]
    while todo:
        row, column = todo.pop()
        for at in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if pixels.get(at) and at not in reached:
                reached.add(at)
                todo.append(at)
    return int(goal in reached)


def way_of_the_bar(pixels: dict[tuple[int, int], int]) -> int:
    """The direction of the longest line of bright pixels, which no other line equals."""
    longest = Counter()
    for way, (down, right) in STEPS.items():
        for at, value in pixels.items():
            length, (row, column) = 0, at
            while value == 1 and pixels.get((row, column)) == 1:
                length, row, column = length + 1, row + down, column + right
            longest[way] = max(longest[way], length)
    (way, best), (_, second) = longest.most_common(2)
    assert best > second
    return way


@given(tasks(), st.integers(0, 5), st.integers(0, 99))
def test_the_last_position_alone_is_scored_with_what_a_person_sees(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    side = isqrt(task.T)
    assert batch.tokens.shape == batch.labels.shape == batch.slices.shape == (n, task.T)
    assert {part.dtype for part in (batch.tokens, batch.labels, batch.slices)} == {torch.int64}
    assert (batch.labels[:, :-1] == IGNORE).all()
    assert (batch.slices[:, :-1] == -1).all()
    assert (batch.slices[:, -1] == 0).all()
    assert ((batch.tokens >= 0) & (batch.tokens < task.vocab_size)).all()
    see = connected if isinstance(task, Pathfinder) else way_of_the_bar
    for tokens, label in zip(batch.tokens.tolist(), batch.labels[:, -1].tolist(), strict=True):
        assert tokens[side**2 :] == [task.padding] * (task.T - side**2)
        assert task.padding not in tokens[: side**2]
        assert see({divmod(at, side): token for at, token in enumerate(tokens[: side**2])}) == label


@given(tasks(), st.integers(0, 8), st.integers(0, 99))
def test_the_solver_finds_every_label(task, n, seed):
    batch = task.sample(n, Generator().manual_seed(seed))
    assert torch.equal(task.solve(batch)[:, -1], batch.labels[:, -1])


@given(tasks(), st.integers(0, 99))
def test_same_generator_state_same_tensors_and_another_state_others(task, seed):
    one, same, other = (task.sample(20, Generator().manual_seed(s)) for s in (seed, seed, seed + 1))
    assert torch.equal(one.tokens, same.tokens)
    assert torch.equal(one.labels, same.labels)
    assert not torch.equal(one.tokens, other.tokens)


def guessed(clue: torch.Tensor, answers: torch.Tensor) -> float:
    """Score of the commonest answer to each clue, learnt on one half and scored on the other."""
    half = len(clue) // 2
    table = torch.zeros(int(clue.max()) + 1, int(answers.max()) + 1)
    table.index_put_((clue[:half], answers[:half]), torch.ones(half), accumulate=True)
    return (table.argmax(1)[clue[half:]] == answers[half:]).double().mean().item()


def test_half_of_the_dots_lie_on_one_curve_and_their_distance_tells_nothing():
    task = Pathfinder(256)
    batch = task.sample(20_000, Generator().manual_seed(5))
    answers = batch.labels[:, -1]
    dots = (batch.tokens == 2).nonzero()[:, 1].view(-1, 2)
    distance = (dots // 16).diff(dim=1).abs() + (dots % 16).diff(dim=1).abs()
    n_on = ((batch.tokens == 1) | (batch.tokens == 2)).sum(1)
    assert 16 <= n_on.min() <= n_on.max() <= 24
    assert task.chance == task.floor == pytest.approx(answers.double().mean().item(), abs=0.02)
    assert guessed(distance[:, 0], answers) == pytest.approx(task.floor, abs=0.02)
    assert guessed(n_on, answers) == pytest.approx(task.floor, abs=0.02)


def test_bars_lie_each_way_equally_often_and_their_brightness_tells_nothing():
    task = ImageBars(256)
    batch = task.sample(20_000, Generator().manual_seed(5))
    answers = batch.labels[:, -1]
    assert (torch.bincount(answers) / 20_000).numpy() == pytest.approx(task.chance, abs=0.02)
    assert guessed(batch.tokens.sum(1), answers) == pytest.approx(task.floor, abs=0.02)


@pytest.mark.parametrize("kind", [Pathfinder, ImageBars])
def test_an_image_of_four_by_four_is_the_smallest(kind):
    assert kind(kind.min_T()).sample(3, Generator().manual_seed(0)).tokens.shape == (3, 16)
    with pytest.raises(ValueError, match="T of at least 16, got 15"):
        kind(15)


def test_the_tasks_name_their_sizes():
    assert (Pathfinder(256).vocab_size, Pathfinder(256).chance, Pathfinder(256).options) == (4, 0.5, {})
    assert (ImageBars(256).vocab_size, ImageBars(256).chance, ImageBars(256).options) == (4, 0.25, {"noise": 0.15})
    assert (ImageBars(256).bar_length, Pathfinder.usual_T) == (8, 256)

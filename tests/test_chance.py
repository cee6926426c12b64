"""At chance: what guessing gives is flagged, what it cannot give is not."""

import numpy as np
import pytest
from frames import frame, scores
from hypothesis import given
from hypothesis import strategies as st

from attnbench.analyse.chance import LEVEL, at_chance, guessed


def cells(*accuracies, seeds=None, **more):
    """One cell per accuracy at T = 64, d = 32, all of one variant or each of its own."""
    (row,) = scores(["x"], sizes=[64], widths=[32], seeds=[0])
    names = [f"v{i}" for i in range(len(accuracies))] if seeds is None else ["v0"] * len(accuracies)
    known = {"chance": 0.1, "floor": 0.25, "n_scored": 400, "n_test": 400} | more
    return frame(row | known | {"label": name, "accuracy": a} for name, a in zip(names, accuracies, strict=True))


@pytest.mark.parametrize("n_test", [100, 400])
def test_four_way_guessing_is_flagged_and_learning_is_not(n_test):
    assert at_chance(cells(0.26, 0.40, 0.99, n_test=n_test)) == {("v0", 32, 64)}


def test_chance_above_the_floor_is_what_counts():
    assert at_chance(cells(0.51, 0.75, chance=0.5, floor=0.25)) == {("v0", 32, 64)}


def test_a_sequence_counts_as_one_answer():
    assert at_chance(cells(0.3, n_scored=4000, n_test=4000)) == set()
    assert at_chance(cells(0.3, n_scored=4000, n_test=100)) == {("v0", 32, 64)}


def test_seeds_are_pooled():
    assert at_chance(cells(0.29)) == {("v0", 32, 64)}
    assert at_chance(cells(*[0.29] * 10, seeds=True)) == set()


@pytest.mark.parametrize("unknown", [{"accuracy": None}, {"chance": None, "floor": None}])
def test_nothing_is_flagged_that_cannot_be_compared(unknown):
    assert at_chance(cells(0.2).assign(**unknown)) == set()
    assert at_chance(frame([])) == set()


@given(n=st.integers(1, 60), guess=st.floats(0.01, 0.99))
def test_the_tail_is_that_of_the_binomial_distribution(n, guess):
    k = np.arange(n + 1)
    tails = guessed(k / n, n, guess)
    mass = np.append(-np.diff(tails), tails[-1])
    assert tails[0] == pytest.approx(1)
    assert (mass * k).sum() == pytest.approx(n * guess)
    assert (mass * k**2).sum() == pytest.approx(n * guess * (1 - guess) + (n * guess) ** 2)


def test_guessing_is_rarely_called_a_result():
    rng = np.random.default_rng(0)
    found = guessed(rng.binomial(400, 0.25, 20000) / 400, 400, 0.25)
    assert 0.3 * LEVEL < (found < LEVEL).mean() < 1.3 * LEVEL

"""Non-negative least squares for many targets at once: the same as one by one, by another algorithm."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from attnbench.analyse.nonnegative import solve


@given(seed=st.integers(0, 10**6), k=st.integers(1, 6), spare=st.integers(0, 20), m=st.integers(1, 5))
def test_every_target_gets_the_solution_of_lawson_and_hanson(seed, k, spare, m):
    noise = np.random.default_rng(seed)
    columns, targets = noise.normal(size=(k + spare, k)) + 0.5, noise.normal(size=(k + spare, m))
    found = solve(columns, targets)
    assert found.shape == (k, m)
    for x, target in zip(found.T, targets.T, strict=True):
        expected, miss = nnls(columns, target)
        assert x.min() >= 0
        assert np.linalg.norm(columns @ x - target) == pytest.approx(miss, rel=1e-6, abs=1e-9)
        if np.linalg.cond(columns) < 1e3:
            assert x == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_a_target_that_every_column_points_away_from_gets_nothing():
    columns = np.array([[1.0, 0.5], [0.2, 1.0]])
    assert solve(columns, np.array([[-1.0], [-2.0]])).tolist() == [[0], [0]]

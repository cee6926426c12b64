"""The commonest of random values: its share, counted over all draws there are."""

from collections import Counter
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from attnbench.tasks.guesses import commonest_share


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 5))
def test_the_share_is_the_mean_over_all_draws(n_draws, n_values):
    most = [max(Counter(draw).values()) for draw in product(range(n_values), repeat=n_draws)]
    assert commonest_share(n_draws, n_values) == pytest.approx(sum(most) / len(most) / n_draws, abs=1e-7)


@pytest.mark.parametrize(("n_draws", "n_values"), [(63, 16), (500, 32), (40, 300)])
def test_the_share_is_what_random_draws_show(n_draws, n_values):
    values = torch.randint(n_values, (5000, n_draws), generator=Generator().manual_seed(0))
    counts = torch.zeros(5000, n_values).scatter_add_(1, values, torch.ones(5000, n_draws))
    shown = counts.amax(1).double().mean().item() / n_draws
    assert commonest_share(n_draws, n_values) == pytest.approx(shown, rel=0.02)


def test_of_many_draws_no_value_is_much_commoner_than_another():
    assert commonest_share(5000, 4) == pytest.approx(1 / 4, abs=0.01)
    assert commonest_share(5000, 4) > 1 / 4

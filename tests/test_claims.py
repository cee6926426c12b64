"""A claim's powers are those that a person reads in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.analyse.claims import highest, products

READ = [
    ("T d^2 + T^2 d", 2, 2),
    ("T d + H T^2", 2, 1),
    ("T d^2 + T d window", 1, 2),
    ("T d^2 + T^1.5 d", 1.5, 2),
    ("T d + H T window + T d^2 / H / window", 1, 2),
    ("T² d", 2, 1),
    ("4 T·d + T S d_head", 2, 1),
    ("T^2 d / window", 2, 1),
    ("T^2 / T", 1, 0),
    ("T d log T + d", 1, 1),
    ("T log2(T) d", 1, 1),
    ("window", 0, 0),
]


@pytest.mark.parametrize(("claim", "T", "d"), READ)
def test_the_highest_powers_of_T_and_d(claim, T, d):
    assert (highest(claim, "T", ["window"]), highest(claim, "d", ["window"])) == (T, d)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5))
def test_the_highest_power_is_that_of_some_term(powers):
    claim = " + ".join(f"T^{T} H d^{d}" for T, d in powers)
    assert highest(claim, "T") == max(T for T, _ in powers)
    assert [(product.T, product.d) for product in products(claim)] == powers


@pytest.mark.parametrize(
    ("claim", "told"),
    [
        ("linear", 'unknown letter "linear"'),
        ("T widnow", 'did you mean "window"'),
        ("T d^", "expected terms like"),
        ("T ^ 2", "expected terms like"),
        ("", "expected terms like"),
        ("T +", "expected terms like"),
        ("(T d)", "expected terms like"),
    ],
)
def test_what_cannot_be_read_is_told(claim, told):
    with pytest.raises(ValueError, match=r".") as error:
        products(claim, ["window"])
    assert told in str(error.value)

"""The small things that many variants share: precision, heads, positions, padding, counts, first steps, imports."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from attnbench import kernels


@pytest.mark.parametrize(
    ("given", "expected"),
    [("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32"), ("float64", "float64")],
)
def test_half_precision_becomes_float32_and_what_is_wider_stays(given, expected):
    x = torch.ones(2, dtype=getattr(torch, given))
    assert kernels.at_least_float32(x).dtype == getattr(torch, expected)
    assert (kernels.at_least_float32(x) is x) == (given == expected)


@pytest.mark.parametrize("T", [0, 1, 5])
def test_heads_are_runs_of_channels(T):
    x = torch.arange(2 * T * 6).view(2, T, 6)
    heads = kernels.split_heads(x, 2)
    assert heads.shape == (2, 3, T, 2)
    for h in range(3):
        assert torch.equal(heads[:, h], x[..., 2 * h : 2 * h + 2])


@given(T=st.integers(0, 6), n=st.integers(0, 6))
def test_the_last_positions_stand_behind_zeros_where_there_are_too_few(T, n):
    x = torch.arange(1.0, T + 1).view(1, 1, T, 1)
    expected = ([0.0] * n + x.flatten().tolist())[T:]
    assert kernels.last_positions(x, n).flatten().tolist() == expected


@given(T=st.integers(0, 40), chunk=st.integers(1, 12))
def test_pairs_inside_chunks_are_counted(T, chunk):
    pairs = [(i, j) for i in range(T) for j in range(T) if i // chunk == j // chunk]
    assert kernels.pairs_in_chunks(T, chunk) == (sum(j <= i for i, j in pairs), len(pairs))


def test_softplus_of_a_step_bias_is_the_step():
    dt = torch.tensor([1e-12, 1e-3, 0.1, 1.0, 40.0]).double()
    assert torch.allclose(F.softplus(kernels.step_bias(dt), threshold=100), dt, rtol=1e-4, atol=0)
    assert torch.allclose(F.softplus(kernels.step_bias(dt[1:]), threshold=100), dt[1:], rtol=1e-12, atol=0)


# Padding


@given(st.lists(st.booleans(), max_size=6))
def test_a_mask_that_hides_more_than_padding_on_the_right_is_refused(row):
    mask = torch.tensor([row, [True] * len(row)], dtype=torch.bool)
    if row == sorted(row, reverse=True):
        kernels.check_right_padding(mask, "a sieve")
        return
    told = "a sieve cannot skip hidden positions: key_mask may only hide padding on the right"
    with pytest.raises(ValueError, match=f"^{told}$"):
        kernels.check_right_padding(mask, "a sieve")


def test_a_prompt_has_no_padding():
    kernels.check_no_padding(None)
    with pytest.raises(ValueError, match=re.escape("in the state: prefill takes no key_mask")):
        kernels.check_no_padding(torch.ones(1, 3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("mask", "decodes", "reason"),
    [
        ("none", True, None),
        ("right", False, None),
        ("right", True, "a padded prompt would leave its padding in the state"),
        ("any", False, "a sieve cannot skip hidden positions, only padding on the right"),
    ],
)
def test_padding_that_cannot_be_has_a_reason(mask, decodes, reason):
    assert kernels.padding_reason(mask, decodes, "a sieve") == reason


# Optional packages


@pytest.mark.parametrize("error", [ImportError, OSError, SystemExit])
def test_a_package_that_fails_in_any_way_is_one_line(error):
    def fail():
        raise error("no driver\nsecond line")

    told = kernels.imported(fail, "sieve", "pip install sieve")
    assert told == f"sieve cannot be used: {error.__name__}: no driver (pip install sieve)"
    assert kernels.imported(lambda: 3, "sieve", "pip install sieve") == 3


def test_an_interrupt_is_no_reason():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kernels.imported(stop, "sieve", "pip install sieve")

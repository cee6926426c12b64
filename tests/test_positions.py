from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnbench.positions import Positions, sinusoidal


@pytest.mark.parametrize(
    ("d_model", "row"),
    [
        (1, [0.841471]),
        (3, [0.841471, 0.540302, 0.0021544]),
        (4, [0.841471, 0.540302, 0.0099998, 0.99995]),
        (5, [0.841471, 0.540302, 0.0251162, 0.9996845, 0.000631]),
    ],
)
def test_position_1_has_the_published_numbers_at_even_and_odd_widths(d_model, row):
    torch.testing.assert_close(sinusoidal(2, d_model)[1], torch.tensor(row), rtol=0, atol=5e-7)


@given(T=st.integers(1, 40), d_model=st.integers(1, 9))
def test_the_table_is_the_formula_of_the_paper_entry_by_entry(T, d_model):
    table = sinusoidal(T, d_model)
    assert table.shape == (T, d_model)
    assert table.dtype == torch.float32
    t = T - 1
    for channel in range(d_model):
        angle = t / 10000 ** (2 * (channel // 2) / d_model)
        assert table[t, channel].item() == pytest.approx((math.cos if channel % 2 else math.sin)(angle), abs=1e-6)


@given(T=st.integers(1, 40), shorter=st.integers(1, 40), d_model=st.integers(1, 9))
def test_a_shorter_table_is_the_beginning_of_a_longer_one(T, shorter, d_model):
    assert torch.equal(sinusoidal(T, d_model)[:shorter], sinusoidal(min(T, shorter), d_model))


@given(t=st.integers(0, 60), offset=st.integers(0, 30), half=st.integers(1, 6))
def test_the_product_of_two_positions_depends_on_their_distance_only(t, offset, half):
    table = sinusoidal(100, 2 * half).double()
    assert (table[t] @ table[t + offset]).item() == pytest.approx((table[0] @ table[offset]).item(), abs=1e-5)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="positions must be 'learned' or 'sinusoidal' or 'none', got 'rotary'"):
        Positions("rotary", 8, 4)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_a_single_token_gets_the_first_position(kind):
    positions, x = Positions(kind, 1, 5), torch.zeros(2, 1, 5)
    assert torch.equal(positions(x)[0, 0], positions.table[0])


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "none"])
@given(T=st.integers(1, 12), cut=st.integers(0, 12))
def test_a_sequence_cut_in_two_gets_the_same_positions(kind, T, cut):
    cut = min(cut, T)
    positions, x = Positions(kind, 12, 3), torch.randn(2, T, 3)
    parts = positions(x[:, :cut]), positions(x[:, cut:], start=cut)
    assert torch.equal(torch.cat(parts, dim=1), positions(x))


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_positions_beyond_the_maximum_are_an_error_that_names_both_numbers(kind):
    positions = Positions(kind, 8, 4)
    positions(torch.zeros(1, 8, 4))
    with pytest.raises(ValueError, match=r"T = 9 .*max_T = 8"):
        positions(torch.zeros(1, 9, 4))
    with pytest.raises(ValueError, match=r"T = 10 .*max_T = 8"):
        positions(torch.zeros(1, 3, 4), start=7)


def test_no_positions_leave_x_alone_at_any_length():
    positions, x = Positions("none", 2, 4), torch.randn(1, 30, 4)
    assert positions(x) is x
    assert not list(positions.parameters())


def test_learned_positions_train_and_are_saved_and_sinusoidal_ones_are_neither():
    learned, fixed = Positions("learned", 6, 4, std=0.5), Positions("sinusoidal", 6, 4)
    assert [tuple(p.shape) for p in learned.parameters()] == [(6, 4)]
    assert list(learned.state_dict()) == ["table"]
    assert not list(fixed.parameters())
    assert not fixed.state_dict()


def test_learned_positions_start_with_the_standard_deviation_asked_for():
    torch.manual_seed(0)
    assert Positions("learned", 200, 100, std=0.3).table.std().item() == pytest.approx(0.3, rel=0.02)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_dtype_of_x_is_kept(kind, dtype):
    assert Positions(kind, 4, 6)(torch.zeros(1, 4, 6, dtype=dtype)).dtype == dtype

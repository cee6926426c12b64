"""Where one variant becomes another: the same weights then give the same outputs and gradients."""

import pytest
import torch
from cores import assert_equal, build, noise, values_and_gradients

WIDE = {"window": 100}


def both(one, other, x):
    """Values and gradients of both, of x and of every parameter, once the second has the weights of the first."""
    other.load_state_dict(one.state_dict())
    return [values_and_gradients(lambda m=m: m(x), [x, *m.parameters()]) for m in (one, other)]


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize("T", [1, 7, 33])
def test_a_window_of_all_positions_is_full_attention(role, T):
    window, full = both(build("window", role, **WIDE), build("full", role), noise(2, T, 12))
    assert_equal(window, full, 1e-12)
    narrow, _ = both(build("window", role, window=2), build("full", role), noise(2, 33, 12))
    assert not torch.allclose(narrow[0], both(build("full", role), build("full", role), noise(2, 33, 12))[0][0])


@pytest.mark.parametrize("T", [1, 7, 33])
def test_a_stride_of_one_or_of_all_positions_is_full_attention_in_the_heads_that_it_fills(T):
    x = noise(2, T, 12)
    for stride, heads in ((1, slice(2, 3)), (100, slice(0, 2))):  # strided heads see every position; local ones do
        mixer, full = build("strided", stride=stride), build("full")
        full.load_state_dict(mixer.state_dict())
        q, k, v = mixer.project(x, x)
        assert_equal([mixer.attend(q, k, v)[:, heads]], [full.attend(q, k, v)[:, heads]], 1e-12)


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_fused_attention_is_full_attention(role):
    assert_equal(*both(build("fused", role), build("full", role), noise(2, 65, 12)), 1e-12)


def test_one_head_per_group_is_ordinary_attention():
    assert_equal(*both(build("full", n_kv_heads=3), build("full"), noise(2, 33, 12)), 1e-12)


@pytest.mark.parametrize("role", ["causal", "bidirectional", "cross"])
def test_attention_with_equal_scores_is_the_mean(role):
    full, mean, x, context = build("full", role), build("mean", role), noise(2, 9, 12), noise(2, 5, 12, seed=1)
    mean.load_state_dict(full.state_dict(), strict=False)
    with torch.no_grad():
        full.W_q.weight.zero_()
    given = {"context": context} if role == "cross" else {}
    assert_equal([full(x, **given)], [mean(x, **given)], 1e-12)


def test_linear_attention_with_equal_features_is_the_mean():
    linear, mean, x = build("linear"), build("mean"), noise(2, 70, 12)
    mean.load_state_dict(linear.state_dict(), strict=False)
    with torch.no_grad():
        linear.W_q.weight.zero_()
        linear.W_k.weight.zero_()
    assert_equal([linear(x)], [mean(x)], 1e-5)  # the normaliser carries 1e-6


def test_the_mean_of_one_position_is_no_mixing():
    assert_equal(*both(build("mean"), build("none"), noise(2, 1, 12)), 1e-12)


def test_a_convolution_of_one_tap_mixes_nothing():
    mixer, x = build("tcn", kernel=1), noise(1, 9, 12)
    assert_equal([mixer(x)], [torch.cat([mixer(x[:, t : t + 1]) for t in range(9)], dim=1)], 1e-12)

from __future__ import annotations

import pytest
import slow_forms
import torch
import torch.nn.functional as F
from cores import assert_equal, noise, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.kernels import (
    band,
    masked_attention,
    matrix_recurrence,
    overlapping_blocks,
    visible_keys,
    window_attention,
)

CPU = torch.device("cpu")
SIZES = st.integers(1, 9)


@settings(deadline=None, max_examples=40)
@given(T=st.integers(0, 40), chunk=st.integers(1, 50), B=SIZES, H=SIZES, d_k=SIZES, d_v=SIZES)
def test_matrix_recurrence_equals_token_by_token(T, chunk, B, H, d_k, d_v):
    q, k, v = noise(B, H, T, d_k, seed=1), noise(B, H, T, d_k, seed=2), noise(B, H, T, d_v, seed=3)
    state = noise(B, H, d_k, d_v, seed=4)

    def total(form):  # y and the last state in one tensor, so that both carry gradients
        y, last = form(q, k, v, state)
        return torch.cat((y.flatten(), last.flatten()))

    fast = values_and_gradients(lambda: total(lambda *given: matrix_recurrence(*given, chunk=chunk)), [q, k, v, state])
    slow = values_and_gradients(lambda: total(slow_forms.matrix_recurrence), [q, k, v, state])
    assert_equal(fast, slow, 1e-12)


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
def test_a_matrix_recurrence_in_numbers(chunk):
    one, v = torch.ones(1, 1, 3, 1), torch.tensor([1.0, 2.0, 4.0]).view(1, 1, 3, 1)
    y, last = matrix_recurrence(one, one, v, torch.zeros(1, 1, 1, 1), chunk=chunk)
    assert y.flatten().tolist() == [1, 3, 7]
    assert last.item() == 7


def test_matrix_recurrence_goes_on_from_its_own_state():
    q, k, v, state = (
        noise(2, 3, 23, 4),
        noise(2, 3, 23, 4, seed=1),
        noise(2, 3, 23, 5, seed=2),
        noise(2, 3, 4, 5, seed=3),
    )
    whole = matrix_recurrence(q, k, v, state, chunk=8)
    first, between = matrix_recurrence(q[:, :, :9], k[:, :, :9], v[:, :, :9], state, chunk=8)
    second, last = matrix_recurrence(q[:, :, 9:], k[:, :, 9:], v[:, :, 9:], between, chunk=8)
    assert_equal([torch.cat((first, second), dim=2), last], list(whole), 1e-12)


@settings(deadline=None, max_examples=40)
@given(*(st.integers(*limits) for limits in ((1, 20), (1, 12), (1, 5), (0, 11), (0, 15))))
def test_overlapping_blocks_are_slices_and_so_are_their_gradients(size, step, n, spare, start):
    x = noise(2, 3, start + (n - 1) * step + size + min(spare, step - 1), 4)

    def slices():
        firsts = range(start, start + n * step, step)
        return torch.stack([x[:, :, first : first + size] for first in firsts], dim=2)

    fast = values_and_gradients(lambda: overlapping_blocks(x, size, step, start), [x])
    assert_equal(fast, values_and_gradients(slices, [x]), 1e-12)


def test_overlapping_blocks_copy_nothing():
    x = noise(1, 2, 100, 4)
    assert overlapping_blocks(x, 30, 7).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@given(T=st.integers(1, 9), S=st.integers(1, 9))
def test_visible_keys_are_those_of_the_pairwise_definition(causal, masked, T, S):
    key_mask = torch.arange(2 * S).view(2, S) % 3 > 0 if masked else None
    seen = visible_keys(T, S, causal=causal, key_mask=key_mask, device=CPU)
    expected = slow_forms.visible(T, S, "causal" if causal else "cross", key_mask=key_mask)[:, None]
    everything = torch.ones(expected.shape, dtype=torch.bool)
    assert torch.equal(everything if seen is None else seen.expand(expected.shape), expected)


def test_no_mask_is_built_where_every_key_is_visible():
    assert visible_keys(3, 5, causal=False, key_mask=None, device=CPU) is None
    assert visible_keys(1, 5, causal=True, key_mask=None, device=CPU) is None


@given(T=st.integers(1, 9), S=st.integers(1, 9), window=st.integers(1, 12))
def test_a_band_is_a_window(T, S, window):
    causal = band(T, S, back=window - 1, ahead=0, offset=S - T, device=CPU)
    assert torch.equal(causal, slow_forms.visible(T, S, "causal", window=window)[0])
    both = band(T, S, back=window // 2, ahead=window // 2, offset=S - T, device=CPU)
    assert torch.equal(both, slow_forms.visible(T, S, "bidirectional", window=window)[0])


@pytest.mark.parametrize("shape", [(6, 9), (2, 1, 1, 9), (2, 1, 6, 9)])
def test_masked_attention_is_softmax_over_the_visible_keys_and_0_without_any(shape):
    visible = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.4
    visible[..., -1, :] = False
    q, k, v = (torch.randn(2, 3, n, 4, dtype=torch.float64, requires_grad=True) for n in (6, 9, 9))
    scores = (q @ k.mT / 2).masked_fill(~visible, -torch.inf)
    blind = ~visible.any(-1, keepdim=True)
    expected = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(~visible, 0.0) @ v
    y = masked_attention(q, k, v, visible)
    torch.testing.assert_close(y, expected)
    assert not y[blind.expand(2, 3, 6, 1)[..., 0]].any()
    seed = torch.randn_like(y)
    for found, wanted in zip(*(torch.autograd.grad(out, (q, k, v), seed) for out in (y, expected)), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(("ahead", "n_calls"), [(0, 2), (9, 3)])  # the ends whose windows stick out, and the blocks
def test_no_kernel_is_shown_a_query_without_keys(monkeypatch, ahead, n_calls):
    real, shown = F.scaled_dot_product_attention, []

    def watched(q, k, v, attn_mask=None, **kwargs):
        shown.append(attn_mask)
        return real(q, k, v, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    key_mask = torch.zeros(2, 80, dtype=torch.bool)
    key_mask[0, :30] = True
    q = torch.randn(2, 1, 80, 4)
    y = window_attention(q, q, q, key_mask, back=9, ahead=ahead)
    assert len(shown) == n_calls
    assert all(mask.any(-1).all() for mask in shown)
    assert not y[1].any()
    assert not y[0, :, 39:].any()
    assert y[0, :, :39].any(-1).all()

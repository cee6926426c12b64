"""BigBird equals softmax under its dense mask; its random blocks are stored, and reach every position of any length."""

from __future__ import annotations

import math

import pytest
import torch
from cores import BUILT_IN, assert_equal, build, core, noise, qkv, ragged_mask, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.kernels import plain_attention
from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec, Use
from attnbench.options import resolve


def made(max_T=300, n_heads=3, layer=0, **options):
    torch.manual_seed(0)
    return BUILT_IN["bigbird"](Spec(4 * n_heads, n_heads, max_T, "bidirectional", layer), **options).double()


def dense_mask(mixer, T):
    """(H, T, T) from the definition, block by block."""
    b = mixer.block
    n = -(-T // b)
    random = mixer.random_blocks(n)
    seen = torch.zeros(mixer.spec.n_heads, n, n, dtype=torch.bool)
    for head in range(mixer.spec.n_heads):
        for row in range(n):
            blocks = (
                range(n) if row in (0, n - 1) else {0, n - 1, row - 1, row, row + 1, *random[head, row - 1].tolist()}
            )
            seen[head, row, list(blocks)] = True
    return seen.repeat_interleave(b, 1).repeat_interleave(b, 2)[:, :T, :T]


def check_core(T, key_mask=None, *, d_v=4, **options):
    inputs = qkv(T, T, B=4 if key_mask is not None else 2, d_v=d_v)
    mixer = core("bigbird", "bidirectional", d_v=d_v, **options)
    slow = mixer.slow_attend if key_mask is not None else lambda *a, key_mask: plain_attention(*a, dense_mask(mixer, T))
    found, expected = (
        values_and_gradients(lambda a=attend: a(*inputs, key_mask=key_mask), inputs) for attend in (mixer.attend, slow)
    )
    assert_equal(found, expected, 1e-11)


@pytest.mark.parametrize(("block", "n_random"), [(1, 1), (4, 2), (8, 1), (16, 2), (8, 30), (300, 1)])
def test_it_equals_its_dense_mask_at_every_length(block, n_random):
    for T in (1, 2, 7, 16, 17, 33, 63, 64, 65, 97, 128, 130):
        check_core(T, block=block, n_random=n_random)
    for T in (1, 17, 65, 130):
        check_core(T, ragged_mask(4, T), block=block, n_random=n_random)
    check_core(97, block=block, n_random=n_random, d_v=2)


@settings(deadline=None, max_examples=40)
@given(T=st.integers(1, 150), block=st.integers(1, 40), n_random=st.integers(1, 5), masked=st.booleans())
def test_any_block_at_any_length(T, block, n_random, masked):
    check_core(T, ragged_mask(4, T) if masked else None, block=block, n_random=n_random)


def test_random_blocks_are_distinct_and_neither_global_nor_near_and_as_many_as_there_are():
    mixer = made(max_T=4096, block=16, n_random=3)
    for n in (3, 4, 5, 6, 7, 8, 9, 20, 256):
        random = mixer.random_blocks(n)
        assert random.shape == (3, n - 2, 3)
        for head in random.tolist():
            for row, blocks in enumerate(head, start=1):
                others = set(range(n)) - {0, n - 1, row - 1, row, row + 1}
                assert set(blocks) - {row} <= others
                assert len(set(blocks) - {row}) == min(3, len(others))


def test_random_blocks_reach_every_part_of_a_long_sequence_evenly():
    blocks = made(max_T=4096, n_heads=4, block=16, n_random=2).random_blocks(256).flatten()
    assert int(blocks.max()) * 16 > 4000
    parts = torch.bincount(blocks // 64, minlength=4)
    assert (parts - len(blocks) / 4).abs().max() < 5 * math.sqrt(len(blocks) / 4)
    short = made(max_T=4096, block=16).random_blocks(20)
    assert (int(short.min()), int(short.max())) == (1, 18)


def test_a_short_sequence_changes_nothing_for_a_long_one():
    """Hard case 16: bitwise the same, and the record says the same."""
    used, fresh = made(max_T=2048, n_heads=1), made(max_T=2048, n_heads=1)
    x, short = noise(1, 2048, 4), noise(1, 32, 4)
    with torch.no_grad():
        used(short)
        assert used.extra_record() == {"attention": "dense"}
        assert torch.equal(used(x), fresh(x))
    assert used.extra_record() == fresh.extra_record() == {"attention": "blocks"}


def test_blocks_are_drawn_by_seed_head_and_layer_and_travel_with_the_state():
    one, same = made(seed=1), made(seed=1)
    assert torch.equal(one.draws, same.draws)
    for other in (made(seed=2), made(seed=1, layer=1)):
        assert not torch.equal(one.random_blocks(19), other.random_blocks(19))
    random = one.random_blocks(19)
    assert not torch.equal(random[0], random[1])
    other = made(seed=2)
    other.load_state_dict(one.state_dict())
    x = noise(1, 300, 12)
    assert torch.equal(other(x), one(x))
    assert torch.equal(one.bfloat16().random_blocks(19), random)


def test_below_as_many_blocks_as_a_row_sees_it_is_full_attention():
    inputs = qkv(63, 63)
    full = values_and_gradients(lambda: core("full", "bidirectional").attend(*inputs), inputs)
    for sizes in ({"block": 16}, {"block": 13}, {"block": 300}, {"block": 9, "n_random": 9}):
        mixer = core("bigbird", "bidirectional", **sizes)
        assert_equal(values_and_gradients(lambda m=mixer: m.attend(*inputs), inputs), full, 1e-12)


def test_padding_changes_no_block_of_a_shorter_row():
    mixer, x = made(), noise(2, 300, 12)
    key_mask = torch.arange(300) < torch.tensor([[300], [170]])
    y = mixer(x, key_mask=key_mask)
    assert_equal([y[:1], y[1:, :170]], [mixer(x[:1]), mixer(x[1:, :170])], 1e-12)
    assert not y[1, 170:].any()


def test_flops_count_the_pairs_of_the_definition_and_those_that_torch_counts():
    for block, n_random in ((4, 2), (16, 1), (7, 3)):
        mixer = build("bigbird", "bidirectional", block=block, n_random=n_random, d_v=3)
        for T in (1, 2, 40, 64, 130, 300):
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                mixer(torch.zeros(1, T, 12).double())
            flops = mixer.flops(T, T)
            assert flops.executed + flops.projection == counter.get_total_flops()
            assert flops.core == pytest.approx(mixer.pair_flops(int(dense_mask(mixer, T).sum()) / 3))


def test_training_memory_is_linear():
    def training(T):
        mixer, inputs = made(max_T=T, n_heads=2, block=8), qkv(T, T, H=2)
        return peak_bytes(lambda: torch.autograd.grad(mixer.attend(*inputs).sum(), inputs), "cpu")

    assert math.log(training(4096) / training(1024)) / math.log(4) <= 1.2


def test_what_cannot_be_has_a_reason():
    bigbird = BUILT_IN["bigbird"]
    for role in ("causal", "cross"):
        assert "the only role is bidirectional" in bigbird.unsupported(Spec(8, 2, 8, role), Use(8, 8))
        with pytest.raises(ValueError, match="the only role is bidirectional"):
            build("bigbird", role)
    place = Spec(8, 2, 8, "bidirectional")
    assert "decoding needs a causal or cross role" in bigbird.unsupported(place, Use(8, 8, phase="decode"))
    assert "drawn for max_T = 8 positions, got T = 9" in bigbird.unsupported(place, Use(9, 9))
    with pytest.raises(ValueError, match="up to max_T = 300, got T = 3 and S = 5"):
        core("bigbird", "bidirectional").attend(*qkv(3, 5))
    for name in ("block", "n_random"):
        for value in (0, -1, 2.5):
            assert [option for option, _ in resolve(bigbird, {name: value})[1]] == [name]
    assert [option for option, _ in resolve(bigbird, {"seed": -1})[1]] == ["seed"]

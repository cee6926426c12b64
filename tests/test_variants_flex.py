"""FlexAttention equals its dense mask, compiled and not; what it cannot do on a CPU has a reason."""

from __future__ import annotations

import pytest
import torch
from cores import BUILT_IN, assert_equal, build, core, noise, qkv, ragged_mask, values_and_gradients

from attnbench.forms import equals_slow_form
from attnbench.kernels import plain_attention
from attnbench.mixer import Spec, Use
from attnbench.options import resolve
from attnbench.subject import Subject

BOTH_ROLES = ("causal", "bidirectional")
MASKS = ("full", "window", "strided", "fixed")


def options(mask, size=5):
    return {"mask": mask} | ({} if mask == "full" else {"size": size})


def seen_by_hand(mask, role, T, size):
    def sees(i, j):
        if role == "causal" and j > i:
            return False
        near = abs(i - j) <= size // 2 if role == "bidirectional" else i - j < size
        return {
            "full": True,
            "window": near,
            "strided": near or (i - j) % size == 0,
            "fixed": i // size == j // size or j % size == size - 1,
        }[mask]

    return torch.tensor([[sees(i, j) for j in range(T)] for i in range(T)])


@pytest.mark.parametrize("size", [1, 2, 5, 40])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("role", BOTH_ROLES)
def test_each_mask_is_the_one_of_its_definition_and_its_pairs_are_counted(role, mask, size):
    for T in (1, 2, 7, 23):
        inputs, mixer, seen = qkv(T, T), core("flex", role, **options(mask, size)), seen_by_hand(mask, role, T, size)
        expected = values_and_gradients(lambda i=inputs, s=seen: plain_attention(*i, s), inputs)
        for attend in (mixer.attend, mixer.slow_attend):
            assert_equal(values_and_gradients(lambda a=attend, i=inputs: a(*i), inputs), expected, 1e-12)
        assert mixer.flops(T, T).core == mixer.pair_flops(int(seen.sum()))


@torch.no_grad()
def test_compiled_it_equals_its_slow_form_at_any_length():
    """One compilation serves them all; T is no multiple of 128."""
    for T, S, size in ((300, 300, 5), (517, 517, 130), (259, 259, 600)):
        mixer = core("flex", mask="window", size=size, d_k=8, d_v=8).float()
        inputs = [x.float() for x in qkv(T, S, d_k=8, d_v=8)]
        assert_equal([mixer.attend(*inputs)], [mixer.slow_attend(*inputs)], 1e-5)
        assert mixer.extra_record() == {"backend": "flex"}
        short = [x[:, :, :200] for x in inputs]
        assert_equal([mixer.attend(*short)], [mixer.slow_attend(*short)], 1e-5)
        assert mixer.extra_record() == {"backend": "dense"}
    with torch.enable_grad(), pytest.raises(NotImplementedError, match="no backward pass on a CPU"):
        mixer.attend(*[x.requires_grad_() for x in inputs]).sum().backward()


@pytest.mark.parametrize("role", ["causal", "bidirectional", "cross"])
def test_its_certificate_reaches_the_squares(role, monkeypatch):
    reached = []

    def squares(mixer, q, k, v, key_mask):
        reached.append((q.dtype, q.shape[2], k.shape[2], key_mask is not None))
        return mixer.slow_attend(q, k, v, key_mask=key_mask)

    monkeypatch.setattr(BUILT_IN["flex"], "_attend_squares", squares)
    equals_slow_form(Subject(BUILT_IN["flex"], {}, role, thorough=True))
    sizes = [(257, 300 if role == "cross" else 257, masked) for masked in (False, True)]
    sizes += [(66, 257, False)] * (role != "cross") + [(1025, 11 if role == "cross" else 1025, False)]
    assert reached == [(torch.float32, *size) for size in sizes]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("role", BOTH_ROLES)
def test_squares_are_skipped_where_they_are_empty_and_whole_where_no_pair_is_hidden(role, mask):
    T = 700
    mixer = core("flex", role, **options(mask, 200))
    seen = torch.zeros(768, 768, dtype=torch.bool)
    seen[:T, :T] = seen_by_hand(mask, role, T, 200)
    squares = seen.view(6, 128, 6, 128).transpose(1, 2).flatten(2)
    expected = squares.any(2), squares.any(2) & ~squares.all(2), squares.all(2)
    for (numbers, columns), wanted in zip(mixer._cut(T, T, torch.device("cpu")), expected, strict=True):
        found = torch.zeros(6, 6, dtype=torch.bool)
        for row in range(6):
            found[row, columns[0, 0, row, : numbers[0, 0, row]].long()] = True
        assert torch.equal(found, wanted)


def test_a_key_mask_and_a_role_are_honoured():
    for role, mask in ((role, mask) for role in BOTH_ROLES for mask in MASKS):
        inputs, key_mask = qkv(40, 40, B=4), ragged_mask(4, 40)
        seen = seen_by_hand(mask, role, 40, 5) & key_mask[:, None, None]
        found = core("flex", role, **options(mask)).attend(*inputs, key_mask=key_mask)
        assert_equal([found], [plain_attention(*inputs, seen)], 1e-12)


def test_what_cannot_be_has_a_reason():
    flex, place = BUILT_IN["flex"], Spec(8, 2, 300)
    ((option, told),) = resolve(flex, {"mask": "slanted"})[1]
    assert option == "mask"
    assert all(name in told for name in MASKS)
    for phase in ("forward_backward", "train_step"):
        assert "no backward pass on a CPU" in flex.unsupported(place, Use(8, 8, phase=phase))
        assert flex.unsupported(place, Use(8, 8, phase=phase, device="cuda")) is None
    assert "no float64 on a CPU" in flex.unsupported(place, Use(300, 300, dtype="float64"))
    assert flex.unsupported(place, Use(200, 200, dtype="float64")) is None
    assert "no decoding form" in flex.unsupported(place, Use(8, 8, phase="decode"))
    assert "no cross role" in flex.unsupported(Spec(8, 2, 8, "cross"), Use(8, 8), mask="fixed")
    for wrong, told in (
        ({"mask": "slanted"}, "mask must be 'full' or 'window' or 'strided' or 'fixed', got 'slanted'"),
        ({"mask": "full", "size": 4}, "size must be left out with mask full, got 4"),
        ({"mask": "window", "size": 0}, "size must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=told):
            build("flex", **wrong)
    with pytest.raises(NotImplementedError):
        build("flex").prefill(noise(1, 3, 12))


def test_without_a_compiler_a_long_sequence_has_a_reason(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "there is no no-such-compiler" in BUILT_IN["flex"].unsupported(Spec(8, 2, 300), Use(300, 300))
    assert BUILT_IN["flex"].unsupported(Spec(8, 2, 300), Use(256, 256)) is None

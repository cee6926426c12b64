"""Peak memory, in exact bytes."""

import pytest
import torch

from attnbench.measure.memory import peak_bytes, resident_peak_bytes, status_bytes

MIB = 2**20


def tensor(mib):
    return torch.ones(mib * MIB // 4)


def test_peak_is_what_is_held_at_one_time_not_the_sum():
    def call():
        for mib in (16, 4, 8):
            tensor(mib)

    assert peak_bytes(call, "cpu") == 16 * MIB


def test_peak_counts_what_lives_side_by_side():
    assert peak_bytes(lambda: tensor(8) + tensor(8), "cpu") == 24 * MIB


def test_what_was_held_before_does_not_count():
    held = tensor(64)
    assert peak_bytes(lambda: tensor(8), "cpu") == 8 * MIB
    assert held.numel()


def test_an_error_in_the_call_leaves_the_profiler_off():
    with pytest.raises(RuntimeError, match="inner"):
        peak_bytes(lambda: torch.ones(1).view(-1) + (_ for _ in ()).throw(RuntimeError("inner")), "cpu")
    assert peak_bytes(lambda: tensor(1), "cpu") == MIB


def test_backward_counts_what_the_graph_saves():
    x = torch.ones(MIB, requires_grad=True)
    peak = peak_bytes(lambda: torch.autograd.grad(x.exp().exp().sum(), x), "cpu")
    assert peak >= 3 * 4 * MIB


def test_resident_peak_sees_the_call_and_not_what_was_before():
    tensor(256)
    before = status_bytes("VmRSS")
    peak = resident_peak_bytes(lambda: tensor(64))
    if peak is None or before is None:
        pytest.skip("this system has no /proc/self/clear_refs")
    assert 60 * MIB <= peak - before <= 100 * MIB


def test_unknown_field_of_the_status_is_none():
    assert status_bytes("VmNoSuchThing") is None

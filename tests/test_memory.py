"""Peak memory, in exact bytes."""

import math
from types import SimpleNamespace

import pytest
import torch
from cores import BIDIRECTIONAL_ONLY, BUILT_IN, ON_CPU
from run_rows import tiny_cell

from attnbench import registry
from attnbench.execute.build import build_module, build_workload
from attnbench.execute.local import FreshProcesses
from attnbench.execute.orders import Visit
from attnbench.measure.memory import disagreements, peak_bytes, saved_bytes, status_bytes
from attnbench.settings import TimingSettings, TrainSettings

MIB, GIB = 2**20, 2**30


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


RISE = SimpleNamespace(job="child_jobs:resident_rise")


def test_resident_peak_sees_the_call_and_not_what_was_before():
    with FreshProcesses() as processes:  # whose memory nothing else has used
        rise = processes.call(RISE.job).value
    if rise is None:
        pytest.skip("this system has no /proc/self/clear_refs")
    assert 60 * MIB <= rise <= 100 * MIB


def test_unknown_field_of_the_status_is_none():
    assert status_bytes("VmNoSuchThing") is None


# What a forward pass leaves for its backward pass


def test_saved_storages_count_once_and_whole_and_parameters_do_not():
    x, weight = torch.ones(8, 16, requires_grad=True), torch.ones(16, 16, requires_grad=True)

    def forward():
        y = x @ weight  # keeps x and the weight
        return y[:2] * y[2:4]  # keeps two views of one storage

    assert saved_bytes(forward, [weight]) == 4 * (8 * 16 + 8 * 16)
    assert saved_bytes(forward, []) == 4 * (8 * 16 + 8 * 16 + 16 * 16)


def test_nothing_is_saved_without_a_gradient():
    x = torch.ones(8)
    assert saved_bytes(lambda: x.exp() * x, []) == 0


def kept(name, T, *, d_model=64, n_heads=4):
    """Bytes that one layer keeps for its backward pass."""
    sizes = {"T": T, "S": T, "max_T": T, "B": 1, "d_model": d_model, "n_heads": n_heads}
    role = "bidirectional" if name in BIDIRECTIONAL_ONLY else "causal"
    asked = tiny_cell(**sizes, role=role, phase="forward_backward")
    work = build_workload(asked, build_module(asked, BUILT_IN[name]))
    return saved_bytes(work.forward, work.parameters)


def power(name, few, many):
    """Of T in what is kept, between two lengths."""
    return math.log(kept(name, many) / kept(name, few), many / few)


SQUARES = ("full", "topk")  # whose weights are kept, all pairs
SUMS = {"s4d": (0.5, 1.0), "nystrom": (0.0, 1.0), "fixed_sparse": (1.0, 1.5)}  # of two powers of T: between them
KEEPS_NOTHING = ("fnet",)  # no parameters, and a linear map


@pytest.mark.parametrize("name", [name for name in ON_CPU if name not in (*SUMS, *KEEPS_NOTHING)])
def test_saved_bytes_grow_with_T_as_theory_says(name):
    expected, few, many = (2.0, 1024, 2048) if name in SQUARES else (1.0, 1024, 4096)  # of a stride both are squares
    assert power(name, few, many) == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("name", SUMS)
def test_of_a_sum_of_two_powers_the_higher_one_takes_over(name):
    low, high = SUMS[name]
    assert low < power(name, 1024, 4096) < power(name, 4096, 16384) < high


@pytest.mark.parametrize("name", KEEPS_NOTHING)
def test_what_needs_nothing_for_its_gradients_keeps_nothing(name):
    assert kept(name, 64) == 0


@pytest.mark.parametrize(("T", "d", "H"), [(512, 64, 4), (1024, 64, 4), (1024, 128, 8), (512, 256, 4)])
def test_full_attention_keeps_1_plus_HT_by_5d_of_what_fused_attention_keeps(T, d, H):
    sizes = {"d_model": d, "n_heads": H}
    ratio = kept("full", T, **sizes) / kept("fused", T, **sizes)
    assert ratio == pytest.approx(1 + H * T / (5 * d), rel=0.1)


# The peak of full attention, by allocator and by formula


@pytest.mark.parametrize("role", ["causal", "bidirectional", "cross"])
@pytest.mark.parametrize(("T", "B", "d", "H"), [(512, 1, 64, 4), (512, 3, 64, 1), (1024, 1, 32, 4), (640, 2, 256, 4)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_peak_of_full_attention_is_that_of_its_formula(role, T, B, d, H, dtype):
    S = T // 2 if role == "cross" else T
    sizes = {"T": T, "S": S, "max_T": T, "B": B, "d_model": d, "n_heads": H}
    asked = tiny_cell(**sizes, role=role, level="core", dtype=dtype)
    work = build_workload(asked, build_module(asked, BUILT_IN["full"]))
    with torch.no_grad():
        peak = peak_bytes(work.forward, "cpu")
    formula = work.mixers[0].core_peak_bytes(B, T, S, work.dtype.itemsize)
    assert peak == pytest.approx(formula, rel=0.05)
    assert disagreements(peak, formula=formula, held=None, resident=None) == []


def test_witnesses_that_disagree_are_told():
    agree = {"formula": 100 * MIB, "held": GIB, "resident": GIB + 110 * MIB}
    assert disagreements(101 * MIB, **agree) == []
    assert disagreements(101 * MIB, formula=None, held=None, resident=None) == []
    (told,) = disagreements(120 * MIB, **agree)
    assert told == f"peak by allocator and by formula differ: {120 * MIB} and {100 * MIB} bytes"
    (told,) = disagreements(100 * MIB, **agree | {"resident": GIB + 300 * MIB})
    assert told == f"peak by allocator and by resident size differ: {100 * MIB} and {300 * MIB} bytes"
    (told,) = disagreements(2 * GIB, formula=None, held=GIB, resident=GIB + 1)
    assert told == f"peak by allocator and by resident size differ: {2 * GIB} and at most {GIB + 1} bytes"


# Of a whole visit


def weighed(lengths, start_method=None, **changes):
    """Records of memory visits of full attention's core, in fresh processes, one after the other."""
    source = registry.installed(registry.VARIANTS)["full"]
    with FreshProcesses(start_method) as processes:
        for T in lengths:
            sizes = {"T": T, "S": T, "max_T": T, "B": 1, "d_model": 16, "n_heads": 1, "level": "core"} | changes
            order = Visit(tiny_cell(**sizes), "memory", (source,), None, TimingSettings(), TrainSettings(), None, None)
            outcome = processes.call("attnbench.execute.cell:visit", order)
            assert outcome.status == "ok", outcome.reason
            yield outcome.value


def test_peaks_depend_neither_on_the_order_of_cells_nor_on_the_size_of_the_parent():
    long_first, short_second = weighed([4096, 64])
    held = torch.ones(GIB // 4)  # 1 GiB, every page of it touched
    short_first, long_second = weighed([64, 4096])
    del held
    for one, other in ((long_first, long_second), (short_first, short_second)):
        assert one["peak_bytes"] == other["peak_bytes"] == pytest.approx(one["peak_bytes_formula"], rel=0.05)
        assert one["flags"] == other["flags"] == []
        assert one["rss_peak_bytes"] == pytest.approx(other["rss_peak_bytes"], rel=0.1)
        assert one["rss_peak_bytes"] < GIB


@pytest.mark.parametrize("phase", ["forward", "forward_backward", "train_step", "decode"])
def test_each_part_of_memory_is_in_the_record_of_the_phases_that_have_it(phase):
    level = {"level": "model", "n_layers": 2, "d_ff": 32, "positions": "learned", "embedding_std": 0.02, "max_T": 33}
    (record,) = weighed([32], phase=phase, **level)
    assert record["peak_bytes"] > 0
    assert record["param_bytes"] == 4 * record["n_params"]
    model = build_module(tiny_cell(T=32, S=32, d_model=16, n_heads=1, **level), BUILT_IN["full"])
    trains, n_tensors = phase in ("forward_backward", "train_step"), len([*model.parameters()])
    assert (record["saved_bytes"] is not None) == trains
    assert record["optimizer_bytes"] == (2 * record["param_bytes"] + 4 * n_tensors if phase == "train_step" else None)
    assert record["state_bytes"] == (2 * 2 * 33 * 16 * 4 + 2 * 8 if phase == "decode" else None)
    assert record["peak_bytes_formula"] is None

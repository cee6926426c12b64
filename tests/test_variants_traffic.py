"""Bytes that a cell has to move by formula: against sums from shapes, and never above what torch's operations move."""

from functools import partial

import pytest
import torch
from cores import BUILT_IN, NO_STEPS, ON_CPU, RECURRENT, build, core, qkv
from counters import counted_bytes
from run_rows import tiny_cell as cell

from attnbench.execute.build import MODEL_VOCAB, build_module, build_workload
from attnbench.execute.cell import _in_force
from attnbench.execute.phases import phase_call
from attnbench.measure.traffic import bytes_moved
from attnbench.mixer import Flops, Mixer, Spec, Use

ATTENTION = ("full", "fused", "window", "linear", "strided", "xformers")
IN_ONE_CALL = ("lstm",)  # what stands between the steps is inside of torch's operation
IN_RUNS = (
    "retnet",
    "gla",
    "rwkv",
    "mamba2",
    "deltanet",
    "gated_deltanet",
    "based",
    "cosformer",
    "hedgehog",
    "performer",
    "mamba",
    "s4d",
)  # a run of chunks stays in a cache, and the counter sees each of its passes; s4d: it sees how a kernel is made
NARROW = {"based": {"d_k": 8}, "performer": {"n_features": 32}}  # features as wide as others', which stay in the cache


def moved(mixer, T, S, *, level="layer", phase="forward", B=1, param_bytes=0, **sizes):
    known = {"itemsize": 4, "param_bytes": param_bytes} | sizes
    return bytes_moved([mixer], level=level, phase=phase, T=T, S=S, B=B, **known)


def in_force(name, options=None, max_T=300, **settings):
    """What a record says that a call moves, and what torch's operations move in it."""
    asked = cell(T=256, S=256, max_T=max_T, d_model=32, n_heads=2, B=1, **settings)
    torch.manual_seed(0)
    work = build_workload(asked, build_module(asked, partial(BUILT_IN[name], **(options or {}))))
    with torch.set_grad_enabled("backward" in asked.phase or "train" in asked.phase):
        call = phase_call(work, asked.phase)
        call()
        return _in_force(asked, work)["bytes_moved"], counted_bytes(call)


@pytest.mark.parametrize("T", [1, 64, 300])
def test_the_core_of_each_attention_moves_what_its_shapes_say(T):
    H, d_k, d_v = 3, 4, 6
    inputs_and_output = H * (T * d_k + T * d_k + T * d_v + T * d_v)
    sizes = {"d_k": d_k, "d_v": d_v, "n_heads": H}
    for name in ("xformers", "linear"):
        assert moved(core(name, **sizes), T, T, level="core") == 4 * inputs_and_output
    assert moved(core("fused"), T, T, level="core") == 4 * H * 4 * T * 4
    n_maps = 6 if T > 1 else 4  # scores out and in, a mask added to them, weights out and in
    expected = inputs_and_output + 2 * H * T * d_k + n_maps * H * T * T
    assert moved(core("full", **sizes), T, T, level="core") == 4 * expected
    unmasked = inputs_and_output + 2 * H * T * d_k + 4 * H * T * T
    assert moved(core("full", "bidirectional", **sizes), T, T, level="core") == 4 * unmasked


def test_scores_that_a_kernel_writes_out_count_and_those_it_keeps_do_not():
    T, H = 128, 3
    for name in ("fused", "window", "strided"):
        kept, written = (moved(core(name, d_v=d_v), T, T, level="core") for d_v in (4, 5))
        assert written - kept > 4 * 4 * H * T * 8, name


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize(("T", "S", "role"), [(7, 7, "causal"), (7, 11, "cross")])
def test_projections_move_inputs_and_outputs_of_the_maps(name, T, S, role):
    if role == "cross" and name in ("window", "strided"):
        pytest.skip("no cross role")
    mixer = build(name, role, d_model=12, n_heads=3)
    context = S * 12 if role == "cross" else 0
    maps = T * 12 + context + T * 12 + 2 * S * 12 + T * 12 + T * 12  # x, context, q, k and v, y in, y out
    assert mixer.flops(T, S).projection_moved == maps


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize("phase", ["forward", "forward_backward"])
@pytest.mark.parametrize("name", [name for name in ON_CPU if name not in IN_ONE_CALL])
def test_a_layer_never_moves_less_than_its_formula_nor_far_more(name, phase, role):
    if reason := BUILT_IN[name].unsupported(Spec(32, 2, 300, role), Use(256, 256, phase=phase)):
        pytest.skip(reason)
    max_T = 256 if name == "linformer" else 300  # beyond T it leaves parameters unread
    known, counted = in_force(name, NARROW.get(name), max_T, phase=phase, role=role)
    assert (
        known <= counted <= (20 if name in RECURRENT else 24 if name in IN_RUNS else 8) * known
    )  # each step reads weights again


@pytest.mark.parametrize("name", [name for name in ON_CPU if name not in (*IN_ONE_CALL, *NO_STEPS)])
def test_a_step_never_moves_less_than_its_formula(name):
    if reason := BUILT_IN[name].unsupported(Spec(32, 2, 300), Use(256, 256, phase="decode")):
        pytest.skip(reason)
    known, counted = in_force(name, phase="decode")
    if known is None:
        pytest.skip("gives no formula")
    assert known <= counted <= 6 * known


@pytest.mark.parametrize(("level", "d_ff"), [("block", 0), ("block", 128), ("model", 128)])
@pytest.mark.parametrize("phase", ["forward", "forward_backward", "prefill", "decode"])
def test_blocks_and_models_never_move_less_than_their_formula(level, d_ff, phase):
    around = {"n_layers": 2, "positions": "learned", "embedding_std": 0.02} if level == "model" else {}
    known, counted = in_force("fused", level=level, phase=phase, d_ff=d_ff, **around)
    assert known <= counted <= 4 * known


def test_a_train_step_adds_what_the_optimiser_moves():
    settings = {"level": "model", "d_ff": 128, "n_layers": 2, "positions": "none", "embedding_std": 0.02}
    both, _ = in_force("fused", phase="forward_backward", **settings)
    step, counted = in_force("fused", phase="train_step", **settings)
    n_read = 2 * (4 * 32**2 + 2 * 32 * 128 + 5 * 32 + 128) + 2 * 32 + MODEL_VOCAB * 32  # maps, norms, biases, head
    assert step - both == 7 * 4 * n_read
    assert step <= counted


def test_recurrences_move_gates_out_and_in():
    for name, n_gates in (("rnn", 1), ("gru", 3), ("lstm", 4)):
        one = build(name).flops(10, 10)
        assert one.core_moved == one.projection_moved == 10 * 12 * (n_gates + 1)


def test_the_cache_is_what_a_step_of_attention_moves():
    T = 200
    for name in ("full", "fused"):
        one = build(name).step_flops(T, T)
        assert one.core_moved >= 2 * (T + 1) * 12
    assert build("linear").step_flops(T, T).core_moved == build("linear").step_flops(2, 2).core_moved


def test_batches_and_dtypes_scale_numbers_and_not_parameters():
    mixer = build("fused")
    one = moved(mixer, 8, 8)
    assert moved(mixer, 8, 8, B=5, param_bytes=100, itemsize=2) == 5 * one / 2 + 100


def test_without_a_formula_the_bytes_are_not_available():
    class Told(Mixer):
        def flops(self, T, S):
            return Flops(1.0, 1.0)

    assert moved(Told(Spec(4, 1, 8)), 8, 8) is None
    assert moved(Mixer(Spec(4, 1, 8)), 8, 8) is None
    assert moved(build("full", "cross"), 8, 8, phase="decode") is None


def test_what_parameters_a_short_sequence_leaves_unread_is_not_guessed():
    assert build("linformer", "bidirectional", max_T=64).flops(63, 63).core_moved is None
    assert build("linformer", "bidirectional", max_T=64).flops(64, 64).core_moved > 0


def test_causal_chunks_stay_in_a_cache_and_whole_sums_do_not():
    one = core("linear", "bidirectional")
    causal, both = core("linear").flops(64, 64).core_moved, one.flops(64, 64).core_moved
    q, k, v = qkv(64, 64, B=1)
    with torch.no_grad():
        extra = counted_bytes(lambda: one.attend(q, k, v)) / 8
    assert causal < both <= extra

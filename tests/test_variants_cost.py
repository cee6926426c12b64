"""What the built-in variants say that they cost is what they do: FLOPs by torch's counter, bytes by its allocator."""

from __future__ import annotations

import math

import attnbench_variants.fused as fused
import pytest
import torch
from cores import BIDIRECTIONAL_ONLY, BUILT_IN, ELEMENTWISE, NO_CROSS, NO_STEPS, ON_CPU, build, core, qkv
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Attention, Mixer, Spec, visible_pairs

MIB = 2**20
LENGTHS = (1, 7, 64, 65, 130, 200)
ROLES = ("causal", "bidirectional", "cross")


def counted(mixer, T, S):
    """FLOPs of one forward pass of a sequence, as torch counts its matrix products."""
    d_model = mixer.spec.d_model
    context = torch.zeros(1, S, d_model).double() if mixer.spec.role == "cross" else None
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        mixer(torch.zeros(1, T, d_model).double(), context=context)
    return counter.get_total_flops()


@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 1, "d_k": 5, "d_v": 2}])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", ["full", "linear"])
def test_executed_flops_are_those_that_torch_counts(name, role, options):
    mixer = build(name, role, **options)
    for T in LENGTHS:
        S = 11 if role == "cross" else T
        flops = mixer.flops(T, S)
        assert flops.executed + flops.projection == counted(mixer, T, S)


@pytest.mark.parametrize(("T", "S"), [(3, 8), (8, 3), (70, 100), (100, 70)])
@pytest.mark.parametrize("name", ["full", "linear", "window"])
def test_executed_flops_hold_when_T_and_S_differ(name, T, S):
    mixer = core(name, d_v=3)  # of another width than keys, so that no kernel hides the products
    q, k, v = qkv(T, S, B=1, d_v=3)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        mixer.attend(q, k, v)
    assert mixer.flops(T, S).executed == counter.get_total_flops()


@pytest.mark.parametrize("options", [{"d_v": 3}, {"d_v": 3, "n_kv_heads": 1}])
@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize("window", [1, 9, 64, 500])
def test_window_executes_what_torch_counts_when_attention_is_written_out(window, role, options):
    mixer = build("window", role, window=window, **options)
    for T in LENGTHS:
        flops = mixer.flops(T, T)
        assert flops.executed + flops.projection == counted(mixer, T, T)
    assert flops.backward == 2.0


@settings(deadline=None)
@given(T=st.integers(1, 200), S=st.integers(1, 200), window=st.integers(1, 220))
def test_window_flops_count_the_pairs_of_the_definition(T, S, window):
    causal = core("window", window=window)
    seen = sum(max(0, min(window, i + S - T + 1)) for i in range(T))
    assert causal.flops(T, S).core == causal.pair_flops(seen)
    both = core("window", "bidirectional", window=window)
    seen = sum(min(T - 1, i + window // 2) - max(0, i - window // 2) + 1 for i in range(T))
    assert both.flops(T, T).core == both.pair_flops(seen)
    assert both.flops(T, T).executed >= both.flops(T, T).core


# One step of decoding


def counted_step(mixer, T, S):
    """FLOPs of one step after T tokens of a sequence, as torch counts its matrix products."""
    d_model = mixer.spec.d_model
    context = torch.zeros(1, S, d_model).double() if mixer.spec.role == "cross" else None
    with torch.no_grad():
        _, state = mixer.prefill(torch.zeros(1, T, d_model).double(), context=context)
        with FlopCounterMode(display=False) as counter:
            mixer.step(torch.zeros(1, d_model).double(), state)
    return counter.get_total_flops()


STEPPING = [name for name in ON_CPU if name not in (*NO_STEPS, *ELEMENTWISE)]
DECODING = [
    (name, role) for name in STEPPING for role in ("causal", "cross") if role == "causal" or name not in NO_CROSS
]


@pytest.mark.parametrize(("name", "role"), DECODING)
def test_a_step_costs_what_torch_counts(name, role):
    attention = issubclass(BUILT_IN[name], Attention)
    for options in ({"d_v": 3}, {"d_v": 3, "n_kv_heads": 1}) if attention else ({},):  # no kernel hides the products
        mixer = build(name, role, **options)
        for T in (0, 1, 40, 130):
            flops = mixer.step_flops(T, 11 if role == "cross" else T)
            assert flops.executed + flops.projection == counted_step(mixer, T, 11)


def test_a_step_costs_what_the_textbook_says():
    T, d, H, window = 100, 12, 3, 64
    known = {
        name: build(name).step_flops(T, T) for name in BUILT_IN if name not in BIDIRECTIONAL_ONLY
    }  # a window of 64
    for name in ("full", "fused", "xformers", "window", "linear"):
        assert known[name].projection == 8 * d * d
    for name in ("full", "fused", "xformers"):
        assert known[name].core == known[name].executed == 4 * (T + 1) * d
    assert known["window"].core == 4 * window * d
    assert known["linear"].core == 2 * 2 * H * (d // H) * (d // H + 1)  # the sums and one read of them
    for name, n_gates in (("rnn", 1), ("gru", 3), ("lstm", 4)):
        assert known[name].core == known[name].projection == 2 * n_gates * d * d
    for name in ("none", "mean"):
        assert (known[name].core, known[name].projection) == (0, 4 * d * d)


def test_a_step_of_a_variants_own_has_no_cost_but_by_its_own_formula():
    class Stepping(BUILT_IN["full"]):
        def step(self, x, state):
            return super().step(x, state)

    assert Stepping(Spec(4, 1, 8)).step_flops(3, 3) is None
    assert Mixer(Spec(4, 1, 8)).step_flops(3, 3) is None


def test_the_example_that_counters_miss():
    sizes = {"n_heads": 12, "d_k": 64, "d_v": 64}
    for name in ("full", "fused"):
        assert core(name, "bidirectional", **sizes).flops(64, 64).executed == 12_582_912
        assert core(name, "bidirectional", **sizes).flops(64, 64).core == 12_582_912
        assert core(name, "causal", **sizes).flops(64, 64).core == 12_582_912 * 65 / 128


def test_projections_cost_what_the_textbook_says():
    for name in ("full", "fused", "window", "linear", "strided", "xformers"):
        assert build(name, d_model=12).flops(10, 10).projection == 8 * 10 * 12**2


@pytest.mark.parametrize("T", [1, 31, 32, 191, 192, 500, 512, 513, 767, 768, 1024, 3000])
def test_tiles_of_the_cpu_kernel_cover_the_triangle(T):
    pairs = fused.cpu_flash_pairs(T)
    assert visible_pairs(T, T, "causal") <= pairs <= T * T
    assert pairs == T * T if T <= 512 else pairs < T * T


# Which kernel ran


def ran(call):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    names = " ".join(event.name for event in profile.events())
    return "flash" if "flash_attention_for_cpu" in names else "math" if "attention_math" in names else names


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("case", ["plain", "masked", "short", "wide values", "math only"])
def test_the_recorded_backend_is_the_one_that_ran(role, case):
    mixer = core("fused", role, d_v=6 if case == "wide values" else 4)
    inputs = qkv(2 if case == "short" else 5, 5, d_v=mixer.d_v)
    key_mask = torch.ones(2, 5, dtype=torch.bool) if case == "masked" else None
    with sdpa_kernel([SDPBackend.MATH] if case == "math only" else [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        found = ran(lambda: mixer.attend(*inputs, key_mask=key_mask))
    assert mixer.extra_record() == {"backend": found}
    assert found == ("math" if case in ("wide values", "math only") else "flash")
    assert mixer.flops(5, 5).backward == (2.0 if found == "math" else 2.5)


# Memory


def training_bytes(name, T, *, d_head=64, n_heads=1, **options):
    mixer = core(name, n_heads=n_heads, d_k=d_head, d_v=d_head, **options)
    inputs = [torch.zeros(1, n_heads, T, d_head, requires_grad=True) for _ in range(3)]
    return peak_bytes(lambda: torch.autograd.grad(mixer.attend(*inputs).sum(), inputs), "cpu")


def slope(call, few, many):
    """Slope of log(bytes) over log(size) between two sizes."""
    return math.log(call(many) / call(few)) / math.log(many / few)


@pytest.mark.parametrize(
    ("name", "options"),
    [("window", {"window": 16}), ("linear", {}), ("window", {"window": 128, "n_heads": 4}), ("fused", {"n_heads": 4})],
)
def test_training_memory_is_linear_in_T_and_far_below_full(name, options):
    assert abs(slope(lambda T: training_bytes(name, T, **options), 1024, 4096) - 1) <= 0.2
    heads = {"n_heads": options.get("n_heads", 1)}
    assert training_bytes(name, 2048, **options) < training_bytes("full", 2048, **heads) / 4


def test_a_window_of_16_takes_a_quarter_of_full_attention_at_most():
    assert training_bytes("window", 4096, window=16) < training_bytes("full", 4096) / 4


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_window_memory_is_linear_with_key_masks_too(role):
    mixer, key_mask = core("window", role, window=128), torch.ones(2, 4096, dtype=torch.bool)

    def training(T):
        inputs = qkv(T, T)
        return peak_bytes(
            lambda: torch.autograd.grad(mixer.attend(*inputs, key_mask=key_mask[:, :T]).sum(), inputs), "cpu"
        )

    assert abs(slope(training, 2048, 4096) - 1) <= 0.2


def test_full_attention_memory_is_quadratic_in_T():
    assert abs(slope(lambda T: training_bytes("full", T), 512, 1024) - 2) <= 0.2


def test_causal_linear_attention_stores_no_matrix_per_step():
    wide = training_bytes("linear", 4096, n_heads=8)
    assert wide < 160 * MIB  # one matrix per step would be 512 MiB
    narrow = training_bytes("linear", 4096, n_heads=8, d_head=32)
    assert math.log2(wide / narrow) < 1.2  # a matrix per step would give 2


def test_a_causal_mean_stores_no_vector_per_pair():
    def training(T, d_model):
        mixer, x = build("mean", d_model=d_model, n_heads=1), torch.zeros(1, T, d_model).double()
        return peak_bytes(lambda: torch.autograd.grad(mixer(x).sum(), mixer.W_v.weight), "cpu")

    assert abs(slope(lambda T: training(T, 32), 1024, 4096) - 1) <= 0.2
    assert abs(slope(lambda d: training(4096, d), 32, 64) - 1) <= 0.2


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "linformer"])  # it learns a map of positions
def test_parameters_do_not_depend_on_the_longest_sequence(name):
    role = "bidirectional" if name in BIDIRECTIONAL_ONLY else "causal"
    short, long = (BUILT_IN[name](Spec(12, 3, max_T, role)) for max_T in (8, 8000))
    assert sum(p.numel() for p in short.parameters()) == sum(p.numel() for p in long.parameters())

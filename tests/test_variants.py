"""Each built-in variant equals its slow form, and the numeric cases that people reported elsewhere."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import slow_forms
import torch
import torch.nn.functional as F
from cores import (
    BIDIRECTIONAL_ONLY,
    BUILT_IN,
    NO_CROSS,
    NO_GAPS,
    NO_MASK,
    NO_STEPS,
    ON_CPU,
    ONE_WAY,
    assert_equal,
    build,
    core,
    noise,
    qkv,
    ragged_mask,
    slow_core,
    values_and_gradients,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.kernels import chunks
from attnbench.mixer import Mixer, Spec, Use
from attnbench.transformer import LanguageModel

ROOT = Path(__file__).parents[1]
LENGTHS = (1, 2, 7, 8, 15, 16, 17, 33, 63, 64, 65, 83, 97, 130)
WINDOWS, CHUNKS = (1, 2, 8, 16, 31, 64, 200), (1, 8, 16, 64, 200)
CORES: list[tuple[str, dict[str, int]]] = [
    ("full", {}),
    ("fused", {}),
    *[("window", {"window": w}) for w in WINDOWS],
    *[("linear", {"chunk": c}) for c in CHUNKS],
]
ROLES = ("causal", "bidirectional", "cross")
CASES = [(name, options, role) for name, options in CORES for role in ROLES if (name, role) != ("window", "cross")]
CAUSAL = [(name, options) for name, options in CORES if not options or next(iter(options.values())) in (1, 16)]
CAUSAL += [("strided", {"stride": 4}), ("strided", {"stride": 16})]
NORMALISED = [*CASES, *(("strided", {"stride": 5}, role) for role in ROLES[:2])]


def label(value):
    return "-".join(f"{k}{v}" for k, v in value.items()) or "plain" if isinstance(value, dict) else None


def check_core(name, options, role, T, S, key_mask=None, *, d_k=4, d_v=4, tolerance=1e-12):
    inputs = qkv(T, S, B=4 if key_mask is not None else 2, d_k=d_k, d_v=d_v)
    fast, slow = core(name, role, d_k=d_k, d_v=d_v, **options).attend, slow_core(name, role, options)
    assert_equal(
        values_and_gradients(lambda: fast(*inputs, key_mask=key_mask), inputs),
        values_and_gradients(lambda: slow(*inputs, key_mask=key_mask), inputs),
        tolerance,
    )


# The fast form is the slow form


@pytest.mark.parametrize(("name", "options", "role"), CASES, ids=label)
def test_core_equals_slow_form_at_every_length(name, options, role):
    for T in LENGTHS:
        check_core(name, options, role, T, T if role != "cross" else 11)


@pytest.mark.parametrize(("name", "options", "role"), CASES, ids=label)
def test_core_equals_slow_form_under_key_masks(name, options, role):
    for T in (1, 2, 17, 65, 130):
        S = T if role != "cross" else 11
        check_core(name, options, role, T, S, ragged_mask(4, S), tolerance=1e-11)


@pytest.mark.parametrize(("name", "options"), CORES, ids=label)
def test_causal_core_is_aligned_bottom_right(name, options):
    for T, S in ((1, 9), (2, 4), (4, 2), (5, 130), (70, 130), (130, 5), (65, 66)):
        check_core(name, options, "causal", T, S)
        check_core(name, options, "causal", T, S, ragged_mask(4, S), tolerance=1e-11)


@pytest.mark.parametrize(("name", "options", "role"), CASES, ids=label)
def test_values_may_have_a_width_of_their_own(name, options, role):
    check_core(name, options, role, 40, 40, d_k=4, d_v=6)
    check_core(name, options, role, 40, 40, d_k=5, d_v=2)


@settings(deadline=None, max_examples=60)
@given(T=st.integers(1, 300), window=st.integers(1, 320), causal=st.booleans(), masked=st.booleans())
def test_any_window_at_any_length(T, window, causal, masked):
    role = "causal" if causal else "bidirectional"
    check_core("window", {"window": window}, role, T, T, ragged_mask(4, T) if masked else None)


@settings(deadline=None, max_examples=30)
@given(T=st.integers(1, 200), chunk=st.integers(1, 220), cached=st.integers(1, 3000))
def test_linear_does_not_depend_on_what_it_works_on_at_a_time(T, chunk, cached):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CACHED_NUMBERS", cached)
        check_core("linear", {"chunk": chunk}, "causal", T, T)


@pytest.mark.parametrize("chunk", [1, 8, 33, 64])
def test_linear_in_parallel_in_steps_and_in_chunks_is_one_mechanism(chunk):
    inputs = qkv(33, 33, B=2, H=3, d_k=4, d_v=5)  # sizes that differ, so that no two axes can be swapped

    def in_steps():
        q, k, v = inputs
        ones = torch.cat((v, torch.ones_like(v[..., :1])), dim=-1)
        y, _ = slow_forms.matrix_recurrence(slow_forms.phi(q), slow_forms.phi(k), ones, v.new_zeros(2, 3, 4, 6))
        return y[..., :-1] / (y[..., -1:] + 1e-6)

    chunked = core("linear", d_k=4, d_v=5, chunk=chunk).attend
    found = values_and_gradients(lambda: chunked(*inputs), inputs)
    parallel = slow_core("linear", "causal", {})
    assert_equal(found, values_and_gradients(lambda: parallel(*inputs), inputs), 1e-10)
    assert_equal(found, values_and_gradients(in_steps, inputs), 1e-10)


# Numbers that are known


@pytest.mark.parametrize(("name", "options"), CAUSAL, ids=label)
def test_a_query_without_a_key_gives_0_and_leaves_the_others_alone(name, options):
    mix, (q, k, v) = core(name, **options).attend, qkv(3, 3, B=1)
    key_mask = torch.tensor([[False, True, True]])  # causal query 0 sees nothing
    y = mix(q, k, v, key_mask=key_mask)
    assert y[:, :, 0].eq(0).all()
    gradients = torch.autograd.grad(y[:, :, 1:].sum(), [q, k, v], retain_graph=True)
    without = mix(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:])
    expected = torch.autograd.grad(without.sum(), [q, k, v])
    assert_equal([y[:, :, 1:], *gradients], [without, *expected], 1e-9)
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), [q, k, v]))


@pytest.mark.parametrize(("name", "options"), CAUSAL, ids=label)
def test_alignment_in_numbers(name, options):
    mix = core(name, n_heads=1, d_k=1, d_v=1, **options | ({"window": 4} if name == "window" else {})).attend
    v, zero = torch.arange(4.0).double().view(1, 1, 4, 1), torch.zeros(1, 1, 4, 1).double()
    assert_equal([mix(zero[:, :, :2], zero, v).flatten()], [torch.tensor([1.0, 1.5])], 2e-6)
    assert_equal([mix(zero, zero[:, :, :2], v[:, :, :2]).flatten()], [torch.tensor([0.0, 0.0, 0.0, 0.5])], 2e-6)


@pytest.mark.parametrize(("name", "options"), CAUSAL, ids=label)
def test_the_future_has_no_gradient_and_no_effect(name, options):
    mix = core(name, **options).attend
    for T in (1, 2, 7, 16, 17, 33):
        inputs = qkv(T, T, B=1)
        y = mix(*inputs)
        for t in range(1, T):
            past = (y[:, :, :t] * noise(1, 3, t, 4, seed=5)).sum()
            for gradient in torch.autograd.grad(past, inputs, retain_graph=True):
                assert gradient[:, :, t:].abs().max() <= 1e-9
            shoved = [torch.cat((x[:, :, :t], x[:, :, t:] + 1e3 * noise(1, 3, T - t, 4, seed=6)), 2) for x in inputs]
            assert_equal([mix(*shoved)[:, :, :t]], [y[:, :, :t]], 1e-9)


@pytest.mark.parametrize("name", [name for name in ON_CPU if name not in BIDIRECTIONAL_ONLY])
def test_a_whole_model_does_not_see_the_future(name):
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "d_model": 8, "n_heads": 2, "n_layers": 2, "max_T": 33}
    model = LanguageModel(**sizes, mixer=BUILT_IN[name]).double()
    tokens = torch.arange(33)[None] * 7 % 11
    before = model(tokens)
    for t in range(1, 33):
        changed = model(torch.cat((tokens[:, :t], (tokens[:, t:] + 1) % 11), dim=1))
        assert_equal([changed[:, :t]], [before[:, :t]], 1e-9)
        assert (changed[:, t] - before[:, t]).abs().max() > 1e-6


@pytest.mark.parametrize(("name", "options", "role"), NORMALISED, ids=label)
def test_constant_values_come_out_unchanged(name, options, role):
    for T in (1, 5, 64):
        q, k, v = qkv(T, T)
        y = core(name, role, **options).attend(q, k, torch.full_like(v, 3.7))
        assert_equal([y], [torch.full_like(v, 3.7)], 1e-5)
        if T == 1:
            assert_equal([core(name, role, **options).attend(q, k, v)], [v], 1e-5)


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_linear_gives_0_where_every_feature_is_0(role, dtype):
    low = torch.full((1, 1, 5, 4), -1e4, dtype=dtype).requires_grad_()  # elu(-1e4) + 1 = 0
    inputs = [low, low.detach().clone().requires_grad_(), torch.ones_like(low).requires_grad_()]
    mix = core("linear", role, n_heads=1).attend
    found = values_and_gradients(lambda: mix(*inputs), inputs)
    assert_equal(found, [torch.zeros_like(part) for part in found], 0.0)


@pytest.mark.parametrize("d_v", [4, 6])
@pytest.mark.parametrize(("name", "options"), [("full", {}), ("fused", {}), ("window", {"window": 9})], ids=label)
def test_scores_are_scaled_by_the_root_of_the_head_width(name, options, d_v):
    mix = core(name, n_heads=2, d_v=d_v, **options).attend
    key = torch.tensor([2.0, 0.0, 0.0, 0.0]).double()
    q = key.expand(1, 2, 2, 4)
    k = torch.stack((key, 0 * key)).expand(1, 2, 2, 4)
    v = torch.tensor([[1.0], [0.0]]).double().expand(1, 2, 2, d_v)
    assert mix(q, k, v)[:, :, 1].sub(0.880797).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("role", "window", "counts"),
    [
        ("causal", 2, [1, 2, 2, 2, 2, 2]),
        ("causal", 1, [1] * 6),
        ("bidirectional", 2, [2, 3, 3, 3, 3, 2]),
        ("bidirectional", 3, [2, 3, 3, 3, 3, 2]),
    ],
)
def test_how_many_keys_a_window_shows(role, window, counts):
    q, k, _ = qkv(6, 6)
    one_hot = torch.eye(6).double().expand(2, 3, 6, 6)
    weights = core("window", role, window=window, d_v=6).attend(q, k, one_hot)  # (B, H, T, S)
    assert weights.gt(0).sum(-1).expand(2, 3, 6).eq(torch.tensor(counts)).all()


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_a_window_over_everything_is_full_attention(role):
    for T, windows in ((6, (6, 7, 100)), (130, (130, 131, 259))):
        inputs = qkv(T, T)
        expected = values_and_gradients(lambda inputs=inputs: core("full", role).attend(*inputs), inputs)
        for window in (w if role == "causal" else 2 * w for w in windows):
            mix = core("window", role, window=window).attend
            assert_equal(values_and_gradients(lambda mix=mix, x=inputs: mix(*x), inputs), expected, 1e-12)


# Precision and long sequences


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2), (torch.float16, 4e-3)])
@pytest.mark.parametrize(("name", "options", "role"), CASES, ids=label)
def test_lower_precision_stays_near_float64(name, options, role, dtype, tolerance):
    inputs = [x.detach().to(dtype).requires_grad_() for x in qkv(70, 70, B=4)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    key_mask = ragged_mask(4, 70)
    mix = core(name, role, **options).attend
    low = values_and_gradients(lambda: mix(*inputs, key_mask=key_mask), inputs)
    assert {x.dtype for x in low} == {dtype}
    assert_equal(low, values_and_gradients(lambda: mix(*exact, key_mask=key_mask), exact), tolerance)


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize("value", [0.01, 1.0])
def test_linear_sums_do_not_overflow_float16(role, value):
    zero = torch.zeros(1, 1, 1024, 64, dtype=torch.float16)
    y = core("linear", role, n_heads=1, d_k=64, d_v=64).attend(zero, zero, torch.full_like(zero, value))
    assert_equal([y], [torch.full_like(y, value)], 1e-3 * value)


@torch.no_grad()
@pytest.mark.parametrize("n_steps", [1, 4096])
@pytest.mark.parametrize(("name", "part"), [("linear", "sums"), ("mean", "count")])
def test_a_state_counts_beyond_what_bfloat16_can(name, part, n_steps):
    mixer = build(name, d_model=4, n_heads=1, max_T=4096).to(torch.bfloat16)
    _, state = mixer.prefill(torch.zeros(1, 4096 - n_steps, 4, dtype=torch.bfloat16))
    for _ in range(n_steps):
        _, state = mixer.step(torch.zeros(1, 4, dtype=torch.bfloat16), state)
    assert state[part].dtype == torch.float32
    assert state[part][..., -1].eq(4096).all()


def test_linear_time_variants_reach_past_65536_positions():
    T = 65537
    q, k, v = (x.detach().float() for x in qkv(T, T, B=1, H=1, d_k=8, d_v=8))
    near = core("window", n_heads=1, d_k=8, d_v=8, window=16).attend(q, k, v)
    last = slow_forms.softmax_attention(q[:, :, -1:], k[:, :, -16:], v[:, :, -16:], torch.ones(1, 1, 16).bool())
    assert_equal([near[:, :, -1:]], [last], 1e-5)
    far = core("linear", n_heads=1, d_k=8, d_v=8).attend(q, k, v)
    last = slow_forms.linear_attention(q[:, :, -1:].double(), k.double(), v.double(), torch.ones(1, 1, T).bool())
    assert_equal([far[:, :, -1:]], [last], 1e-4)


# What is refused


@pytest.mark.parametrize(
    ("name", "role", "use", "reason"),
    [
        ("window", "cross", Use(8, 8), "no cross role"),
        ("full", "bidirectional", Use(8, 8, phase="decode"), "decoding needs"),
        ("linear", "bidirectional", Use(8, 8, phase="prefill"), "decoding needs"),
        ("window", "bidirectional", Use(8, 8, phase="decode"), "decoding needs"),
    ],
)
def test_unsupported_uses_have_a_reason(name, role, use, reason):
    assert reason in BUILT_IN[name].unsupported(Spec(15, 3, 8, role), use)


@pytest.mark.parametrize("name", ON_CPU)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_everything_else_is_supported(name, dtype):
    roles = ("bidirectional",) if name in BIDIRECTIONAL_ONLY else ROLES[:2] if name in NO_CROSS else ROLES
    for role in roles[:1] if name in ONE_WAY else roles:
        mask = "right" if name in NO_GAPS else "none" if name in NO_MASK else "any"
        T = 8 if role == "bidirectional" else 5
        assert BUILT_IN[name].unsupported(Spec(12, 3, 8, role), Use(T, 8, dtype=dtype, mask=mask)) is None
    decodes = BUILT_IN[name].unsupported(Spec(12, 3, 8), Use(8, 8, dtype=dtype, phase="decode")) is None
    assert decodes == (name not in NO_STEPS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build("window", "cross"), "no cross role"),
        (lambda: build("window", window=0), "window must be at least 1, got 0"),
        (lambda: build("linear", chunk=0), "chunk must be at least 1, got 0"),
        (lambda: core("window", "bidirectional").attend(*qkv(3, 5)), "T = 3 and S = 5"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_why(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


# Registration


def registered() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["entry-points"]["attnbench.variants"]


def test_each_file_in_variants_is_registered():
    files = {path.stem for path in (ROOT / "variants").glob("*.py")} - {"__init__"}
    modules = {target.split(":")[0].removeprefix("attnbench_variants.") for target in registered().values()}
    assert files == modules, "variants/ and [project.entry-points] in pyproject.toml must name the same modules"


def test_installed_entry_points_are_those_of_pyproject():
    points = entry_points(group="attnbench.variants")
    installed = {point.name: point.value for point in points if point.dist.name == "attnbench"}
    assert installed == registered(), "the installed entry points are old: run pip install -e . again"


def test_each_variant_states_a_claim_and_opens_with_its_paper():
    for cls in BUILT_IN.values():
        assert issubclass(cls, Mixer)
        assert cls.claim is not None
        source = (ROOT / "variants" / f"{cls.__module__.rsplit('.', 1)[1]}.py").read_text()
        docstring = source.split('"""')[1]
        assert re.search(r"\b(19|20)\d\d\b", docstring.splitlines()[0]), "the first line names the paper and its year"
        assert "Departures:" in docstring


@pytest.mark.parametrize("name", ["fused", "window", "strided"])
@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_a_query_without_keys_gives_0_whatever_the_kernel_does_with_it(monkeypatch, name, role):
    x = noise(3, 40, 12)
    key_mask = torch.arange(40) >= torch.tensor([[0], [25], [40]])
    expected = build(name, role)(x, key_mask=key_mask)
    real = F.scaled_dot_product_attention

    def sees_all(q, k, v, attn_mask=None, **kwargs):
        """As cuDNN's before torch 2.12: what is hidden counts little, and where all is hidden nothing is."""
        low = (
            None if attn_mask is None else torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill(~attn_mask, -65504.0)
        )
        return real(q, k, v, attn_mask=low, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", sees_all)
    torch.testing.assert_close(build(name, role)(x, key_mask=key_mask), expected)
    assert not expected[2].any()

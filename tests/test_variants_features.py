"""Attentions over features equal the attention whose weights are written out, in every role, and by steps."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from cores import BUILT_IN, assert_equal, build, core, noise, qkv, ragged_mask, values_and_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec, Use

ROLES = ("causal", "bidirectional", "cross")
OPTIONS = [
    ("linear", {}),
    ("linear", {"features": "relu"}),
    ("linear", {"norm": "rms"}),
    ("linear", {"features": "identity", "norm": "rms"}),
    ("performer", {"n_features": 16}),
    ("performer", {"n_features": 7, "kind": "hyperbolic"}),
    ("performer", {"n_features": 5, "kind": "relu", "seed": 3}),
    ("performer", {"n_features": 1}),
    ("performer", {"n_features": 1, "kind": "hyperbolic"}),
    ("cosformer", {}),
    ("hedgehog", {}),
    ("based", {}),
]


def label(value):
    return "-".join(map(str, value.values())) if isinstance(value, dict) else str(value)


def learned(mixer):
    return [p for name, p in mixer.named_parameters() if not name.startswith("W_")]


def equals_its_slow_form(mixer, T, S, key_mask=None, tolerance=1e-9):
    inputs = qkv(T, S, B=4, d_v=3)
    leaves = [*inputs, *learned(mixer)]
    fast = values_and_gradients(lambda: mixer.attend(*inputs, key_mask=key_mask), leaves)
    slow = values_and_gradients(lambda: mixer.slow_attend(*inputs, key_mask=key_mask), leaves)
    assert_equal(fast, slow, tolerance)


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=label)
@settings(deadline=None, max_examples=12)
@given(
    T=st.integers(1, 70),
    S=st.integers(1, 70),
    chunk=st.integers(1, 80),
    role=st.sampled_from(ROLES),
    masked=st.booleans(),
)
def test_the_fast_form_is_the_slow_one(name, options, T, S, chunk, role, masked):
    mixer = core(name, role, chunk=chunk, d_v=3, **options)
    equals_its_slow_form(mixer, T, S, ragged_mask(4, S) if masked else None)


@torch.no_grad()
@pytest.mark.parametrize("role", ["causal", "cross"])
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=label)
def test_steps_behind_a_prompt_are_the_whole_pass(name, options, role):
    mixer, x = build(name, role, chunk=4, n_kv_heads=1, d_v=3, **options), noise(2, 21, 12)
    given = {"context": noise(2, 9, 12, seed=1)} if role == "cross" else {}
    whole, (y, state) = mixer(x, **given), mixer.prefill(x[:, :9], **given)
    found = [y]
    for t in range(9, 21):
        y, state = mixer.step(x[:, t], state)
        found.append(y[:, None])
    assert_equal([torch.cat(found, dim=1)], [whole], 1e-11)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=label)
def test_executed_flops_are_those_that_torch_counts(name, options, role):
    mixer = core(name, role, d_v=3, **options)
    for T, S in ((1, 1), (70, 70), (130, 130), (7, 70), (70, 7)):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            mixer.attend(*qkv(T, S, B=1, d_v=3))
        assert mixer.flops(T, S).executed == counter.get_total_flops()
        assert mixer.flops(T, S).core <= mixer.flops(T, S).executed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=label)
def test_half_precision_stays_near_float64(name, options, dtype):
    inputs, mixer = [x.detach().to(dtype) for x in qkv(70, 70)], core(name, **options)
    exact = [x.double() for x in inputs]
    assert_equal([mixer.attend(*inputs)], [mixer.attend(*exact)], 3e-2 if dtype is torch.bfloat16 else 4e-3)


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=label)
def test_gradients_are_derivatives(name, options):
    mixer = core(name, chunk=3, n_heads=2, d_v=3, **options)
    inputs = qkv(7, 7, B=1, H=2, d_v=3)
    assert torch.autograd.gradcheck(mixer.attend, inputs)


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
@pytest.mark.parametrize(("name", "options"), [one for one in OPTIONS if one[1].get("norm") != "rms"], ids=label)
def test_equal_values_come_out_unchanged(name, options, role):
    for T in (1, 5, 64):
        q, k, v = qkv(T, T)
        found = core(name, role, **options).attend(q.exp(), k.exp(), torch.full_like(v, 3.7))
        assert_equal([found], [torch.full_like(v, 3.7)], 1e-5)


# Linear


def test_features_without_a_normaliser_are_the_sum_of_outer_products_by_its_root_mean_square():
    q, k, v = qkv(33, 33)
    found = core("linear", features="identity", norm="rms", chunk=8).attend(q, k, v)
    sums = (q @ k.mT).tril() @ v
    assert_equal([found], [sums / (sums.square().mean(-1, keepdim=True) + 1e-3).sqrt()], 1e-12)
    assert not core("linear", norm="rms").normalised
    assert core("linear").normalised


def test_a_convolution_of_one_tap_of_1_is_silu():
    mixer, plain, x = build("linear", conv=1), build("linear"), noise(2, 9, 12)
    plain.load_state_dict(mixer.state_dict(), strict=False)
    for convolution in mixer.convolutions.values():
        torch.nn.init.ones_(convolution.weight)
    for found, expected in zip(mixer.project(x, x), plain.project(x, x), strict=True):
        assert_equal([found], [F.silu(expected)], 1e-12)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"n_kv_heads": 1, "d_v": 3}, {"features": "identity", "norm": "rms"}])
@pytest.mark.parametrize("conv", [1, 2, 4])
def test_a_convolution_decodes_from_nothing_and_from_a_prompt(conv, options):
    mixer, x = build("linear", conv=conv, **options), noise(2, 11, 12)
    for prompt in (0, 1, 7):
        y, state = mixer.prefill(x[:, :prompt])
        found = [y]
        for t in range(prompt, 11):
            again, _ = mixer.step(x[:, t], state)
            y, state = mixer.step(x[:, t], state)
            assert torch.equal(again, y)
            found.append(y[:, None])
        assert_equal([torch.cat(found, dim=1)], [mixer(x)], 1e-11)


def test_a_convolution_takes_padding_on_the_right_and_no_holes():
    mixer, x, holes = build("linear", conv=3), noise(1, 5, 12), torch.tensor([[True, False, True, True, True]])
    padded = mixer(x, key_mask=torch.arange(5)[None] < 3)
    assert_equal([padded[:, :3]], [mixer(x[:, :3])], 1e-12)
    with pytest.raises(ValueError, match="a convolution cannot skip hidden positions: key_mask may only hide padding"):
        mixer(x, key_mask=holes)
    with pytest.raises(ValueError, match="prefill takes no key_mask"):
        mixer.prefill(x, key_mask=~holes)
    spec, cls = Spec(12, 3, 9), BUILT_IN["linear"]
    assert cls.unsupported(spec, Use(9, 9, mask="right"), conv=3) is None
    assert "hidden positions" in cls.unsupported(spec, Use(9, 9, mask="any"), conv=3)
    assert "state" in cls.unsupported(spec, Use(9, 9, mask="right", phase="decode"), conv=3)


@pytest.mark.parametrize(
    ("role", "options", "told"),
    [
        ("causal", {"features": "identity"}, 'norm must be "rms", got "sum"'),
        ("cross", {"conv": 2}, "with conv = 2 the role must be causal"),
    ],
)
def test_options_of_linear_that_do_not_go_together_are_refused_before_anything_runs(role, options, told):
    assert told in BUILT_IN["linear"].unsupported(Spec(12, 3, 9, role), Use(9, 9), **options)
    with pytest.raises(ValueError, match=told):
        build("linear", role, **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"features": "exp"}, "features must be 'elu' or 'relu' or 'identity', got 'exp'"),
        ({"norm": "layer"}, "norm must be 'sum' or 'rms', got 'layer'"),
        ({"conv": -1}, "conv must be at least 0, got -1"),
    ],
)
def test_unknown_options_of_linear_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        build("linear", **options)


# Performer


def softmax_error(n_features, seed, size=0.5, p=64, T=64):
    """Of causal outputs against softmax attention, by the size of those."""
    q, k, v = (x.detach() for x in qkv(T, T, B=1, H=1, d_k=p, d_v=p))
    found = core("performer", n_heads=1, d_k=p, d_v=p, n_features=n_features, seed=seed).attend(size * q, size * k, v)
    expected = F.scaled_dot_product_attention(size * q, size * k, v, is_causal=True)
    return ((found - expected).norm() / expected.norm()).item()


def test_the_error_against_softmax_falls_as_features_are_added():
    errors = [torch.tensor([softmax_error(m, seed) for seed in range(20)]).median() for m in (16, 64, 256, 1024)]
    assert all(more < 0.8 * fewer for fewer, more in pairwise(errors))
    assert errors[-1] < 0.3


def test_products_of_random_features_are_softmax_kernels_on_average():
    W = core("performer", n_heads=1, d_k=4, n_features=100_000).projection.double() / 4**0.25
    q, k, _ = (0.5 * x.detach() for x in qkv(5, 5, B=1, H=1, d_k=4))
    left, right = ((x @ W.T - x.square().sum(-1, keepdim=True) / 4).exp() for x in (q, k))
    found, exact = left @ right.mT / len(W), (q @ k.mT / 2).exp()
    assert_equal([found / exact], [torch.ones_like(exact)], 0.05)


def test_rows_of_a_block_are_orthogonal_and_as_long_as_gaussian_vectors():
    projection = core("performer", n_heads=1, d_k=16, n_features=16 * 200 + 5).projection.double()
    assert projection.shape == (16 * 200 + 5, 16)
    blocks = projection[: 16 * 200].view(200, 16, 16)
    gram = blocks @ blocks.mT
    assert_equal([gram - torch.diag_embed(gram.diagonal(dim1=1, dim2=2))], [torch.zeros_like(gram)], 1e-6)
    assert gram.diagonal(dim1=1, dim2=2).mean() == pytest.approx(16, rel=0.03)  # of chi squared: 16, variance 32
    assert gram.diagonal(dim1=1, dim2=2).var() == pytest.approx(32, rel=0.15)


def test_a_projection_is_drawn_from_its_seed_and_layer_and_from_nothing_else():
    def projection(global_seed, seed=0, layer=0):
        torch.manual_seed(global_seed)
        return BUILT_IN["performer"](Spec(12, 3, 9, layer=layer), seed=seed).projection

    assert torch.equal(projection(0), projection(1))
    assert not torch.equal(projection(0), projection(0, seed=1))
    assert not torch.equal(projection(0), projection(0, layer=1))


def test_a_projection_is_redrawn_in_training_alone_and_is_saved():
    mixer, x = build("performer", redraw_every=2), noise(1, 5, 12)
    first = mixer.projection.clone()
    mixer.eval()
    before = [mixer(x), mixer(x), mixer(x)]
    assert torch.equal(before[0], before[2])
    mixer.train()
    mixer(x)
    assert torch.equal(mixer.projection, first)
    mixer(x).sum().backward()
    assert not torch.equal(mixer.projection, first)
    other = build("performer", redraw_every=2, seed=9)
    other.load_state_dict(mixer.state_dict())
    for _ in range(2):  # both go on alike but for the seed, which the state does not hold
        assert torch.equal(other.eval()(x), mixer.eval()(x))
    constant = build("performer").train()
    constant(x)
    assert torch.equal(constant.projection, first)


@pytest.mark.parametrize("kind", ["softmax", "hyperbolic"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 15.0])
def test_keys_of_any_length_are_weighed_in_float32_and_a_later_key_changes_none(kind, size):
    q, k, v = (x.detach().float() for x in qkv(40, 40, B=1))
    mixer = core("performer", kind=kind, n_features=64, chunk=8).float()
    q, k = q / 2, k * size
    exact = mixer.attend(q.double(), k.double(), v.double())
    y = mixer.attend(q, k, v)
    assert_equal([y], [exact.float()], 2e-3)
    k[:, :, 30:], v[:, :, 30:] = 1e-3 * k[:, :, 30:], 1e3
    assert_equal([mixer.attend(q, k, v)[:, :, :30]], [y[:, :, :30]], 1e-6)


@pytest.mark.parametrize("kind", ["softmax", "hyperbolic"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 15.0, 100.0])
def test_read_by_all_queries_keys_of_any_length_have_outputs_and_gradients_in_float32(kind, size):
    exact, mask = qkv(40, 40, B=2), torch.arange(40) < torch.tensor([[25], [0]])
    exact = [(x * by).detach().requires_grad_() for x, by in zip(exact, (0.5, size, 1.0), strict=True)]
    inputs = [x.detach().float().requires_grad_() for x in exact]
    for key_mask in (None, mask):
        mix = partial(core("performer", "bidirectional", kind=kind, n_features=64).attend, key_mask=key_mask)
        found, expected = (values_and_gradients(partial(mix, *x), x) for x in (inputs, exact))
        for one, other in zip(found, expected, strict=True):
            assert_equal([one], [other.float()], 1e-2 if size == 100 else 2e-3)
    assert not found[0][1].any()


def test_a_causal_performer_stores_no_matrix_per_step():
    sizes = {"n_heads": 2, "d_k": 64, "d_v": 64}
    mixer, inputs = core("performer", **sizes), [torch.zeros(1, 2, 4096, 64, requires_grad=True) for _ in range(3)]
    used = peak_bytes(lambda: torch.autograd.grad(mixer.float().attend(*inputs).sum(), inputs), "cpu")
    assert used < 128 * 2**20  # one matrix per step would be 512 MiB


# cosFormer


@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_cosformer_weighs_relu_products_by_the_cosine_of_the_distance(role):
    (q, k, v), i = qkv(20, 20), torch.arange(20).double()
    weights = (q.relu() @ k.relu().mT) * torch.cos(torch.pi / 2 * (i[:, None] - i) / 32)
    weights = weights.tril() if role == "causal" else weights
    total = weights.sum(-1, keepdim=True)
    expected = weights @ v / total.masked_fill(total == 0, 1.0)
    assert_equal([core("cosformer", role, max_T=32).attend(q, k, v)], [expected], 1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("role", ["causal", "bidirectional"])
def test_cosformer_gives_0_where_every_feature_is_0(role, dtype):
    q = torch.full((1, 3, 5, 4), -1.0, dtype=dtype).requires_grad_()
    inputs = [q, q.detach().clone().requires_grad_(), torch.ones_like(q).requires_grad_()]
    mix = core("cosformer", role).attend
    found = values_and_gradients(lambda: mix(*inputs), inputs)
    assert_equal(found, [torch.zeros_like(part) for part in found], 0.0)


def test_a_longer_batch_changes_no_output_of_cosformer():
    mixer, x = build("cosformer", "bidirectional"), noise(1, 30, 12)
    mask = torch.arange(30)[None] < 12
    assert_equal([mixer(x, key_mask=mask)[:, :12]], [mixer(x[:, :12])], 1e-12)


def test_cosformer_takes_no_position_beyond_the_longest():
    mixer, x = build("cosformer", max_T=8), noise(1, 9, 12)
    with pytest.raises(ValueError, match="9 positions do not fit max_T = 8"):
        mixer(x)
    _, state = mixer.prefill(x[:, :8])
    with pytest.raises(ValueError, match="9 positions do not fit max_T = 8"):
        mixer.step(x[:, 8], state)


# Hedgehog


def test_hedgehog_starts_as_softmax_over_channels_of_either_sign():
    q, k, v = qkv(9, 9)
    left, right = (torch.cat((x.softmax(-1), (-x).softmax(-1)), dim=-1) for x in (q, k))
    weights = (left @ right.mT).tril()
    assert_equal([core("hedgehog").attend(q, k, v)], [weights @ v / weights.sum(-1, keepdim=True)], 1e-12)


@pytest.mark.parametrize("n_kv_heads", [1, 3])
def test_hedgehog_has_a_map_for_each_head_of_queries_and_of_keys(n_kv_heads):
    mixer = build("hedgehog", n_kv_heads=n_kv_heads)
    assert [tuple(p.shape) for p in learned(mixer)] == [(3, 4, 4), (n_kv_heads, 4, 4)]
    with torch.no_grad():
        for p in learned(mixer):
            p.add_(noise(*p.shape, seed=5))
    x = noise(2, 9, 12)
    assert_equal([mixer(x)], [mixer.slow_forward(x)], 1e-11)


# Based


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("f", [1, 2, 5, 8, 16])
def test_based_is_the_same_pair_by_pair_and_by_features(f, role, monkeypatch):
    mixer, inputs = core("based", role, d_k=f, d_v=3, chunk=8), qkv(37, 37, B=4, d_k=f, d_v=3)
    for key_mask in (None, ragged_mask(4, 37)):
        found = []
        for few in (True, False):
            monkeypatch.setattr(mixer, "_few_pairs", lambda T, S, few=few: few)
            found.append(values_and_gradients(lambda m=key_mask: mixer.attend(*inputs, key_mask=m), inputs))
        slow = values_and_gradients(lambda m=key_mask: mixer.slow_attend(*inputs, key_mask=m), inputs)
        assert_equal(found[0], slow, 1e-9)
        assert_equal(found[1], slow, 1e-9)


@pytest.mark.parametrize(("f", "m"), [(1, 3), (2, 7), (5, 21), (16, 161)])
def test_based_has_as_many_features_as_it_says(f, m):
    mixer = core("based", d_k=f)
    assert mixer.n_features == m == mixer.phi(noise(1, 3, 2, f), "k", 0).shape[-1]


def test_products_of_the_features_of_based_are_its_taylor_series():
    q, k, _ = qkv(9, 9, d_k=16)
    mixer = core("based", d_k=16)
    s = q @ k.mT / 4
    assert_equal([mixer.phi(q, "q", 0) @ mixer.phi(k, "k", 0).mT], [1 + s + s**2 / 2], 1e-12)


def test_based_counts_what_it_executes_on_either_side_of_its_choice():
    mixer = core("based", d_k=16, d_v=3)
    assert mixer._few_pairs(20, 20)
    assert not mixer._few_pairs(130, 130)
    for T in (20, 65, 130, 200):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            mixer.attend(*qkv(T, T, B=1, d_k=16, d_v=3))
        assert mixer.flops(T, T).executed == counter.get_total_flops()

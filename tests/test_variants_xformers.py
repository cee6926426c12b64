"""xformers without xformers: a stand-in package shows what it is given, and every way of lacking it has a reason."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import slow_forms
import torch
from cores import BUILT_IN, assert_equal, build, core, noise, qkv, values_and_gradients

from attnbench.mixer import Spec, Use

XFORMERS = BUILT_IN["xformers"]
ON_GPU = {"device": "cuda", "dtype": "float32"}
ROLES = ("causal", "bidirectional", "cross")


class BottomRight:
    """Stands in for LowerTriangularFromBottomRightMask."""


class Package:
    """What memory_efficient_attention would compute, and what it was called with."""

    def __init__(self):
        self.calls = []

    def memory_efficient_attention(self, query, key, value, attn_bias=None):
        self.calls.append((query.shape, key.shape, value.shape, attn_bias))
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        role = "causal" if isinstance(attn_bias, BottomRight) else "cross"
        return slow_forms.softmax_attention(q, k, v, slow_forms.visible(q.shape[2], k.shape[2], role)).transpose(1, 2)

    def install(self, patch):
        modules = {name: ModuleType(name) for name in ("xformers", "xformers.ops", "xformers.ops.fmha")}
        modules["xformers.ops.fmha.attn_bias"] = bias = ModuleType("xformers.ops.fmha.attn_bias")
        modules["xformers.ops"].memory_efficient_attention = self.memory_efficient_attention
        bias.LowerTriangularFromBottomRightMask = BottomRight
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)


@pytest.fixture
def package(monkeypatch):
    package = Package()
    package.install(monkeypatch)
    return package


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "xformers", None)
    monkeypatch.setitem(sys.modules, "xformers.ops", None)


@pytest.mark.parametrize("role", ROLES)
def test_time_stands_before_heads_and_the_mask_is_aligned_bottom_right(package, role):
    for T, S in ((5, 5), (1, 5), (3, 5)):
        inputs = qkv(T, S, d_v=6)
        mix = core("xformers", role, d_v=6).attend
        found = values_and_gradients(lambda mix=mix, inputs=inputs: mix(*inputs), inputs)
        expected = core("full", role, d_v=6).attend
        assert_equal(found, values_and_gradients(lambda f=expected, x=inputs: f(*x), inputs), 1e-12)
        q, k, v, bias = package.calls[-1]
        assert (q, k, v) == ((2, T, 3, 4), (2, S, 3, 4), (2, S, 3, 6))
        assert isinstance(bias, BottomRight) if role == "causal" else bias is None


def test_queries_before_every_key_give_0_and_are_kept_from_the_kernel(package):
    q, k, v = qkv(7, 4)
    y = core("xformers").attend(q, k, v)
    assert y[:, :, :3].eq(0).all()
    assert_equal([y], [core("full").attend(q, k, v)], 1e-12)
    assert package.calls[-1][0] == (2, 4, 3, 4)


@torch.no_grad()
def test_it_decodes_by_the_ordinary_cache(package):
    mixer, x = build("xformers"), noise(2, 9, 12)
    y, state = mixer.prefill(x[:, :6])
    for t in range(6, 9):
        token, state = mixer.step(x[:, t], state)
        y = torch.cat((y, token[:, None]), dim=1)
    assert_equal([y], [mixer(x)], 1e-12)


def test_its_flops_are_those_of_the_pairs_a_query_sees():
    for role in ROLES:
        ours, full = (build(name, role).flops(9, 9) for name in ("xformers", "full"))
        assert (ours.core, ours.projection, ours.executed) == (full.core, full.projection, full.core)
        assert ours.backward == 2.5


def test_key_masks_are_refused(package):
    with pytest.raises(ValueError, match="give no key_mask"):
        core("xformers").attend(*qkv(3, 3), key_mask=torch.ones(2, 3, dtype=torch.bool))
    assert package.calls == []


def test_a_kernel_that_does_not_exist_is_one_line_with_the_fix(package, monkeypatch):
    def refuse(*args, **kwargs):
        raise NotImplementedError("No operator found for this attention:\n  query: shape=...\n  pages of reasons")

    monkeypatch.setattr(sys.modules["xformers.ops"], "memory_efficient_attention", refuse)
    with pytest.raises(RuntimeError) as caught:
        core("xformers").attend(*qkv(3, 3))
    assert str(caught.value).count("\n") == 0
    assert "xformers.info" in str(caught.value)
    assert "No operator found for this attention" in str(caught.value)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_on_a_gpu_with_the_package_nothing_is_refused(package, role, dtype):
    assert XFORMERS.unsupported(Spec(16, 2, 8, role), Use(5, 8, device="cuda:0", dtype=dtype)) is None


@pytest.mark.parametrize(
    ("use", "options", "reason"),
    [
        ({"device": "cpu"}, {}, "CUDA alone, not for cpu"),
        ({**ON_GPU, "dtype": "float64"}, {}, "not float64"),
        ({**ON_GPU, "mask": "right"}, {}, "key mask"),
        ({**ON_GPU, "mask": "any"}, {}, "key mask"),
        (ON_GPU, {"d_k": 6}, "divisible by 4 in float32, got 6 and 8"),
        ({**ON_GPU, "dtype": "bfloat16"}, {"d_v": 12}, "divisible by 8 in bfloat16, got 8 and 12"),
    ],
)
def test_what_it_cannot_do_has_a_reason(package, use, options, reason):
    assert reason in XFORMERS.unsupported(Spec(16, 2, 8), Use(8, 8, **use), **options)


def test_a_missing_package_is_a_reason_with_the_fix(absent):
    reason = XFORMERS.unsupported(Spec(16, 2, 8), Use(8, 8, **ON_GPU))
    assert "cannot be used: ModuleNotFoundError" in reason
    assert "pip install xformers" in reason


@pytest.mark.parametrize("error", [RuntimeError, OSError, ImportError, AttributeError, SystemExit])
def test_a_package_that_fails_at_import_is_a_reason_of_one_line(monkeypatch, tmp_path, error):
    for name in [name for name in sys.modules if name.partition(".")[0] == "xformers"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "xformers").mkdir()
    (tmp_path / "xformers" / "__init__.py").write_text(f"raise {error.__name__}('built for torch 1.0\\nsecond line')\n")
    monkeypatch.syspath_prepend(tmp_path)
    reason = XFORMERS.unsupported(Spec(16, 2, 8), Use(8, 8, **ON_GPU))
    assert f"{error.__name__}: built for torch 1.0 (" in reason


def test_a_package_without_its_attention_is_a_reason(package, monkeypatch):
    monkeypatch.delattr(sys.modules["xformers.ops"], "memory_efficient_attention")
    assert "ImportError" in XFORMERS.unsupported(Spec(16, 2, 8), Use(8, 8, **ON_GPU))


def test_the_package_is_not_asked_for_on_a_cpu(absent):
    assert "CUDA alone" in XFORMERS.unsupported(Spec(16, 2, 8), Use(8, 8))
    assert XFORMERS(Spec(16, 2, 8)).W_q.weight.shape == (16, 16)

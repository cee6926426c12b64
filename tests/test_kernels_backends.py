"""fla without fla: a stand-in package shows what it is given, and every way of lacking it has a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from cores import BUILT_IN, assert_equal, build, noise, values_and_gradients

from attnbench.kernels import FlaKernel, backends
from attnbench.mixer import Spec, Use
from attnbench.options import resolve

KERNEL = FlaKernel("delta_rule.chunk_delta_rule", max_width=256)
NAMES = [name for name, cls in BUILT_IN.items() if "backend" in resolve(cls, {})[0]]
DELTA = [name for name in NAMES if BUILT_IN[name].fla.max_width is not None]
ON_GPU = {"device": "cuda", "dtype": "bfloat16"}


def slow(q, k, v, beta, g, scale, state):
    """A decaying state over (B, T, H, D), token by token: with beta it overwrites, with None it adds."""
    ys, g = [], g[..., None] if g.ndim == 3 else g  # (B, T, H, 1 or D)
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3]) if state is None else state
    for t in range(q.shape[1]):
        state, write = state * g[:, t, :, :, None].exp(), v[:, t]
        if beta is not None:
            write = beta[:, t, :, None] * (write - (k[:, t, :, :, None] * state).sum(2))
        state = state + k[:, t, :, :, None] * write[:, :, None]
        ys.append(scale * (q[:, t, :, :, None] * state).sum(2))
    return torch.stack(ys, dim=1), state


class Package:
    """What functions of fla 0.6 compute, by their signatures and layout, and what they were called with."""

    def __init__(self):
        self.calls = []

    def chunk_delta_rule(self, q, k, v, beta, scale=None, initial_state=None, output_final_state=False):
        return self.answer(q, k, v, beta, torch.zeros_like(beta), scale, initial_state, output_final_state)

    def chunk_gated_delta_rule(self, q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False):
        return self.answer(q, k, v, beta, g, scale, initial_state, output_final_state)

    def chunk_simple_gla(self, q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False):
        assert q.shape[:3] == k.shape[:3] == v.shape[:3]
        g = torch.zeros(q.shape[:3]).double() if g is None else g
        assert g.shape == q.shape[:3]
        return self.answer(q, k, v, None, g, scale, initial_state, output_final_state)

    def chunk_gla(self, q, k, v, g, scale=None, initial_state=None, output_final_state=False):
        assert q.shape == k.shape == g.shape
        return self.answer(q, k, v, None, g, scale, initial_state, output_final_state)

    def answer(self, q, k, v, beta, g, scale, initial_state, output_final_state):
        self.calls.append((q.shape, k.shape, v.shape))
        assert all(x.is_contiguous() for x in (q, k, v, beta, g) if x is not None)
        y, state = slow(q, k, v, beta, g, q.shape[-1] ** -0.5 if scale is None else scale, initial_state)
        return y, state if output_final_state else None

    def install(self, patch):
        modules = {name: ModuleType(name) for name in ("fla", "fla.ops")}
        for folder in ("delta_rule", "gated_delta_rule", "simple_gla", "gla"):
            modules[f"fla.ops.{folder}"] = module = ModuleType(f"fla.ops.{folder}")
            setattr(module, f"chunk_{folder}", getattr(self, f"chunk_{folder}"))
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)


@pytest.fixture(autouse=True)
def forgotten():
    """No test remembers what another imported."""
    backends._function.cache_clear()
    yield
    backends._function.cache_clear()


@pytest.fixture
def package(monkeypatch):
    package = Package()
    package.install(monkeypatch)
    return package


@pytest.fixture
def served(package, monkeypatch):
    """The stand-in, on a machine whose CPU counts as a device of fla, in float64."""
    monkeypatch.setattr(backends, "FLA_DEVICES", ("cpu",))
    monkeypatch.setattr(backends, "FLA_DTYPES", ("float64",))
    return package


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "fla", None)


# What it is given, and what it gives


@pytest.mark.parametrize("backend", ["auto", "fla"])
@pytest.mark.parametrize("name", NAMES)
def test_a_layer_on_fla_equals_the_layer_on_torch(served, name, backend):
    widths = {"d_state": 3, "n_groups": 3} if name == "mamba2" else {"d_k": 3, "d_v": 5}
    ours, other = (build(name, backend=one, **widths) for one in ("torch", backend))
    x = noise(2, 9, 12)
    expected = values_and_gradients(lambda: ours(x), [x, *ours.parameters()])
    assert served.calls == []
    assert_equal(values_and_gradients(lambda: other(x), [x, *other.parameters()]), expected, 1e-10)
    assert served.calls == [((2, 9, 3, 3), (2, 9, 3, 3), (2, 9, 3, 8 if name == "mamba2" else 5))]
    assert (ours.extra_record(), other.extra_record()) == ({"backend": "torch"}, {"backend": "fla"})


@torch.no_grad()
@pytest.mark.parametrize("T0", [0, 5])
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_read_by_fla_is_decoded_on(served, name, T0):
    mixer, x = build(name, backend="fla"), noise(2, 9, 12)
    y, state = mixer.prefill(x[:, :T0])
    assert len(served.calls) == (T0 > 0)
    for t in range(T0, 9):
        token, state = mixer.step(x[:, t], state)
        y = torch.cat((y, token[:, None]), dim=1)
    assert mixer.extra_record() == {"backend": "torch"}  # a token alone is ours
    assert_equal([y], [mixer(x)], 1e-11)
    assert mixer.extra_record() == {"backend": "fla"}


@pytest.mark.parametrize(("T", "S"), [(4, 9), (9, 4)])
@pytest.mark.parametrize("norm", ["sum", "rms"])
def test_sums_before_the_first_query_and_hidden_keys_are_as_on_torch(served, norm, T, S):
    ours, other = (build("linear", backend=one, norm=norm) for one in ("torch", "fla"))
    q, k, v = noise(2, 3, T, 4, seed=1), noise(2, 3, S, 4, seed=2), noise(2, 3, S, 4, seed=3)
    key_mask = torch.arange(S) % 3 > 0
    for mask in (None, key_mask.expand(2, -1)):
        found, expected = (
            values_and_gradients(lambda f=f, mask=mask: f.attend(q, k, v, key_mask=mask), [q, k, v])
            for f in (other, ours)
        )
        assert_equal(found, expected, 1e-9)
    assert other.ran == "fla"


@pytest.mark.parametrize("role", ["bidirectional", "cross"])
def test_a_kernel_for_one_direction_is_refused_in_the_others(package, role):
    reason = "backend 'fla' has a kernel for the causal role alone"
    assert BUILT_IN["linear"].unsupported(Spec(16, 2, 8, role), Use(8, 8, **ON_GPU), backend="fla").startswith(reason)
    with pytest.raises(ValueError, match=reason):
        build("linear", role, backend="fla")


def test_heads_of_a_group_share_what_fla_has_for_each(served):
    ours, other = (build("mamba2", backend=one) for one in ("torch", "fla"))
    x = noise(2, 9, 12)
    assert_equal([other(x)], [ours(x)], 1e-11)
    assert served.calls == [((2, 9, 3, 128), (2, 9, 3, 128), (2, 9, 3, 8))]


@pytest.mark.parametrize("name", NAMES)
def test_executed_operations_are_told_of_the_torch_form_alone(served, name):
    mixer = build(name)
    assert mixer.flops(40, 40).executed > mixer.flops(40, 40).core
    mixer(noise(1, 4, 12))
    assert mixer.flops(40, 40).executed == mixer.flops(40, 40).core


# Which one runs


def test_auto_takes_what_serves_and_says_so(package, monkeypatch):
    q = torch.zeros(1, 1, 2, 300)
    assert KERNEL.chosen("auto", q) == KERNEL.chosen("torch", q) == "torch"
    monkeypatch.setattr(backends, "FLA_DEVICES", ("cpu",))
    for dtype, width, expected in (
        (torch.float32, 4, "torch"),
        (torch.bfloat16, 4, "fla"),
        (torch.float16, 256, "fla"),
        (torch.bfloat16, 257, "torch"),
    ):
        assert KERNEL.chosen("auto", q[..., :width].to(dtype)) == expected
        assert KERNEL.chosen("torch", q[..., :width].to(dtype)) == "torch"


@pytest.mark.parametrize("name", NAMES)
def test_a_backend_that_is_named_is_never_replaced_in_silence(name, absent, monkeypatch):
    mixer, x = build(name, backend="fla"), noise(1, 4, 12)
    with pytest.raises(RuntimeError, match="for CUDA alone, not for cpu: backend = 'torch' runs there"):
        mixer(x)
    monkeypatch.setattr(backends, "FLA_DEVICES", ("cpu",))
    with pytest.raises(RuntimeError, match="takes float16 and bfloat16, not float64: backend = 'torch' takes it"):
        mixer(x)
    monkeypatch.setattr(backends, "FLA_DTYPES", ("float64",))
    with pytest.raises(RuntimeError, match=r"fla cannot be used: ModuleNotFoundError.*pip install fla-core"):
        mixer(x)
    assert mixer.extra_record() == {"backend": "torch"}  # nothing else has run


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("use", "options", "reason"),
    [
        ({}, {}, "CUDA alone, not for cpu"),
        ({**ON_GPU, "dtype": "float32"}, {}, "takes float16 and bfloat16, not float32"),
        ({**ON_GPU, "device": "cuda:1"}, {}, "fla cannot be used"),
    ],
)
def test_what_fla_cannot_do_is_known_before_anything_runs(absent, name, use, options, reason):
    cls, spec = BUILT_IN[name], Spec(16, 2, 8)
    told = cls.unsupported(spec, Use(8, 8, **use), backend="fla", **options)
    assert reason in told
    assert "\n" not in told
    for backend in ("auto", "torch"):
        assert cls.unsupported(spec, Use(8, 8, **use), backend=backend, **options) is None


@pytest.mark.parametrize("name", DELTA)
def test_keys_are_not_wider_than_the_kernels_of_the_delta_rule_take(package, name):
    told = BUILT_IN[name].unsupported(Spec(16, 2, 8), Use(8, 8, **ON_GPU), backend="fla", d_k=512)
    assert told.endswith("takes keys up to 256 wide, got 512")


@pytest.mark.parametrize("name", NAMES)
def test_with_the_package_on_cuda_nothing_is_refused(package, name):
    assert BUILT_IN[name].unsupported(Spec(16, 2, 8), Use(8, 8, **ON_GPU), backend="fla") is None


# An import that fails


@pytest.mark.parametrize("error", [ImportError, RuntimeError, OSError, AttributeError, SystemExit])
def test_a_package_that_fails_at_import_in_any_way_is_a_reason_of_one_line(monkeypatch, tmp_path, error):
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "fla").mkdir()
    (tmp_path / "fla" / "__init__.py").write_text(f"raise {error.__name__}('built for torch 1.0\\nsecond line')\n")
    monkeypatch.syspath_prepend(tmp_path)
    reason = KERNEL.refusal("fla", device="cuda", dtype="bfloat16", d_k=4)
    assert f"{error.__name__}: built for torch 1.0 (" in reason
    assert KERNEL.refusal("auto", device="cuda", dtype="bfloat16", d_k=4) is None
    monkeypatch.setattr(backends, "FLA_DEVICES", ("cpu",))
    assert KERNEL.chosen("auto", torch.zeros(1, 1, 2, 4, dtype=torch.bfloat16)) == "torch"


def test_a_package_without_the_kernel_is_a_reason(package, monkeypatch):
    monkeypatch.delattr(sys.modules["fla.ops.delta_rule"], "chunk_delta_rule")
    assert "AttributeError" in KERNEL.refusal("fla", device="cuda", dtype="bfloat16", d_k=4)


def test_the_package_is_not_imported_for_a_cpu(monkeypatch):
    def refuse(name):
        raise AssertionError(f"{name} was imported")

    monkeypatch.setattr(backends.importlib, "import_module", refuse)
    for name in NAMES:
        build(name)(noise(1, 4, 12))
        assert "CUDA alone" in BUILT_IN[name].unsupported(Spec(16, 2, 8), Use(8, 8), backend="fla")


SWEEP = """
[timing]
visits = 1
warmup_s = 0.0
max_s = 0.05
[[grid]]
variant = ["deltanet"]
T = [16]
d_model = 8
n_heads = 2
measure = ["time"]
device = "cpu"
level = "layer"
"""


def test_listing_running_and_drawing_work_beside_a_triton_that_fails_at_import(tmp_path):
    (tmp_path / "broken" / "fla").mkdir(parents=True)
    (tmp_path / "broken" / "triton.py").write_text("raise RuntimeError('no driver')\n")
    (tmp_path / "broken" / "fla" / "__init__.py").write_text("import triton\n")
    (tmp_path / "sweep.toml").write_text(SWEEP)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "broken"), "MPLBACKEND": "agg"}

    def attnbench(*arguments):
        command = [sys.executable, "-m", "attnbench", *arguments]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "gated_deltanet" in attnbench("variants")
    attnbench("run", "sweep.toml", "--out", "run")
    records = "".join(path.read_text() for path in (tmp_path / "run").rglob("*.jsonl"))
    assert "backend" in records
    assert "1 of 1 cells ok" in attnbench("report", "run")


def test_features_that_are_unit_length_need_no_scale(served):
    """The package would divide by sqrt(d_k) unless told otherwise, which the norm behind it would almost hide."""
    q, k, v = (noise(1, 2, 5, 9, seed=i) for i in range(3))
    k, beta = F.normalize(k, dim=-1), torch.full((1, 2, 5), 0.5).double()
    y, state = KERNEL(q, k, v, beta)
    turned = [x.transpose(1, 2) for x in (q, k, v, beta, 0 * beta)]
    expected = slow(*turned, 1.0, None)
    assert_equal([y.detach(), state.detach()], [expected[0].transpose(1, 2).detach(), expected[1].detach()], 1e-12)

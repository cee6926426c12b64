"""Devices: a GPU that finishes late is waited for, timed by its own events, flushed and bounded. No GPU is needed."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from commands import attnbench as command
from fake_cuda import FakeCuda, Logged
from runs import PLUGINS, write_sweep

import attnbench
from attnbench.execute import plan
from attnbench.execute.local import PRELOAD, PRELOAD_TRAINING, FreshProcesses
from attnbench.measure import device
from attnbench.measure.clock import time_call
from attnbench.measure.device import CPU, CUDA, kinds, open_device
from attnbench.measure.memory import peak_bytes
from attnbench.settings import TimingSettings

BRIEF = TimingSettings(warmup_s=0.2, max_s=1.0)


def timed(cuda, cost_s=0.05, settings=BRIEF):
    return time_call(lambda: cuda.launch(cost_s), settings, device=Logged(cuda), clock=cuda.clock)


def test_calls_that_return_at_once_and_finish_later_are_timed_to_their_end():
    timing = timed(FakeCuda())
    assert min(timing.samples_s) >= 0.05
    assert timing.first_call_s >= 0.05
    assert timing.sampled_s >= 0.05 * len(timing.samples_s)


def test_wall_clock_and_events_agree_where_waiting_costs_nothing():
    timing = timed(FakeCuda())
    assert timing.samples_s == pytest.approx([0.05] * len(timing.samples_s), rel=0.01)
    assert timing.wall_ratio == pytest.approx(1.0, abs=0.05)


def test_what_waiting_costs_is_in_the_ratio_and_in_no_sample():
    timing = timed(FakeCuda(wait_s=0.01))
    assert timing.samples_s == pytest.approx([0.05] * len(timing.samples_s), rel=0.01)
    assert timing.wall_ratio == pytest.approx(1.2, rel=0.01)
    assert timing.sampled_s == pytest.approx(0.06 * len(timing.samples_s), rel=0.01)


def test_each_sample_is_flushed_waited_for_and_marked_in_this_order():
    cuda = FakeCuda()
    timing = timed(cuda, cost_s=2e-4)
    assert timing.calls > 1
    text = " ".join(cuda.log)
    one = ["flush", "synchronize", "clock", "record", *["call"] * timing.calls, "record", "synchronize", "clock"]
    single = " ".join(one).replace(" ".join(["call"] * timing.calls), "call")
    assert text == " ".join([single] * text.count(single) + [" ".join(one)] * len(timing.samples_s))


@pytest.mark.parametrize("l2_bytes", [1, 4096, 50 * 2**20])
def test_a_flush_writes_at_least_the_whole_cache(l2_bytes):
    flushed = CUDA(FakeCuda(l2_bytes=l2_bytes), place="cpu")
    flushed._cache_filler.fill_(1)
    flushed.flush()
    assert flushed._cache_filler.nbytes >= l2_bytes
    assert not flushed._cache_filler.any()


def test_a_cpu_has_no_events_and_its_wall_clock_counts():
    timing = time_call(lambda: None, TimingSettings(warmup_s=0.0, max_s=0.0), device=CPU())
    assert timing.wall_ratio is None
    assert timing.sampled_s == pytest.approx(timing.samples_s[0] * timing.calls)


def test_an_error_of_the_device_ends_its_visit_and_harms_no_other():
    with FreshProcesses() as processes:
        bad = processes.call("child_jobs:time_on_fake_gpu", 3)
        assert bad.status == "failed"
        assert bad.reason.startswith("AcceleratorError: CUDA error: device-side assert triggered")
        assert "\n" not in bad.reason
        good = processes.call("child_jobs:time_on_fake_gpu", None)
        assert good.status == "ok"
        assert min(good.value) >= 0.05


def test_a_device_that_is_broken_for_good_fails_every_later_wait():
    cuda = FakeCuda()
    cuda.launch_bad()
    for _ in range(3):
        with pytest.raises(torch.AcceleratorError):
            timed(cuda)


@pytest.mark.parametrize(("limit", "fraction"), [(2**29, 0.5), (2**30, 1.0), (2**40, 1.0)])
def test_a_limit_is_a_share_of_the_gpus_memory(limit, fraction):
    cuda = FakeCuda(total_memory=2**30)
    CUDA(cuda, place="cpu").limit_memory(limit)
    assert cuda.fraction == fraction


def test_on_a_gpu_float32_is_float32(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert isinstance(open_device("cuda"), CUDA)
    assert torch.backends.cudnn.allow_tf32 is False


def test_a_cpu_is_opened_without_a_look_at_the_gpu(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert isinstance(open_device("cpu"), CPU)
    assert torch.backends.cudnn.allow_tf32 is True


def no_answer():
    raise torch.AcceleratorError("CUDA error: all CUDA-capable devices are busy or unavailable")


def test_the_devices_are_named_the_fastest_last_and_one_that_does_not_answer_is_not_there(monkeypatch):
    monkeypatch.setattr(device, "processor", lambda: "A CPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert kinds() == {"cpu": "A CPU"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    assert list(kinds().items()) == [("cpu", "A CPU"), ("cuda", "A GPU")]
    monkeypatch.setattr(torch.cuda, "get_device_name", no_answer)
    assert kinds() == {"cpu": "A CPU"}


def test_peak_memory_of_a_gpu_is_its_allocators_above_what_was_held(monkeypatch):
    held = SimpleNamespace(now=1000, peak=5000)

    def allocate(n):
        held.peak = max(held.peak, held.now + n)

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: setattr(held, "peak", held.now))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: held.now)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: held.peak)
    assert peak_bytes(lambda: [allocate(n) for n in (100, 700, 300)], "cuda") == 700


# No device context where processes are forked from


LOOK = """
import importlib, json, sys
import torch
touched = []
def watch(name, real):
    def watched(*args, **kwargs):
        touched.append(name)
        return real(*args, **kwargs)
    return watched
for name in ("init", "_lazy_init", "is_available", "device_count", "current_device", "get_device_properties",
             "get_device_name", "synchronize", "mem_get_info"):
    setattr(torch.cuda, name, watch(name, getattr(torch.cuda, name)))
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps({"touched": touched, "live": torch.cuda.is_initialized()}))
"""


def look(*modules):
    done = subprocess.run([sys.executable, "-c", LOOK, *modules], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_what_the_forkserver_loads_looks_at_no_gpu():
    assert look(*PRELOAD, *PRELOAD_TRAINING) == {"touched": [], "live": False}


def test_the_look_would_see_a_module_that_does(tmp_path, monkeypatch):
    (tmp_path / "nosy.py").write_text("import torch\ntorch.cuda.is_available()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "is_available" in look("nosy")["touched"]


def test_a_fresh_process_starts_without_a_device_context():
    with FreshProcesses(training=True) as processes:
        assert processes.call("child_jobs:device_context").value == {"live": False, "can_be_made": True}


PLAN = """
import sys
from pathlib import Path
from attnbench.execute.local import FreshProcesses
from attnbench.execute.plan import make_plan
from attnbench.sweep_file import read_toml
path = Path(sys.argv[1])
with FreshProcesses() as processes:
    make_plan(processes, path, read_toml(path))
print("torch" in sys.modules)
"""


def test_a_run_is_planned_by_a_process_without_torch(tmp_path):
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = 8\n')
    done = subprocess.run([sys.executable, "-c", PLAN, sweep], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# Whole runs


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
@pytest.mark.parametrize("more", [["--dry-run"], []])
def test_a_sweep_for_a_gpu_is_refused_in_one_line_where_there_is_none(tmp_path, more):
    sweep = Path(__file__).parent.parent / "experiments" / "gpu.toml"
    done = command("run", sweep, "--out", tmp_path / "run", *more)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {sweep}: grid[0].device: torch sees no cuda here; available: cpu\n"
    assert not (tmp_path / "run").exists()


def test_a_device_left_open_is_recorded_as_the_one_in_use(tmp_path):
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = 8\ndevice = "auto"\nmeasure = ["time", "memory"]\n')
    made = attnbench.run(sweep, out=tmp_path / "run")
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    (found,) = made.frame[["device", "device_name", "status"]].to_dict("records")
    assert found["status"] == "ok"
    assert found["device"] == kind
    assert found["device_name"] == made.environment["gpu" if kind == "cuda" else "processor"]


@pytest.mark.parametrize("phase", ["forward", "forward_backward"])
def test_running_out_of_memory_again_and_again_leaves_other_cells_as_they_would_be(tmp_path, phase):
    head = f'plugins = ["{PLUGINS / "hungry.py"}"]'
    grid = f'[[grid]]\nmeasure = "memory"\nT = 8\nphase = "{phase}"\nseed = [0, 1, 2]\n'
    beside, alone = (
        attnbench.run(write_sweep(tmp_path, grid + variants, head, f"{name}.toml"), out=tmp_path / name, workers=1)
        for name, variants in (
            ("beside", 'variant = [{name = "hungry", fail_at = 8}, "full"]'),
            ("alone", 'variant = "full"'),
        )
    )
    bad, good = (beside.frame[beside.frame["variant"] == variant] for variant in ("hungry", "full"))
    assert list(bad["status"]) == ["oom"] * 3
    assert all(reason.startswith("OutOfMemoryError: ") for reason in bad["reason"])
    assert list(good["peak_bytes"]) == list(alone.frame["peak_bytes"])
    assert abs(good["rss_peak_bytes"].max() - alone.frame["rss_peak_bytes"].min()) < 50 * 2**20


@pytest.mark.parametrize(
    ("device", "measure", "threads", "side_by_side"),
    [
        ("cpu", "time", 1, 1),
        ("cpu", "memory", 1, 16),
        ("cpu", "accuracy", 4, 4),
        ("cpu", None, 4, 16),
        ("cuda", "time", 1, 1),
        ("cuda", "memory", 1, 1),
        ("cuda", "accuracy", 1, plan.GPU_WORKERS),
        ("cuda", None, 1, plan.GPU_WORKERS),
    ],
)
def test_visits_that_share_what_they_measure_run_one_by_one(device, measure, threads, side_by_side):
    cells = [SimpleNamespace(device="cpu", threads=1), SimpleNamespace(device=device, threads=threads)]
    assert plan.at_once(cells, measure, 16) == side_by_side

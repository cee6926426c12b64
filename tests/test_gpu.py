"""What only a real GPU can show. Each sweep is small; on a machine without a GPU all of this is skipped."""

import pytest
import torch
from runs import write_sweep

import attnbench
from attnbench.measure.device import open_device
from attnbench.measure.memory import peak_bytes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="times and weighs work of a real GPU")

GPU = '[[grid]]\ndevice = "cuda"\nd_model = 256\nn_heads = 4\n'
LONG_ENOUGH = 'variant = "full"\nT = [4096, 8192]\n'


def frame_of(tmp_path, grid, head=""):
    sweep = write_sweep(tmp_path, GPU + grid, head)
    sweep.write_text(sweep.read_text().replace("warmup_s = 0.0\nmax_s = 0.005", "warmup_s = 0.2\nmax_s = 0.5"))
    return attnbench.run(sweep, out=tmp_path / "run").frame.set_index("T")


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_wall_agrees_with_events_and_twice_the_length_takes_four_times_as_long(tmp_path, phase):
    frame = frame_of(tmp_path, f'{LONG_ENOUGH}level = "core"\nphase = "{phase}"\n')
    assert list(frame["status"]) == ["ok", "ok"]
    assert frame["wall_ratio"].tolist() == pytest.approx([1, 1], abs=0.1)
    assert 3 < frame.loc[8192, "time_s"] / frame.loc[4096, "time_s"] < 5


def test_a_cell_beyond_the_limit_is_oom_and_the_next_one_is_ok(tmp_path):
    grid = 'variant = "full"\nT = [1024, 16384]\nmeasure = ["time", "memory"]\n'
    frame = frame_of(tmp_path, grid, head='memory_limit = "1GiB"')
    assert frame["status"].to_dict() == {1024: "ok", 16384: "oom"}
    assert frame.loc[16384, "reason"].startswith("OutOfMemoryError")
    assert set(frame["device"]) == {"cuda"}
    assert frame["device_name"].tolist() == [torch.cuda.get_device_name()] * 2


def test_the_allocators_peak_is_what_lives_side_by_side():
    def call():
        a = torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")
        del a
        b, c = (torch.empty(32 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(2))
        return b, c, torch.empty(8 * 2**20, dtype=torch.uint8, device="cuda")

    held = torch.empty(16 * 2**20, dtype=torch.uint8, device="cuda")
    assert peak_bytes(call, "cuda") == 72 * 2**20
    assert held.nbytes


def test_the_cache_is_known_and_can_be_flushed():
    device = open_device("cuda")
    device.flush()
    device.synchronize()
    assert device._cache_filler.nbytes >= torch.cuda.get_device_properties(0).L2_cache_size > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_variant_keeps_its_promises_on_a_gpu(tmp_path, dtype):
    variants = '["full", "fused", "window", "linear", "strided", "lstm", "gru", "rnn", "mean", "none", "tcn"]'
    grid = f'variant = {variants}\nT = 96\ndtype = "{dtype}"\nphase = ["forward", "forward_backward"]\n'
    frame = frame_of(tmp_path, grid)
    assert frame[frame["status"] != "ok"][["variant", "phase", "status", "reason"]].to_dict("records") == []

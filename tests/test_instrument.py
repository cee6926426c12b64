"""Faults put into the instrument, one by one: for each there is a test that holds without it and fails with it."""

import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest
import test_clock
import test_intervals
import test_memory
import test_phases
import test_records
import test_rounds
import torch
from run_rows import tiny_cell

from attnbench import intervals, records, registry
from attnbench.execute import cell, phases, runner
from attnbench.execute.local import FreshProcesses
from attnbench.execute.orders import Visit
from attnbench.measure import clock
from attnbench.settings import TimingSettings, TrainSettings
from attnbench.sweep import VariantUse

HELD_MIB = 600  # more than a process with torch holds


class Deaf:
    """A device that is never waited for."""

    def __init__(self, device):
        self.flush, self.events, self.synchronize = device.flush, device.events, lambda: None


def no_synchronise(patch, folder):
    patch.setattr(test_clock, "time_call", lambda *a, device, **k: clock.time_call(*a, device=Deaf(device), **k))


def warm_up_counted(patch, folder):
    def counting(*arguments, **more):
        timing = clock.time_call(*arguments, **more)
        return replace(timing, samples_s=[timing.first_call_s, *timing.samples_s])

    patch.setattr(test_clock, "time_call", counting)


def mean_for_median(patch, folder):
    patch.setattr(records, "median", statistics.fmean)


def gradients_pile_up(patch, folder):
    def piling(y, wanted, seed, retain_graph=False):
        torch.autograd.backward(y, seed, retain_graph=retain_graph, inputs=wanted)
        return tuple(tensor.grad for tensor in wanted)

    patch.setattr(phases, "_gradients", piling)


def peak_not_reset(patch, folder):
    patch.setattr(test_memory.RISE, "job", "child_jobs:resident_rise_without_reset")


def parents_peak(patch, folder):
    patch.setattr(PEAK, "job", "child_jobs:inherited_peak")


def thread_count_leaks(patch, folder):
    patch.setattr(cell.torch, "set_num_threads", lambda n: None)


def order_fixed(patch, folder):
    patch.setattr(runner, "random", SimpleNamespace(Random=lambda n: SimpleNamespace(shuffle=lambda cells: None)))


def sentinel_ignored(patch, folder):
    patch.setattr(runner, "disturbance", lambda fields, quiet_s: None)


def one_sample_makes_an_interval(patch, folder):
    patch.setattr(intervals, "UNKNOWN", 0.0)


def few_samples_are_precise(patch, folder):
    patch.setattr(clock, "MIN_SAMPLES", 1)


def collector_walks_all(patch, folder):
    patch.setattr(clock, "gc", SimpleNamespace(get_freeze_count=lambda: 0, freeze=lambda: None, unfreeze=lambda: None))


PEAK = SimpleNamespace(job="child_jobs:own_peak")


def a_process_does_not_begin_with_its_parents_peak(patch, folder):
    held = torch.ones(HELD_MIB * 2**18)
    with FreshProcesses("spawn") as processes:
        peak = processes.call(PEAK.job).value
    if peak is None:
        pytest.skip("this system does not tell the resident peak of a process")
    assert peak < held.nbytes


def each_visit_has_the_threads_of_its_cell(patch, folder):
    try:
        for threads in (2, 1):
            asked = tiny_cell(parts=(VariantUse("full"),), threads=threads)
            timing, source = TimingSettings(warmup_s=0.0, max_s=0.0), registry.installed(registry.VARIANTS)["full"]
            assert cell.visit(Visit(asked, "time", (source,), None, timing, TrainSettings()))["threads"] == threads
    finally:
        torch.set_num_threads(1)


GUARDS = {
    no_synchronise: lambda *_: test_clock.test_device_that_finishes_late_is_waited_for(),
    warm_up_counted: lambda *_: test_clock.test_first_call_is_a_column_of_its_own_and_in_no_sample(),
    mean_for_median: lambda _, folder: test_records.test_neither_a_slow_sample_nor_a_slow_visit_moves_the_time(folder),
    gradients_pile_up: lambda *_: test_phases.test_every_call_is_like_the_one_before("forward_backward", "layer"),
    peak_not_reset: lambda *_: test_memory.test_resident_peak_sees_the_call_and_not_what_was_before(),
    parents_peak: a_process_does_not_begin_with_its_parents_peak,
    thread_count_leaks: each_visit_has_the_threads_of_its_cell,
    order_fixed: lambda patch, folder: test_rounds.test_each_round_meets_every_cell_once_in_an_order_of_its_own(
        folder, patch
    ),
    sentinel_ignored: lambda patch, folder: (
        test_rounds.test_a_disturbed_visit_is_made_again_after_all_others_and_only_the_good_one_counts(folder, patch)
    ),
    one_sample_makes_an_interval: lambda *_: test_intervals.test_one_process_never_gives_a_narrow_interval(),
    collector_walks_all: lambda *_: test_clock.test_no_call_pays_for_walking_what_stood_before(),
    few_samples_are_precise: lambda *_: test_clock.test_no_interval_is_believed_from_fewer_than_six_samples(),
}


@pytest.mark.parametrize("fault", GUARDS, ids=lambda fault: fault.__name__)
def test_a_fault_turns_its_guard_red_that_is_green_without_it(fault, monkeypatch, tmp_path):
    guard = GUARDS[fault]
    for name in ("sound", "faulty"):
        (tmp_path / name).mkdir()
    with monkeypatch.context() as patch:
        guard(patch, tmp_path / "sound")
    with monkeypatch.context() as patch:
        fault(patch, tmp_path / "faulty")
        with pytest.raises(AssertionError):
            guard(patch, tmp_path / "faulty")

"""Timing, on clocks and devices that do exactly what they are told."""

import gc
import itertools
import weakref

import pytest

from attnbench.measure.clock import time_call
from attnbench.measure.quiet import Usage
from attnbench.settings import TimingSettings


class Machine:
    """A virtual clock, and a device that finishes its work only when it is waited for."""

    def __init__(self, *costs_s, device_s=0.0):
        self.now_s = self.pending_s = 0.0
        self.costs_s = itertools.chain(costs_s[:-1], itertools.repeat(costs_s[-1]))
        self.device_s = device_s
        self.log = []

    def call(self):
        self.log.append("call")
        self.now_s += next(self.costs_s)
        self.pending_s += self.device_s

    def synchronize(self):
        self.log.append("synchronize")
        self.now_s += self.pending_s
        self.pending_s = 0.0

    def flush(self):
        self.log.append("flush")

    def events(self):
        return None

    def clock(self):
        self.log.append("clock")
        return self.now_s

    def time(self, settings, **kwargs):
        return time_call(self.call, settings, device=self, clock=self.clock, **kwargs)


NEVER = 1e-12  # a precision that is never reached
NOTHING_TWICE = TimingSettings(warmup_s=0.0, max_s=0.0)  # a first call and a sample


class Circle:
    """What only the collector can free, once it holds itself."""


def test_device_that_finishes_late_is_waited_for():
    timing = Machine(1e-6, device_s=0.05).time(TimingSettings(warmup_s=0.1, max_s=0.5))
    assert min(timing.samples_s) >= 0.05
    assert timing.first_call_s >= 0.05


def test_every_look_at_the_clock_has_a_synchronised_device():
    machine = Machine(2e-3)
    machine.time(TimingSettings(warmup_s=0.01, max_s=0.02))
    looks = [i for i, what in enumerate(machine.log) if what == "clock"]
    assert looks
    assert all(machine.log[i - 1] == "synchronize" for i in looks)


def test_one_slow_sample_moves_neither_the_median_nor_the_count():
    calls = [1e-3] * 2 + [1e-3] * 9 + [0.1]  # the first call, one warm-up, ten samples
    timing = Machine(*calls).time(TimingSettings(warmup_s=0.0015, max_s=0.109, precision=NEVER))
    assert timing.calls == 1
    assert len(timing.samples_s) == 10
    assert sorted(timing.samples_s)[4] == pytest.approx(1e-3)
    assert max(timing.samples_s) == pytest.approx(0.1)


def test_first_call_is_a_column_of_its_own_and_in_no_sample():
    timing = Machine(0.3, 2e-3).time(TimingSettings(warmup_s=0.31, max_s=0.1))
    assert timing.first_call_s == pytest.approx(0.3)
    assert timing.warmup_s >= 0.3
    assert max(timing.samples_s) < 0.01


def test_slow_first_call_does_not_shorten_the_samples():
    timing = Machine(0.3, 2e-5).time(TimingSettings(warmup_s=0.2, max_s=0.05))
    assert timing.calls * 2e-5 >= 1e-3
    assert timing.flags == []


def test_short_calls_are_repeated_until_a_sample_lasts_a_millisecond():
    timing = Machine(1e-5).time(TimingSettings(warmup_s=1e-4, max_s=0.05, precision=NEVER))
    assert timing.calls * 1e-5 >= 1e-3
    assert timing.samples_s == pytest.approx([1e-5] * len(timing.samples_s))


def test_sampled_time_is_the_time_of_all_calls():
    timing = Machine(*([2e-3, 3e-3] * 100)).time(TimingSettings(warmup_s=0.001, max_s=0.02, precision=NEVER))
    assert timing.sampled_s == pytest.approx(sum(timing.samples_s) * timing.calls)
    assert timing.sampled_s == pytest.approx(0.02, rel=0.1)


def test_what_the_system_tells_is_told_of_sampling_alone():
    machine = Machine(0.5, 2e-3)

    def look():
        machine.log.append("look")
        n_calls = machine.log.count("call")
        return Usage(cpu_s=machine.now_s, switches=n_calls, steal_s=None)

    timing = machine.time(TimingSettings(warmup_s=0.6, max_s=0.1, precision=NEVER), look=look)
    assert machine.log.count("look") == 2
    assert timing.cpu_s == pytest.approx(timing.sampled_s)
    assert timing.switches == len(timing.samples_s) * timing.calls
    assert timing.steal_s is None


def test_record_says_whether_precision_or_the_cap_ended_it():
    steady = Machine(2e-3).time(TimingSettings(warmup_s=0.01, max_s=1.0))
    assert steady.stopped_by == "precision"
    assert len(steady.samples_s) < 500
    noisy = Machine(*([2e-3, 3e-3] * 1000)).time(TimingSettings(warmup_s=0.01, max_s=1.0, precision=0.001))
    assert noisy.stopped_by == "cap"


def test_no_interval_is_believed_from_fewer_than_six_samples():
    timing = Machine(2e-3).time(TimingSettings(warmup_s=0.01, max_s=0.008))
    assert len(timing.samples_s) == 4
    assert timing.stopped_by == "cap"


def test_no_warm_up_and_one_sample_are_allowed_and_flagged():
    timing = Machine(0.01).time(TimingSettings(warmup_s=0.0, max_s=0.0))
    assert len(timing.samples_s) == 1
    assert timing.flags == ["no warm-up beyond the first call", "one sample"]


def test_call_near_the_cost_of_an_empty_one_is_flagged_and_positive():
    timing = Machine(3e-7).time(TimingSettings(warmup_s=0.001, max_s=0.01), resolution_s=2e-7)
    assert timing.flags == ["at timer resolution"]
    assert min(timing.samples_s) > 0
    assert Machine(3e-6).time(TimingSettings(warmup_s=0.001, max_s=0.01), resolution_s=2e-7).flags == []


def test_clock_that_stands_still_does_not_keep_us_for_ever():
    timing = Machine(0.0).time(TimingSettings(warmup_s=0.01, max_s=0.01))
    assert timing.samples_s


def test_the_last_output_is_kept_and_no_call_runs_beside_that_of_an_earlier_sample():
    kept, alive, counter = [], [], itertools.count()

    def call():
        alive.append(len(kept))
        machine.call()
        return next(counter)

    machine = Machine(2e-4)
    settings = TimingSettings(warmup_s=1e-3, max_s=1e-2)
    timing = time_call(call, settings, device=machine, clock=machine.clock, output=kept)
    assert timing.calls > 1
    assert kept == [next(counter) - 1]
    assert set(alive) == {0}


def test_no_call_pays_for_walking_what_stood_before():
    """A collection walks all that torch's import left, for 0.1 s, and is charged to whichever call it falls due in."""
    walked = []
    machine = Machine(1e-3)
    time_call(lambda: walked.append(len(gc.get_objects())), NOTHING_TWICE, device=machine)
    assert max(walked) < len(gc.get_objects()) / 10


def test_what_a_call_leaves_in_circles_is_collected():
    left = []

    def call():
        circle = Circle()
        circle.itself = circle
        left.append(weakref.ref(circle))
        gc.collect()

    time_call(call, NOTHING_TWICE, device=Machine(1e-3))
    assert left[0]() is None  # by the collection in the second call


@pytest.mark.parametrize("before", [False, True])
def test_the_collector_is_left_as_it_was_found(before):
    def call():
        raise ValueError

    if before:
        gc.freeze()
    try:
        with pytest.raises(ValueError):
            time_call(call, NOTHING_TWICE, device=Machine(1e-3))
        assert bool(gc.get_freeze_count()) == before
    finally:
        gc.unfreeze()

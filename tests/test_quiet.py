"""How a disturbed visit is told from a quiet one: the sentinel, and the system's account of processor time."""

import itertools
import os

import pytest

from attnbench.measure import quiet
from attnbench.measure.quiet import Usage, disturbance, sentinel_s, sentinels, stolen_s, usage

TICKS = os.sysconf("SC_CLK_TCK")


def test_a_sentinel_takes_the_time_between_its_two_looks_at_the_clock():
    looks = iter([3.0, 3.5])
    assert sentinel_s(lambda: next(looks)) == 0.5
    assert list(looks) == []


def test_the_level_is_the_best_of_several_sentinels(monkeypatch):
    times = itertools.chain([5.0, 3.0, 4.0], itertools.repeat(6.0))
    monkeypatch.setattr(quiet, "sentinel_s", lambda: next(times))
    assert quiet.level_s() == 3.0


def test_work_shows_in_the_account_of_this_process():
    before = usage()
    sum(range(10**6))
    used = usage().since(before)
    assert used.cpu_s > 0
    assert used.switches is None or used.switches >= 0
    assert used.steal_s is None or used.steal_s >= 0


def test_what_the_system_does_not_tell_is_none():
    known, unknown = Usage(3.0, 5, 0.5), Usage(1.0, None, None)
    assert known.since(Usage(1.0, 2, 0.25)) == Usage(2.0, 3, 0.25)
    assert known.since(unknown) == Usage(2.0, None, None)
    assert unknown.since(known) == Usage(-2.0, None, None)


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("cpu  1 2 3 4 5 6 7 250 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n", 250),
        ("cpu  1 2 3 4 5 6 7 0 0 0\n", 0),
        ("cpu  1 2 3 4\n", None),
        ("", None),
        ("cpu  a b c d e f g h\n", None),
    ],
)
def test_stolen_time_is_the_eighth_count_of_the_first_line(tmp_path, text, ticks):
    (tmp_path / "stat").write_text(text)
    assert stolen_s(tmp_path / "stat") == (None if ticks is None else ticks / TICKS)


def test_a_system_without_the_file_tells_nothing_of_stolen_time(tmp_path):
    assert stolen_s(tmp_path / "stat") is None


QUIET = {
    "device": "cpu",
    "threads": 1,
    "sampled_s": 1.0,
    "cpu_s": 0.99,
    "steal_s": 0.0,
    "sentinel_before_s": 4e-3,
    "sentinel_after_s": 4.4e-3,
}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"sentinel_before_s": 4.9e-3}, None),
        ({"sentinel_before_s": 6e-3}, "sentinel 6.0 ms, 1.50 times the best of the run"),
        ({"sentinel_after_s": 6e-3}, "sentinel 6.0 ms, 1.50 times the best of the run"),
        ({"cpu_s": 0.91}, None),
        ({"cpu_s": 0.6}, "on the processor for 60% of the sampling"),
        ({"cpu_s": 0.6, "threads": 2}, None),
        ({"cpu_s": 0.6, "device": "cuda"}, None),
        ({"steal_s": 0.02}, None),
        ({"steal_s": 0.05}, "5% of the sampling stolen"),
        ({"steal_s": 0.05, "threads": 2}, "5% of the sampling stolen"),
        ({"steal_s": 1 / TICKS, "sampled_s": 0.05, "cpu_s": 0.05}, None),
        ({"cpu_s": 0.5, "steal_s": 0.4}, "on the processor for 50% of the sampling, 40% of the sampling stolen"),
    ],
)
def test_a_visit_is_disturbed_for_reasons_in_numbers(change, why):
    assert disturbance(QUIET | change, 4e-3) == why


@pytest.mark.parametrize("key", ["cpu_s", "steal_s", "sentinel_before_s", "sentinel_after_s", "sampled_s"])
def test_what_is_not_known_disturbs_nothing(key):
    assert disturbance(QUIET | {key: None}, 4e-3) is None
    assert disturbance({name: value for name, value in QUIET.items() if name != key}, 4e-3) is None


def test_a_visit_that_timed_nothing_has_no_sentinels():
    assert sentinels({"peak_bytes": 3}) == []
    assert sentinels(QUIET) == [4e-3, 4.4e-3]

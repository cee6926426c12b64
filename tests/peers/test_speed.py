"""The table of times says what it measured, and what it did not."""

import time
from dataclasses import replace

import pytest
import speed
import stopwatch
import torch
from matches import Match, Rival, Sizes, noise
from speed import Plan, Row, cells, rows
from stopwatch import Ratio, Sample, ratio


def busy(seconds):
    def call(x):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return x * 1

    return call


def rival(ours=0.001, theirs=0.001, package="torch", **changes):
    def match(sizes: Sizes):
        return Match(busy(ours), busy(theirs), [noise(sizes, 1, sizes.T)])

    return Rival("fused", package, "busy", "core", match, 1.0, 1.0, **changes)


def found(ratio, low, high):
    return Row(rival(), "forward", 64, 1, Ratio(Sample(1, 1), Sample(1, 1), ratio, low, high, 3))


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (found(0.7, 0.6, 0.8), "met"),
        (found(0.9, 0.8, 1.1), "met?"),
        (found(1.05, 0.9, 1.2), "missed?"),
        (found(1.5, 1.4, 1.6), "missed"),
        (Row(rival(), "forward", 64, 1, reason="too slow"), ""),
    ],
)
def test_a_verdict_says_when_its_target_lies_inside_the_interval(row, verdict):
    assert row.verdict == verdict


def test_a_ratio_is_the_median_of_rounds_and_takes_the_least_of_each():
    slow, quick = Sample(9.0, 9.0), Sample(2.0, 3.0)
    of_ours = [[slow, quick], [quick, slow], [Sample(4.0, 4.0), slow]]
    rounds = [(ours, [Sample(1.0, 1.0), Sample(8.0, 8.0)]) for ours in of_ours]
    got = ratio(rounds)
    assert (got.ratio, got.ours, got.theirs, got.n_rounds) == (2.0, quick, Sample(1.0, 1.0), 3)
    assert got.low <= 2.0 <= got.high


def test_calls_are_told_apart_by_their_cpu_time():
    (row,) = rows([rival(0.004, 0.001)], Plan([64], [1], ["forward"], minutes=0.005))
    assert row.ratio.ratio > 1.5
    assert row.verdict == "missed"


def test_a_slow_call_is_not_made_again():
    calls = []
    first = Sample(30.0, 30.0)
    (found,) = stopwatch.taken(lambda: calls.append("ours"), lambda: calls.append("theirs"), 1.0, first)
    assert found[1] == [first]
    assert set(calls) == {"ours"}


def test_threads_and_the_collector_are_left_as_they_were():
    before = torch.get_num_threads()
    with stopwatch.alone(2):
        assert torch.get_num_threads() == 2
        assert not stopwatch.gc.isenabled()
    assert torch.get_num_threads() == before
    assert stopwatch.gc.isenabled()


def test_a_length_at_which_theirs_would_take_too_long_is_left_out_with_the_reason():
    slow = speed.Slow()
    slow.note("forward", 64, 6.0)
    row = speed.Sized(rival(), 256).row("forward", 1, 1.0, slow)
    assert row.ratio is None
    assert row.reason == "theirs would take about 24 s a call"
    slow.note("forward", 128, 24.0)
    assert slow.expected_s("forward", 256) == pytest.approx(96.0)
    assert slow.expected_s("forward_backward", 256) == 0.0


def test_outputs_that_differ_are_not_timed():
    def match(sizes: Sizes):
        return Match(lambda x: x, lambda x: 1.1 * x, [noise(sizes, 1, sizes.T)])

    (row,) = rows([replace(rival(), match=match)], Plan([64], [1], ["forward"], minutes=0.005))
    assert row.ratio is None
    assert row.reason.startswith("outputs differ by 0.09")


def test_what_is_raised_is_a_reason():
    def match(sizes: Sizes):
        raise AssertionError(f"no T = {sizes.T}")

    (row,) = rows([replace(rival(), match=match)], Plan([64], [1], ["forward"], minutes=0.005))
    assert row.reason == "raises AssertionError: no T = 64"


def test_a_package_that_is_not_there_and_a_length_that_is_too_long_stand_in_the_table():
    (row,) = rows([rival(package="no-such-package")], Plan([64]))
    assert cells(row)[-1] == "not installed"
    told = list(rows([rival(longest=64, because="keeps all")], Plan([64, 128], [1], ["forward"], minutes=0.005)))
    assert told[-1].reason == "not timed beyond T = 64: it keeps all"


def test_a_line_has_a_cell_for_each_column():
    assert len(cells(found(0.7, 0.6, 0.8))) == len(speed.HEAD)
    assert len(cells(Row(rival(), "", 0, 0, reason="not installed"))) == len(speed.HEAD)


def test_two_calls_are_timed_against_each_other_with_or_without_a_first_one():
    one, other = (lambda seconds=seconds: busy(seconds)(0) for seconds in (0.002, 0.001))
    for first in (None, Sample(0.001, 0.001)):
        assert 1 < stopwatch.against(one, other, 0.1, first).ratio < 4

"""The calibration: what counts as a sample, what its rows say of made-up runs, and that no neighbour is left behind."""

import math
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from run_rows import cell, record, run_of, timed
from test_local import wait_until_gone

from attnbench import calibration, records
from attnbench.analyse.fit import Fit
from attnbench.calibrate import agreement, clocks, memory, runs, surroundings, synthetic, verdicts
from attnbench.calibrate.memory import Off
from attnbench.calibrate.rows import LIMIT_S, Line, Patience, Row, Samples, measured, table_lines
from attnbench.calibrate.runs import Ran
from attnbench.calibrate.surroundings import OTHERS, Watch, busy_neighbour
from attnbench.measure.quiet import SLOWDOWN

FACTS = {
    "processor": "A processor",
    "cores": 4,
    "cores_usable": 2,
    "memory_bytes": 2**33,
    "system": "Linux 6 x86_64",
    "python": "3.11",
    "versions": {"attnbench": "0.1", "torch": "2.13", "scipy": None},
}


class Machine:
    """Quiet by a list of looks, and by the last of them from then on; each look and each sample takes a second."""

    def __init__(self, *looks):
        self.looks, self.now_s, self.beside = list(looks), 0.0, []

    def quiet(self):
        self.now_s += 1
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def clock(self):
        return self.now_s

    def sleep(self, seconds):
        self.now_s += seconds

    def patience(self, limit_s=LIMIT_S):
        return Patience(self.quiet, limit_s, clock=self.clock, sleep=self.sleep)

    @contextmanager
    def neighbour(self):
        self.beside.append("came")
        try:
            yield
        finally:
            self.beside.append("left")


def counting(machine, **more):
    """A row whose samples are 0, 1, 2, ..."""
    taken = []

    def take():
        machine.now_s += 1
        taken.append(len(taken))
        return taken[-1]

    line = Line("what", "a target", str, lambda idle, busy: len(idle) == 1)
    return Row(take, (line,), **more)


# Samples


def test_idle_and_busy_samples_are_taken_in_turns_and_only_the_busy_ones_have_a_neighbour():
    machine = Machine(True)
    found = measured(counting(machine, n_idle=3, n_busy=2), machine.patience(), machine.neighbour)
    assert found == Samples(idle=[0, 2, 4], busy=[1, 3])
    assert machine.beside == ["came", "left"] * 2


def test_a_sample_after_which_the_machine_is_not_quiet_is_taken_again():
    machine = Machine(True, False, True)
    assert measured(counting(machine), machine.patience(), machine.neighbour) == Samples(idle=[1], busy=[2])


def test_the_machine_is_waited_for():
    machine = Machine(False, False, True)
    assert measured(counting(machine), machine.patience(), machine.neighbour) == Samples(idle=[0], busy=[1])


@pytest.mark.parametrize("looks", [(False,), (True, False), (True, True, True, False)])
def test_a_row_for_which_the_machine_is_never_quiet_is_not_run(looks):
    machine = Machine(*looks)
    row = counting(machine)
    found = measured(row, machine.patience(), machine.neighbour)
    assert found is None
    assert table_lines(row, found) == [("what", "not run", "not run", "a target", "not run")]
    assert LIMIT_S <= machine.now_s < LIMIT_S + 15


def test_samples_that_are_always_spoilt_end_too():
    machine = Machine(*[True, False] * 1000)
    assert measured(counting(machine), machine.patience(), machine.neighbour) is None


def test_a_row_without_a_timer_does_not_care_what_else_the_machine_does():
    machine = Machine(False)
    row = counting(machine, n_busy=0)
    found = measured(row, machine.patience(), machine.neighbour)
    assert table_lines(row, found) == [("what", "[0]", "no timer", "a target", "yes")]
    assert machine.beside == []


def test_a_target_that_is_not_met_says_no():
    machine = Machine(True)
    row = counting(machine, n_idle=2)
    found = measured(row, machine.patience(), machine.neighbour)
    assert table_lines(row, found) == [("what", "[0, 2]", "[1]", "a target", "no")]


# The machine


def test_a_slow_sentinel_or_others_at_work_are_not_quiet():
    sentinels, others = iter([1.0] * 3 + [SLOWDOWN + 0.01] * 3 + [1.0] * 6), iter([0.0, 0.0, OTHERS + 0.01, OTHERS])
    watch = Watch(lambda: next(sentinels), lambda: next(others))
    assert [watch.quiet() for _ in range(4)] == [True, False, False, True]


def test_one_slow_sentinel_of_three_is_forgiven():
    sentinels = iter([1.0, 9.0, 1.0])
    assert Watch(lambda: next(sentinels), lambda: 0.0).quiet()


def test_the_neighbour_runs_inside_its_block_and_is_gone_after_it():
    with busy_neighbour() as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_the_neighbour_is_ended_when_a_row_raises():
    seen = []

    @contextmanager
    def neighbour():
        with busy_neighbour() as process:
            seen.append(process)
            yield

    def take():
        if seen:
            raise ZeroDivisionError
        return 0

    machine = Machine(True)
    with pytest.raises(ZeroDivisionError):
        measured(Row(take, ()), machine.patience(), neighbour)
    assert seen[0].poll() is not None


def test_the_neighbour_does_not_outlive_a_process_that_is_killed():
    script = "import time\nfrom attnbench.calibrate.surroundings import busy_neighbour\n"
    script += "with busy_neighbour() as process:\n    print(process.pid, flush=True)\n    time.sleep(60)\n"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        neighbour = int(parent.stdout.readline())
        parent.kill()
    assert wait_until_gone([neighbour]) == []


def test_a_neighbour_that_ends_by_itself_is_an_error(monkeypatch):
    monkeypatch.setattr(surroundings, "_SPIN", "raise SystemExit(3)")
    with pytest.raises(RuntimeError, match="ended by itself with status 3"), busy_neighbour() as process:
        process.wait()


# Verdicts


def run_with(tmp_path, *times_s):
    """The frame of a run in which `fused` takes a second and its twin times_s, at one T each."""
    asked, made = [], []
    for n, time_s in enumerate(times_s):
        for variant, takes_s in (("fused", 1.0), ("twin", time_s)):
            name, T = f"{variant}{n}", 64 * 2**n
            asked.append(cell(name, variant=variant, label=variant, T=T, S=T, max_T=T))
            made += [timed(name, *[takes_s * (1 + wobble)] * 6) for wobble in (0, 0.001, -0.001)]
    return records.read(run_of(tmp_path / "run", asked, made))


@pytest.mark.parametrize(("time_s", "verdict"), [(1.5, "slower"), (0.5, "faster"), (1.0, "same")])
def test_the_verdict_on_a_run_is_that_of_the_comparison(tmp_path, time_s, verdict):
    assert verdicts.verdicts(run_with(tmp_path, time_s, time_s)) == [verdict] * 2


def only_line(row):
    (line,) = row.lines
    return line


def test_the_null_test_allows_one_run_of_twenty_over_both_columns():
    row = verdicts.null_test(20)
    line = only_line(row)
    assert (row.n_idle, row.n_busy, line.target) == (10, 10, "at most 1 of 20")
    clean, one = [["same", "ambiguous"]] * 10, [["same", "same"]] * 9 + [["faster", "slower"]]
    assert line.told(one) == "1 of 10 runs"
    assert line.met(clean, one)
    assert not line.met(one, one)


def test_the_power_test_asks_for_eighteen_of_twenty_idle_and_no_faster_anywhere():
    row = verdicts.power_test(20, 5)
    line = only_line(row)
    assert (row.n_idle, row.n_busy) == (20, 5)
    found = [["slower"]] * 18 + [["ambiguous"]] * 2
    assert line.told(found) == "slower in 18 of 20 runs, faster in 0"
    assert line.met(found, [["ambiguous"]] * 5)
    assert not line.met([*found[1:], ["ambiguous"]], [["slower"]] * 5)
    assert not line.met(found, [["faster"]])


# Clocks


def test_both_clocks_come_first_in_turns():
    called = []

    def clock(name, seconds):
        called.append(name)
        return seconds

    assert clocks.in_turns(lambda: clock("ours", 3.0), lambda: clock("theirs", 2.0), 3) == [1.5] * 3
    assert called == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


@pytest.mark.parametrize(("ratio", "met"), [(1.0, True), (1.029, True), (0.971, True), (1.031, False), (0.96, False)])
def test_two_clocks_agree_within_three_in_a_hundred(ratio, met):
    line = only_line(agreement.agreement(50e-6, 3, 0.1))
    assert line.told([ratio]) == f"{ratio:.3f}"
    assert line.met([ratio], [9.0]) is met


def test_clocks_that_cannot_be_compared_are_an_error(monkeypatch):
    monkeypatch.setattr(agreement, "TIMEOUT_S", 1e-9)
    with pytest.raises(RuntimeError, match="two clocks: ran past its limit"):
        agreement.agreement(50e-6, 1, 0.1).take()


def test_what_a_visit_costs_is_a_median_and_the_wall_time_that_of_the_whole_run():
    made = [{"sampled_s": 0.5, "warmup_s": 0.5, "overhead_s": cost_s} for cost_s in (0.01, 0.02, 9.0)]
    found = agreement.costs(Ran(None, made, 6.0))
    assert found == (0.02, 2.0)
    overhead, wall = agreement.cost_of_visits((64,)).lines
    assert (overhead.told([found]), overhead.met([found], [])) == ("0.020 s", True)
    assert (wall.told([found]), wall.met([found], [])) == ("2.00", False)


# Memory


def weighed(path, peak, resident, formula=1000):
    row = {"peak_bytes": peak, "rss_peak_bytes": resident, "peak_bytes_formula": formula}
    return records.read(run_of(path, [cell("a", measures=["memory"])], [record("a", "memory", **row)]))


def test_peaks_are_compared_cell_by_cell_by_both_accounts(tmp_path):
    off = memory.apart(weighed(tmp_path / "1", 1000, 1010), weighed(tmp_path / "2", 1000, 1000))
    assert off == pytest.approx((0.0, 0.01))
    line = only_line(memory.order(4096))
    assert line.told([off]) == "allocator 0.0 %, resident 1.0 %"
    assert line.met([off], [off])
    assert not line.met([off], [Off(0.03, 0.0)])
    assert not line.met([Off(0.0, 0.03)], [off])


def test_a_system_that_tells_no_resident_peak_is_judged_by_the_allocator(tmp_path):
    off = memory.apart(weighed(tmp_path / "1", 1000, None), weighed(tmp_path / "2", 1000, None))
    line = only_line(memory.parent(2**30))
    assert math.isnan(off.resident)
    assert line.told([off]) == "allocator 0.0 %, resident not told by this system"
    assert line.met([off], [off])
    assert "1024 MiB" in line.what


@pytest.mark.parametrize(("peak", "met"), [(1049, True), (951, True), (1051, False), (949, False)])
def test_a_peak_is_within_five_in_a_hundred_of_its_formula(tmp_path, peak, met):
    off = memory.off_formula(weighed(tmp_path / "1", peak, 1))
    assert only_line(memory.formula((512, 1024))).met([0.0], [off]) is met


# Synthetic


def test_intervals_of_made_up_samples_hold_the_truth_about_as_often_as_they_say():
    (line,) = synthetic.coverage(3, 20).lines
    share = synthetic.share_held(3, 20)
    assert 0.9 <= share < 1
    assert line.told([share]) == f"{100 * share:.1f} %"
    assert [line.met([value], []) for value in (0.92, 0.95, 0.995)] == [False, True, False]


def test_a_fit_of_made_up_costs_finds_both_terms():
    row = synthetic.recovery(3)
    trials = row.take()
    assert [sorted(trial) for trial in trials] == [sorted(synthetic.LAW)] * 3
    assert max(trial[name].error for trial in trials for name in synthetic.JUDGED) < 0.5
    assert all(line.told([trials]).count("%") == 2 for line in row.lines)


def test_a_term_that_was_not_fitted_is_wrong():
    missed = synthetic.recovered(Fit(0, 0, ()))
    assert set(missed.values()) == {(1.0, False)}
    (first, _) = synthetic.recovery(1).lines
    assert (first.told([[missed]]), first.met([[missed]], [])) == ("100.0 %, 0 %", False)


# Runs, and the page


def test_a_run_with_a_cell_that_is_not_ok_judges_nothing(tmp_path):
    frame = records.read(run_of(tmp_path / "run", [cell("a")], [record("a", status="failed", reason="broken")]))
    with pytest.raises(RuntimeError, match="1 of 1 cells are not ok; full: broken"):
        runs._check_ok(frame)


def test_the_page_has_its_command_above_and_machine_and_versions_below():
    text = calibration.page([("a | b", "1", "2", "3", "yes")], FACTS, "the command")
    assert text.index("    the command\n") < text.index("| what | idle | with a busy neighbour | target | met |")
    assert "\n| a \\| b | 1 | 2 | 3 | yes |\n" in text
    assert text.endswith(
        "Machine: A processor, 2 of 4 cores, 8 GiB, Linux 6 x86_64; Python 3.11, attnbench 0.1, torch 2.13.\n"
    )


@pytest.mark.parametrize(("met", "status"), [(True, 0), (False, 1)])
def test_the_command_prints_and_writes_one_page_and_tells_by_its_status(tmp_path, monkeypatch, capsys, met, status):
    asked = []
    line = Line("what", "a target", str, lambda idle, busy: met)
    monkeypatch.setattr(calibration, "rows", lambda scale: asked.append(scale) or [Row(lambda: 7, (line,), n_busy=0)])
    file = tmp_path / "page.md"
    assert calibration.main(["--quick", "-o", str(file)]) == status
    printed, told = capsys.readouterr()
    assert printed.strip() == file.read_text().strip()
    assert f"| what | [7] | no timer | a target | {'yes' if met else 'no'} |" in printed
    assert "    python -m attnbench.calibration --quick\n" in printed
    assert told.startswith("what; [7]; no timer")
    assert asked == [calibration.QUICK]


def test_a_folder_that_is_not_there_is_told_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(calibration, "rows", lambda scale: pytest.fail("measured"))
    with pytest.raises(SystemExit) as stop:
        calibration.main(["-o", str(tmp_path / "nowhere" / "page.md")])
    assert stop.value.code == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize("scale", [calibration.Scale(), calibration.QUICK])
def test_every_line_has_a_name_and_a_target_of_its_own(scale):
    lines = [line for row in calibration.rows(scale) for line in row.lines]
    assert len({line.what for line in lines}) == len(lines) >= 14 - 3 * (scale is calibration.QUICK)
    assert all(line.target for line in lines)


def test_the_makefile_runs_it_into_the_page():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    assert "python -m attnbench.calibration -o docs/calibration.md" in makefile

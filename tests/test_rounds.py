"""What is visited when: rounds, repeats of disturbed visits, and what a budget leaves over. No process starts here."""

from collections import Counter

import pytest
from fake_visits import LEVEL_S, conduct, timed

from attnbench.execute.local import Outcome
from attnbench.records import read, read_records

LENGTHS = (8, 9, 10, 11)
WIDE = {9: timed(0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4), 10: timed(0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2)}
PRECISION = 0.07  # wide enough for one visit of steady samples


def quiet(T, n):
    return timed()


def noisy(T, n):
    return timed(slow=1.5)


def noisy_at_9(T, n):
    return timed(slow=1.5 if T == 9 else 1.0)


def rounds(lengths, n_cells):
    return [lengths[i : i + n_cells] for i in range(0, len(lengths), n_cells)]


def n_records(path):
    return Counter(record["cell"] for record in read_records(path)[0])


# Rounds


def test_each_round_meets_every_cell_once_in_an_order_of_its_own(tmp_path, monkeypatch):
    lengths = [*range(8, 20)]
    processes, _ = conduct(monkeypatch, tmp_path, quiet, lengths=lengths, visits=4)
    made = rounds(processes.lengths, len(lengths))
    assert [sorted(each) for each in made] == [lengths] * 4
    assert len({tuple(each) for each in (lengths, *made)}) == 5


def test_memory_is_visited_once_and_asks_for_no_quiet_machine(tmp_path, monkeypatch):
    weighed = {"status": "ok", "reason": None, "peak_bytes": 3}
    processes, _ = conduct(monkeypatch, tmp_path, lambda T, n: weighed, measures=("memory",), visits=3)
    assert sorted(processes.lengths) == [*LENGTHS]
    assert processes.calls == []  # nobody needs to know how quiet the machine is


# Disturbed visits


def test_a_disturbed_visit_is_made_again_after_all_others_and_only_the_good_one_counts(tmp_path, monkeypatch):
    processes, listener = conduct(
        monkeypatch, tmp_path, lambda T, n: timed(7.0, slow=1.5) if (T, n) == (9, 1) else timed()
    )
    assert sorted(processes.lengths[:4]) == [*LENGTHS]
    assert processes.lengths[4:] == [9]
    frame = read(tmp_path).set_index("T")
    assert dict(frame["time_s"]) == dict.fromkeys(LENGTHS, 1.0)
    assert dict(frame["disturbed"]) == {8: 0, 9: 1, 10: 0, 11: 0}
    assert dict(frame["visits"]) == {8: 1, 9: 2, 10: 1, 11: 1}
    assert list(frame["flags"]) == [[]] * 4
    assert listener.settled_visits == listener.announced == 4


def test_the_flag_says_in_numbers_what_disturbed_a_visit(tmp_path, monkeypatch):
    conduct(monkeypatch, tmp_path, lambda T, n: timed(slow=1.5, flags=["one sample"]), lengths=[8], repeats=0)
    (record,), _ = read_records(tmp_path)
    assert record["flags"] == ["one sample", "disturbed: sentinel 6.0 ms, 1.50 times the best of the run"]


@pytest.mark.parametrize(("visits", "repeats"), [(1, 0), (1, 2), (3, 2), (2, 5)])
def test_a_machine_that_is_never_quiet_ends_after_the_repeats_with_all_that_went_well(
    tmp_path, monkeypatch, visits, repeats
):
    processes, listener = conduct(monkeypatch, tmp_path, noisy, visits=visits, repeats=repeats)
    assert set(Counter(processes.lengths).values()) == {visits + repeats}
    frame = read(tmp_path)
    assert set(frame["status"]) == {"ok"}
    assert set(frame["disturbed"]) == set(frame["visits"]) == {visits + repeats}
    assert listener.settled_visits == listener.announced


def test_what_goes_wrong_in_a_repeat_is_the_status_and_is_not_made_again(tmp_path, monkeypatch):
    processes, _ = conduct(
        monkeypatch,
        tmp_path,
        lambda T, n: timed(slow=1.5) if n == 1 else Outcome("oom", reason="no room"),
        lengths=[8],
        visits=3,
    )
    assert processes.lengths == [8, 8]
    assert list(read(tmp_path)["status"]) == ["oom"]


def test_the_first_visit_is_judged_by_what_was_learnt_before_it(tmp_path, monkeypatch):
    both = {"sentinel_before_s": 2 * LEVEL_S, "sentinel_after_s": 2 * LEVEL_S}
    processes, _ = conduct(monkeypatch, tmp_path, lambda T, n: timed(**both), lengths=[8], repeats=0)
    assert processes.calls == ["attnbench.measure.quiet:level_s"]
    assert list(read(tmp_path)["disturbed"]) == [1]


def test_the_best_sentinel_of_any_visit_is_the_level_of_later_ones_and_of_a_resumed_run(tmp_path, monkeypatch):
    def fast_once(T, n):
        return timed(sentinel_before_s=LEVEL_S / 2 if T == 8 else LEVEL_S)

    conduct(monkeypatch, tmp_path, fast_once, lengths=[8], repeats=0)
    conduct(monkeypatch, tmp_path, quiet, lengths=[8, 9], repeats=0)
    assert dict(read(tmp_path).set_index("T")["disturbed"]) == {8: 1, 9: 1}


@pytest.mark.parametrize("n_kept", range(9))
def test_a_resumed_run_makes_what_an_uninterrupted_one_makes_and_repeats_nothing_good(tmp_path, monkeypatch, n_kept):
    asked = {"lengths": [8, 9, 10], "visits": 2, "repeats": 2}
    conduct(monkeypatch, tmp_path / "whole", noisy_at_9, **asked)
    assert sorted(n_records(tmp_path / "whole").values()) == [2, 2, 4]
    conduct(monkeypatch, tmp_path / "cut", noisy_at_9, **asked)
    file = tmp_path / "cut" / "records.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:n_kept]))
    conduct(monkeypatch, tmp_path / "cut", noisy_at_9, **asked)
    assert n_records(tmp_path / "cut") == n_records(tmp_path / "whole")
    frame = read(tmp_path / "cut")
    assert list(frame["T"]) == [8, 9, 10]
    assert set(frame["status"]) == {"ok"}


# Budgets


def test_a_budget_is_spent_on_every_measure_of_every_cell_before_anything_is_repeated(tmp_path, monkeypatch):
    processes, _ = conduct(monkeypatch, tmp_path, noisy, budget_s=9.0, measures=("time", "memory"))
    assert len(processes.made) == 9
    assert len(set(processes.made[:8])) == 8


def test_however_small_a_budget_each_command_gets_farther(tmp_path, monkeypatch):
    for n in range(1, 5):
        conduct(monkeypatch, tmp_path, quiet, budget_s=0.0)
        assert sum(n_records(tmp_path).values()) == n


def wide(T, n):
    return WIDE.get(T) or timed()


def test_without_a_budget_no_visit_is_made_that_was_not_asked_for(tmp_path, monkeypatch):
    processes, listener = conduct(monkeypatch, tmp_path, wide)
    assert len(processes.lengths) == 4
    assert listener.narrowed == []


@pytest.mark.parametrize(("budget_s", "further"), [(4.0, []), (5.0, [9]), (6.0, [9, 10]), (7.0, [9, 10, 9])])
def test_what_a_budget_leaves_over_goes_to_the_widest_intervals_first(tmp_path, monkeypatch, budget_s, further):
    processes, listener = conduct(monkeypatch, tmp_path, wide, budget_s=budget_s, precision=PRECISION)
    assert sorted(processes.lengths[:4]) == [*LENGTHS]
    assert processes.lengths[4:] == further
    assert listener.settled_visits == listener.announced == 4


def test_a_budget_is_not_spent_once_every_interval_is_as_narrow_as_asked(tmp_path, monkeypatch):
    processes, listener = conduct(monkeypatch, tmp_path, wide, budget_s=200.0, precision=PRECISION)
    made = Counter(processes.lengths)
    assert made[8] == made[11] == 1
    assert 1 < made[10] < made[9] < 100
    assert listener.narrowed[0] == 2
    frame = read(tmp_path)
    assert ((frame["time_high_s"] - frame["time_low_s"]) / frame["time_s"] <= 2 * PRECISION).all()


def test_what_a_budget_leaves_over_is_left_where_nothing_is_to_be_narrowed(tmp_path, monkeypatch):
    processes, listener = conduct(monkeypatch, tmp_path, wide, budget_s=200.0, precision=PRECISION, narrow=False)
    assert Counter(processes.lengths) == {8: 1, 9: 1, 10: 1, 11: 1}
    assert not listener.narrowed


def test_a_cell_that_went_wrong_gets_no_further_round(tmp_path, monkeypatch):
    def dies_later(T, n):
        return Outcome("killed", reason="signal 9") if n > 1 else wide(T, n)

    processes, _ = conduct(monkeypatch, tmp_path, dies_later, budget_s=200.0, precision=PRECISION)
    assert Counter(processes.lengths) == {8: 1, 9: 2, 10: 2, 11: 1}


def test_disturbed_visits_narrow_nothing_while_a_good_one_is_there(tmp_path, monkeypatch):
    def noisy_later(T, n):
        return timed(*WIDE[9]["samples_s"], slow=1.0 if n == 1 else 1.5)

    processes, _ = conduct(monkeypatch, tmp_path, noisy_later, lengths=[9], budget_s=20.0, precision=PRECISION)
    assert len(processes.lengths) == 20
    found = read(tmp_path).iloc[0]
    assert found["disturbed"] == 19
    assert found["visit_samples_s"] == [WIDE[9]["samples_s"]]
    assert found["time_high_s"] - found["time_low_s"] > 2 * PRECISION


# What cannot run


def test_unsupported_is_judged_anew_when_a_run_goes_on_and_told_once_for_each_reason(tmp_path, monkeypatch):
    for reason, n_told in (("no compiler", 4), ("no compiler", 4), ("no device", 8)):
        processes, _ = conduct(monkeypatch, tmp_path, quiet, reason=reason)
        assert processes.made == []
        assert sum(n_records(tmp_path).values()) == n_told
    conduct(monkeypatch, tmp_path, quiet)
    assert list(read(tmp_path)["status"]) == ["ok"] * 4

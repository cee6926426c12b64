"""Which visits of a cell count, what interval they have together, and how many are left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_rows import record, timed

from attnbench.records import STATUSES
from attnbench.visits import DISTURBED, Agenda, counted, is_disturbed

WANTED = {("a", "time"): 3, ("a", "memory"): 1, ("b", "time"): 1}
NOISE = [f"{DISTURBED}sentinel 9.0 ms, 2.00 times the best of the run"]


def test_a_visit_is_disturbed_when_its_flags_say_so():
    assert is_disturbed(record("a", flags=["one sample", *NOISE]))
    assert not is_disturbed(record("a", flags=["one sample"]))
    assert not is_disturbed(record("a"))
    assert not is_disturbed(record("a", flags=None))


def test_undisturbed_visits_count_where_there_is_one_else_all_that_went_well():
    good, noisy, bad = timed("a", 1.0), timed("a", 2.0, flags=NOISE), timed("a", 3.0, status="nonconformant")
    assert counted([noisy, good, bad, good]) == [good, good]
    assert counted([noisy, bad, noisy]) == [noisy, noisy]
    assert counted([bad]) == counted([]) == []


# What is left to do


def left(records, **more):
    return Agenda(WANTED, records, **more).left


def test_visits_that_were_made_are_not_made_again():
    made = [record("a"), record("a"), record("b"), record("b"), record("c"), record("a", "accuracy")]
    assert left([]) == WANTED
    assert left(made) == {("a", "time"): 1, ("a", "memory"): 1, ("b", "time"): 0}


@pytest.mark.parametrize("status", [status for status in STATUSES if status not in ("ok", "unsupported")])
def test_after_a_visit_that_went_wrong_none_is_left_of_that_measure(status):
    assert left([record("a", status=status)]) == WANTED | {("a", "time"): 0}
    assert left([record("a"), record("a", status=status)], retry=[status]) == WANTED


def test_visits_before_one_that_went_wrong_do_not_count():
    assert left([record("a"), record("a", status="oom"), record("a")])["a", "time"] == 2


def test_whether_unsupported_still_holds_is_asked_again():
    assert left([record("a", status="unsupported")]) == WANTED


def test_a_disturbed_visit_settles_nothing_while_there_are_repeats_to_spare():
    agenda = Agenda(WANTED, repeats=2)
    settled = [agenda.settle(record("a", flags=NOISE)) for _ in range(6)]
    assert settled == [0, 0, 1, 1, 1, 0]
    assert agenda.settle(record("b", flags=NOISE)) == 0  # the repeats of one cell are not those of another
    assert agenda.settle(record("b")) == 1


def test_a_disturbed_visit_beyond_those_asked_for_asks_for_none():
    agenda = Agenda(WANTED, [record("b")], repeats=2)
    assert agenda.settle(record("b", flags=NOISE)) == 0
    assert agenda.left["b", "time"] == 0


MADE = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["time", "memory"]), st.sampled_from(STATUSES)))


@given(MADE, st.integers(0, 3))
def test_visits_never_become_more_and_never_negative(made, repeats):
    found = left([record(*each) for each in made], repeats=repeats)
    assert found.keys() == WANTED.keys()
    assert all(0 <= found[key] <= WANTED[key] for key in WANTED)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans())), st.integers(0, 3))
def test_no_more_is_made_than_was_asked_for_and_the_repeats(made, repeats):
    agenda, n_made = Agenda(WANTED, repeats=repeats), {"a": 0, "b": 0}
    for name, disturbed in made:
        if agenda.left[name, "time"]:
            agenda.settle(record(name, flags=NOISE * disturbed))
            n_made[name] += 1
    assert all(n <= WANTED[name, "time"] + repeats for name, n in n_made.items())

"""What a run says while it goes on."""

import pytest
from run_rows import tiny_cell as cell

from attnbench.progress import ShownProgress, TimeLeft, duration, title

TIMES = {"n_visits": 1, "took_s": 1.0, "expected_s": 2.0}


def test_time_left_is_what_was_expected_until_something_is_known():
    left = TimeLeft()
    left.expect([("time", 2.0), ("time", 2.0), ("accuracy", 60.0)])
    assert left.seconds == 64.0


def test_time_left_is_corrected_for_each_measure_by_itself():
    left = TimeLeft()
    left.expect([("time", 2.0)] * 3 + [("accuracy", 60.0)] * 2)
    left.learn("time", took_s=1.0, expected_s=2.0)
    assert left.seconds == pytest.approx(2 * 1.0 + 120.0)
    left.learn("accuracy", took_s=15.0, expected_s=60.0)
    assert left.seconds == pytest.approx(2 * 1.0 + 15.0)


def test_nothing_is_left_when_all_visits_are_made():
    left = TimeLeft()
    left.expect([("memory", 3.0)])
    left.learn("memory", took_s=5.0, expected_s=3.0)
    assert str(left) == "0 s"


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0 s"), (45.4, "45 s"), (360, "6 min"), (7560, "2.1 h")])
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text


def test_without_a_terminal_there_are_plain_lines_and_failures_at_once(capsys, tmp_path):
    bad = {"status": "oom", "measure": "time", "reason": "[bold]too much[/bold]"}
    with ShownProgress() as progress:
        progress.started(run=tmp_path / "run", n_cells=1, expected_s=[("time", 2.0)])
        progress.ended(cell=cell(label="full", T=64), record=bad, **TIMES, detail="Traceback of it")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"1 cells, 1 visits to make, about 2 s, into {tmp_path / 'run'}",
        "oom: full layer forward T=64 d_model=8, time: [bold]too much[/bold]",
    ]


def test_what_is_wrong_with_many_cells_is_said_once(capsys, tmp_path):
    cells = [cell(label="leaky", T=64), cell(label="leaky", T=128)]
    bad = {"status": "nonconformant", "measure": "time", "reason": "causal_values: broken"}
    with ShownProgress() as progress:
        progress.started(run=tmp_path / "run", n_cells=2, expected_s=[("time", 2.0)] * 2)
        progress.settled(cells=cells, status="nonconformant", reason=bad["reason"], detail=None)
        for each in cells:
            progress.ended(cell=each, record=bad, **TIMES, detail=None)
        progress.ended(
            cell=cell(label="full", T=256),
            record=bad | {"status": "oom"},
            n_visits=1,
            took_s=1.0,
            expected_s=2.0,
            detail=None,
        )
    assert capsys.readouterr().err.splitlines()[1:] == [
        "2 cells of leaky: nonconformant: causal_values: broken",
        "oom: full layer forward T=256 d_model=8, time: causal_values: broken",
    ]


def test_debug_shows_the_traceback(capsys, tmp_path):
    bad = {"status": "failed", "measure": "time", "reason": "KeyError"}
    with ShownProgress(debug=True) as progress:
        progress.started(run=tmp_path, n_cells=1, expected_s=[("time", 2.0)])
        progress.ended(cell=cell(label="full"), record=bad, **TIMES, detail="Traceback of it")
    assert "Traceback of it" in capsys.readouterr().err


def test_that_the_rest_of_a_budget_is_put_to_use_is_said_once(capsys, tmp_path):
    with ShownProgress() as progress:
        progress.started(run=tmp_path / "run", n_cells=3, expected_s=[("time", 2.0)] * 3)
        for n_cells in (3, 1):
            progress.narrowing(n_cells=n_cells)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "all visits made; the rest of the budget goes to 3 cells with wide intervals"
    ]


def test_title_of_an_accuracy_cell_names_its_task():
    assert title(cell(label="lstm", task="distance", phase=None, T=64)) == "lstm distance T=64 d_model=8"


def test_nothing_is_learnt_from_visits_that_are_not_made():
    left = TimeLeft()
    left.expect([("time", 2.0)] * 4)
    left.drop("time", 2.0)
    assert left.seconds == 6.0
    left.learn("time", took_s=1.0, expected_s=2.0)
    assert left.seconds == 2.0

"""Why a cell costs what it costs: the cell is found, built again and looked at, and two are set side by side."""

import json

import pytest
from run_rows import cell, run_of
from runs import PLUGINS, write_sweep
from test_cli import attnbench

from attnbench.errors import RequestError
from attnbench.execute import runner
from attnbench.explained import explain, find
from attnbench.records import read
from attnbench.report import explanation

ROWS = [cell("aab1c2d3e4f5"), cell("aac1c2d3e4f5"), cell("bbb1c2d3e4f5", measures=["accuracy"], task="distance")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small run that has a plugin of its own, and phases forward and forward_backward."""
    folder = tmp_path_factory.mktemp("explained")
    grid = '[[grid]]\nvariant = ["full", "cosine"]\nT = 12\nphase = ["forward", "forward_backward"]\n'
    return runner.run(write_sweep(folder, grid), out=folder / "run", plugins=PLUGINS / "good.py").path


def cells_of(run):
    frame = read(run)
    return {(row.label, row.phase): row.cell for row in frame.itertuples()}


def facts(*operators, **more):
    rows = [{"name": name, "calls": calls, "self_s": self_s, "share": 0.5} for name, calls, self_s in operators]
    return {"operators": rows, "call_s": 1e-3, "launch_s": 1e-4} | more


def test_a_cell_is_found_by_how_its_id_begins():
    assert find(ROWS, "aab", "run")["cell"] == "aab1c2d3e4f5"
    assert find(ROWS, "aac1c2d3e4f5", "run")["cell"] == "aac1c2d3e4f5"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("aa", "aa: stands for aab1c2d3e4f5, aac1c2d3e4f5; expected one cell"),
        ("aab1c2d3e4f6", 'no cell aab1c2d3e4f6; did you mean "aab1c2d3e4f5"?'),
        ("zz", "no cell zz; its 3 cells stand in cells.jsonl"),
        ("bbb", "bbb1c2d3e4f5: trains; expected a cell of time or memory"),
    ],
)
def test_a_cell_that_is_not_to_be_had_is_told_in_one_line(asked, told):
    with pytest.raises(RequestError, match=told.replace("?", r"\?")) as error:
        find(ROWS, asked, "run")
    assert len(error.value.mistakes) == 1


def test_a_folder_without_a_run_is_no_run(tmp_path):
    with pytest.raises(RequestError, match="no run here"):
        explain(tmp_path, ["aa"])


def test_the_same_cell_twice_is_not_two(tmp_path):
    run = run_of(tmp_path / "run", ROWS, [])
    with pytest.raises(RequestError, match="expected two cells, got one twice"):
        explain(run, ["aab", "aab1"])


def test_operators_calls_and_allocations_of_one_call_are_counted(run):
    (found,) = explain(run, [cells_of(run)["full", "forward"]])
    told = found.facts
    calls = {one["name"]: one["calls"] for one in told["operators"]}
    assert calls["aten::linear"] == 4  # the four maps
    assert calls["aten::_softmax"] == 1
    assert told["n_calls"] == sum(calls.values()) > told["n_launched"] > 4
    assert sum(one["share"] for one in told["operators"]) == pytest.approx(1)
    assert told["n_allocations"] > 4
    assert told["allocated_bytes"] > told["largest_bytes"] >= 12 * 8 * 4
    assert told["launch_s"] == pytest.approx(told["n_launched"] * told["empty_s"])
    assert min(told[name] for name in ("call_s", "time_s", "flops", "flops_executed", "roof_share")) > 0
    assert found.note == ""


def test_two_cells_of_a_run_are_shown_side_by_side_from_the_command_line(run):
    cells = cells_of(run)
    pair = cells["cosine", "forward"], cells["cosine", "forward_backward"]
    done = attnbench("explain", run, pair[0][:11], pair[1])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"{pair[0]}: cosine layer forward T=12 d_model=8"
    for told in ("second ÷ first", "launch overhead", "aten::", "difference"):
        assert told in done.stdout
    as_json = json.loads(attnbench("explain", run, *pair, "--json").stdout)
    assert [one["cell"] for one in as_json["cells"]] == list(pair)
    sizes = [abs(seconds) for seconds in as_json["difference_s"].values()]
    assert sizes == sorted(sizes, reverse=True)


def test_an_unknown_cell_is_a_wrong_request(run):
    done = attnbench("explain", run, "zzzz")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: {run}: no cell zzzz; its 4 cells stand in cells.jsonl\n"


def test_differences_are_of_the_second_to_the_first_and_the_largest_stands_first():
    first, second = facts(("mm", 4, 3e-3), ("add", 1, 1e-3)), facts(("mm", 4, 1e-3), ("exp", 2, 1.5e-3))
    told = explanation.differences([("a", first), ("b", second)])
    assert list(told.items()) == [("mm", pytest.approx(-2e-3)), ("exp", 1.5e-3), ("add", -1e-3)]
    table = explanation.operators([("a", first), ("b", second)]).rows
    assert table[1] == ["mm", "4", "3.00 ms", "50 %", "4", "1.00 ms", "50 %", "−2.00 ms"]
    assert table[2][:5] == ["exp", "–", "–", "–", "2"]


def test_what_a_run_does_not_know_is_not_available_and_never_a_number():
    table = dict(map(tuple, explanation.summary([("a", facts(roof_share=None, time_s=None))]).rows))
    assert table["share of the peak of products"] == table["share of the bandwidth of a copy"] == "not available"
    assert table["share of time here"] == "10 %"


def test_shares_follow_from_what_was_measured():
    told = explanation.derived(facts(bytes_moved=2e6, roof_bytes_per_s=1e10, time_s=1e-3))
    assert (told["launch_share"], told["copy_share"]) == (pytest.approx(0.1), pytest.approx(0.2))


def test_operators_beyond_the_largest_are_counted_below_the_table():
    many = facts(*((f"op{i}", 1, 1e-3 * (i + 1)) for i in range(20)))
    table = explanation.operators([("a", many)])
    assert len(table.rows) == 1 + explanation.TOP
    assert table.rows[1][0] == "op19"
    assert table.note.endswith("; 5 more with less")

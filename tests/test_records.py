import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_rows import cell, record, run_of, timed

from attnbench.errors import RequestError
from attnbench.records import COLUMNS, STATUSES, Run, append, read, read_lines, read_records
from attnbench.run_folder import RunFolder
from attnbench.visits import DISTURBED, Agenda

NAMES = ["é" * 3, "plain", "三", 'quote" and \\']


def row(path: Path, cell_row: dict, records: list[dict]) -> dict:
    frame = read(run_of(path, [cell_row], records))
    assert len(frame) == 1
    return frame.iloc[0].to_dict()


# A file that was cut


def test_records_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "records.jsonl"
    written = [timed(name, 1e-3, 2.0, options={"a": [1, None, "é"]}) for name in NAMES]
    for each in written:
        append(path, each)
    records, notes = read_lines(path)
    assert records == [{"schema": 1} | each for each in written]
    assert notes == []
    assert path.read_bytes().count(b"\n") == len(NAMES)


LINES = [json.dumps({"schema": 1} | record(name, "memory"), ensure_ascii=False).encode() + b"\n" for name in NAMES]
WHOLE = b"".join(LINES)


@given(st.integers(0, len(WHOLE)))
def test_whatever_a_kill_left_of_a_file_all_whole_records_are_read_and_the_next_one_is_not_lost(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "records.jsonl"
    path.write_bytes(WHOLE[:cut])
    n_whole = sum(len(b"".join(LINES[: i + 1])) <= cut + 1 for i in range(len(LINES)))  # the newline may be missing
    records, notes = read_lines(path)
    assert [each["cell"] for each in records] == NAMES[:n_whole]
    torn = cut > 0 and not WHOLE[:cut].endswith(b"\n") and len(b"".join(LINES[:n_whole])) < cut
    assert notes == [f"{path}:{n_whole + 1}: not a whole record, left out; its visit counts as not made"] * torn
    append(path, record("next", "memory"))
    append(path, record("last", "memory"))
    records, notes_after = read_lines(path)
    assert [each["cell"] for each in records] == [*NAMES[:n_whole], "next", "last"]
    assert notes_after == notes


@pytest.mark.parametrize("content", [b"", b"\n", b"\n \n\n"])
def test_an_empty_file_holds_no_records_and_is_no_trouble(tmp_path, content):
    path = tmp_path / "records.jsonl"
    path.write_bytes(content)
    assert read_lines(path) == ([], [])
    append(path, record("a", "memory"))
    assert [each["cell"] for each in read_lines(path)[0]] == ["a"]


def test_a_file_that_is_not_there_holds_no_records(tmp_path):
    assert read_lines(tmp_path / "records.jsonl") == ([], [])


LINES_THAT_ARE_NONE = [b"\0" * 40, b"\xff\xfe{\0}\0", b"NaN", b"3", b"[1]", b"{}", b'{"a": 1', b"{}{}", b"[" * 10**5]


@pytest.mark.parametrize("line", LINES_THAT_ARE_NONE)
def test_a_line_that_is_no_record_is_noted_and_costs_no_other(tmp_path, line):
    path = tmp_path / "records.jsonl"
    path.write_bytes(LINES[0] + line + b"\n" + LINES[1])
    records, notes = read_lines(path)
    assert [each["cell"] for each in records] == NAMES[:2]
    assert [note.partition(": ")[0] for note in notes] == [f"{path}:2"]


BAD = [
    ({"samples_s": [1.0, -1.0]}, "samples_s is not a list of positive numbers"),
    ({"samples_s": [1.0, float("nan")]}, "samples_s is not a list of positive numbers"),
    ({"samples_s": "fast"}, "samples_s is not a list of positive numbers"),
    ({"samples_s": []}, "samples_s is not a list of positive numbers"),
    ({"samples_s": None}, "samples_s is missing"),
    ({"warmup_s": "0.2"}, "warmup_s is not a number"),
    ({"first_call_s": float("inf")}, "first_call_s is not a number"),
    ({"n_params": 3.5}, "n_params is not a count"),
    ({"peak_bytes": -1}, "peak_bytes is not a count"),
    ({"calls": True}, "calls is not a count"),
    ({"switches": -1}, "switches is not a count"),
    ({"flags": ["one sample", 3]}, "flags is not a list of texts"),
    ({"flops": "many"}, "flops is not a number"),
    ({"extra": ["x"]}, "extra is not an object"),
    ({"cell": 12}, "cell is not a text"),
]


@pytest.mark.parametrize(("change", "told"), BAD)
def test_a_record_that_cannot_be_trusted_is_left_out_with_a_note(tmp_path, change, told):
    run_of(tmp_path, [cell("a")], [timed("a", 1.0), timed("a", 2.0) | change])
    records, notes = read_records(tmp_path)
    assert records == [{"schema": 1} | timed("a", 1.0)]
    assert notes == [f"{tmp_path / 'records.jsonl'}:2: {told}, left out; its visit counts as not made"]
    assert read(tmp_path)["time_s"][0] == 1.0


def test_a_record_of_a_newer_attnbench_is_refused_with_its_place(tmp_path):
    run_of(tmp_path, [cell("a")], [timed("a", 1.0), timed("a", 1.0, schema=99)])
    for look in (read, read_records):
        with pytest.raises(
            RequestError, match=r"records\.jsonl:2: schema 99 of a newer attnbench; this one reads up to 1"
        ):
            look(tmp_path)


def test_a_note_is_told_once_however_often_a_run_is_read(tmp_path, capsys):
    run_of(tmp_path, [cell("a")], [{"cell": "a"}])
    for _ in range(3):
        read(tmp_path)
    assert capsys.readouterr().err.count("note: ") == 1


KILLED_WHILE_WRITING = """
import os, random, signal, sys, time
from pathlib import Path
from attnbench.records import append, read_lines

path = Path(sys.argv[1])
random.seed(0)
for n in range(30):
    child = os.fork()
    if not child:
        for i in range(10**6):
            append(path, {"cell": f"{n}-{i}", "text": "x" * 300_000})
    time.sleep(random.uniform(0.001, 0.02))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    records, notes = read_lines(path)
    assert len(notes) <= n + 1, notes
append(path, {"cell": "last"})
records, notes = read_lines(path)
assert records[-1]["cell"] == "last"
assert all(len(record["text"]) == 300_000 for record in records[:-1])
order = [tuple(map(int, record["cell"].split("-"))) for record in records[:-1]]
assert order == sorted(set(order))
print("readable")
"""


def test_no_kill_leaves_a_file_that_cannot_be_read(tmp_path):
    command = [sys.executable, "-c", KILLED_WHILE_WRITING, str(tmp_path / "records.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("readable\n", "")


def test_what_json_cannot_hold_does_not_stop_a_run(tmp_path):
    path = tmp_path / "records.jsonl"
    append(path, record("a", "memory", options={"kernel": len, "path": Path("x"), "size": float("nan")}))
    (read_back,), notes = read_lines(path)
    assert notes == []
    assert read_back["options"]["kernel"] == "<built-in function len>"
    assert read_back["options"]["path"] == "x"


# One row per cell


def test_figures_of_a_visit_that_went_wrong_are_not_measurements(tmp_path):
    bad = record("a", status="nonconformant", peak_bytes=123, samples_s=[1.0])
    found = row(tmp_path, cell("a"), [bad])
    assert found["status"] == "nonconformant"
    assert pd.isna(found["peak_bytes"])
    assert pd.isna(found["time_s"])


def test_a_cell_without_a_visit_is_pending(tmp_path):
    found = row(tmp_path, cell("a", measures=["time", "memory"]), [record("b")])
    assert (found["status"], found["visits"], found["cell"], found["T"]) == ("pending", 0, "a", 64)


def test_a_measure_that_is_still_to_come_keeps_the_cell_pending(tmp_path):
    assert row(tmp_path, cell("a", measures=["time", "memory"]), [timed("a", 1.0)])["status"] == "pending"


CELLS = st.lists(st.sampled_from("abcdef"), min_size=1, unique=True)
MEASURES = st.lists(st.sampled_from(["time", "memory"]), min_size=1, unique=True)
MADE = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(["time", "memory"]), st.sampled_from(STATUSES)))


@given(CELLS, MEASURES, MADE)
def test_every_requested_cell_has_one_row_and_one_status_and_counts_add_up(tmp_path_factory, names, measures, made):
    records = [timed(name, 1e-3, status=status, measure=measure) for name, measure, status in made]
    path = run_of(tmp_path_factory.mktemp("run"), [cell(name, measures=measures) for name in names], records)
    frame = read(path)
    assert list(frame["cell"]) == names
    assert sum(Run(path).counts.values()) == len(names)
    for name, status in zip(names, frame["status"], strict=True):
        latest = dict.fromkeys(measures, "pending") | {m: s for n, m, s in made if n == name and m in measures}
        assert status == max(latest.values(), key=STATUSES.index)
    assert Run(path).as_asked == all(status in ("ok", "unsupported", "skipped") for status in frame["status"])


def test_grouping_and_pivoting_lose_no_row(tmp_path):
    cells = [
        cell("a", variant="full", T=128),
        cell("b", variant="full", T=256),
        cell("c", variant="window", T=128, options={"window": 16}),
        cell("d", variant="window", T=256, options={"window": 16}),
    ]
    made = [timed("a", 1.0), record("b", status="oom"), timed("c", 2.0), record("d", status="failed")]
    made[2:] = [each | {"variant": "window"} for each in made[2:]]
    frame = read(run_of(tmp_path, cells, made))
    assert frame.groupby(["variant", "options"]).size().to_dict() == {
        ("full", '{"window": null}'): 2,
        ("window", '{"window": 16}'): 2,
    }
    assert frame.groupby("status").size().sum() == len(frame) == 4
    assert frame["status"].notna().all()


def test_the_status_of_a_cell_is_the_worst_of_its_latest_visits_and_comes_with_its_reason(tmp_path):
    asked = cell("a", measures=["time", "memory"])
    made = [
        timed("a", 1.0),
        record("a", "memory", "oom", reason="no room"),
        record("a", "memory", "timeout", reason="long"),
    ]
    found = row(tmp_path, asked, made)
    assert (found["status"], found["reason"], found["visits"]) == ("timeout", "long", 3)


def test_a_visit_that_repairs_an_earlier_one_counts(tmp_path):
    found = row(tmp_path, cell("a"), [record("a", status="failed", reason="x"), timed("a", 2.0)])
    assert (found["status"], found["reason"], found["time_s"]) == ("ok", None, 2.0)


def test_what_a_visit_says_once_is_taken_from_the_latest(tmp_path):
    found = row(tmp_path, cell("a"), [timed("a", 1.0, n_params=3, kernel="slow"), timed("a", 1.0, n_params=4)])
    assert found["n_params"] == 4
    assert "kernel" not in found


def test_a_visit_that_samples_longer_weighs_no_more(tmp_path):
    found = row(tmp_path, cell("a"), [timed("a", *[1.0] * 1000), timed("a", *[2.0] * 10), timed("a", 3.0, 3.0)])
    assert len(found["samples_s"]) == 1012
    assert [len(samples) for samples in found["visit_samples_s"]] == [1000, 10, 2]
    assert found["time_s"] == 2.0
    assert found["time_low_s"] <= 1.0
    assert found["time_high_s"] >= 3.0
    assert found["flops_per_s"] == 1e6 / 2.0


def test_neither_a_slow_sample_nor_a_slow_visit_moves_the_time(tmp_path):
    made = [timed("a", 1.0, 1.0, 50.0), timed("a", 1.0, 1.0, 1.0), timed("a", 9.0, 9.0, 9.0)]
    assert row(tmp_path, cell("a"), made)["time_s"] == 1.0


def test_of_a_disturbed_visit_nothing_is_shown_where_there_is_a_good_one(tmp_path):
    noisy = {"flags": [f"{DISTURBED}9% of the sampling stolen"], "first_call_s": 9.0}
    made = [timed("a", 1.0, first_call_s=5.0, flags=[]), timed("a", 2.0, **noisy)]
    found = row(tmp_path / "mixed", cell("a"), made)
    assert (found["time_s"], found["samples_s"], found["first_call_s"], found["flags"]) == (1.0, [1.0], 5.0, [])
    assert (found["visits"], found["disturbed"]) == (2, 1)
    found = row(tmp_path / "noisy", cell("a"), made[1:])
    assert (found["time_s"], found["first_call_s"], found["flags"]) == (2.0, 9.0, noisy["flags"])
    assert (found["visits"], found["disturbed"]) == (1, 1)
    assert [Run(tmp_path / name).n_disturbed for name in ("mixed", "noisy")] == [0, 1]


def test_the_interval_of_one_visit_is_as_wide_as_other_cells_of_the_run_say(tmp_path):
    def width(name, second):
        made = [timed("a", 1.0, 1.0), timed("b", 1.0), timed("b", second)]
        found = read(run_of(tmp_path / name, [cell("a"), cell("b")], made))
        return found["time_high_s"][0] / found["time_low_s"][0]

    assert 1 < width("steady", 1.001) < width("noisy", 1.2)
    alone = read(run_of(tmp_path / "alone", [cell("a")], [timed("a", 1.0, 1.0)]))
    assert alone["time_high_s"][0] == pytest.approx(math.exp(1.96 * 0.03))


def test_a_variants_own_facts_take_no_column_that_means_something_else(tmp_path):
    facts = {"status": "fast path", "measure": "mine", "T": "9", "backend": "flash", "tile": "64"}
    found = row(tmp_path, cell("a"), [timed("a", 1.0) | {"extra": facts}])
    assert (found["status"], found["T"], found["backend"], found["tile"]) == ("ok", 64, "flash", "64")


def test_lines_that_lack_what_a_record_needs_are_left_out_and_their_visits_made_again(tmp_path):
    made = [timed("a", 1.0), {"cell": "a", "status": "ok"}, {"cell": "a", "measure": "time", "status": "fine"}]
    run_of(tmp_path, [cell("a")], made)
    records, notes = read_records(tmp_path)
    assert len(records) == 1
    assert len(notes) == 2
    assert Agenda({("a", "time"): 2}, records).left == {("a", "time"): 1}


def test_a_torn_environment_is_an_empty_one(tmp_path):
    (tmp_path / "environment.json").write_text('{"question": "wh')
    assert Run(tmp_path).environment == {}


def test_samples_of_a_visit_that_went_wrong_are_not_taken(tmp_path):
    found = row(tmp_path, cell("a"), [timed("a", 1.0), timed("a", 9.0, status="nonconformant")])
    assert (found["status"], found["time_s"]) == ("nonconformant", 1.0)


def test_a_rate_needs_a_cost_formula(tmp_path):
    found = row(tmp_path, cell("a"), [timed("a", 1.0) | {"flops": None}])
    assert found["time_s"] == 1.0
    assert found["flops_per_s"] != found["flops_per_s"]


def test_what_a_visit_read_back_replaces_what_was_asked(tmp_path):
    found = row(tmp_path, cell("a"), [timed("a", 1.0, threads=2, options={"window": 8, "b": 1}, device=None)])
    assert (found["threads"], found["device"]) == (2, "cpu")
    assert found["options"] == '{"b": 1, "window": 8}'


def test_columns_are_those_of_the_manual_and_what_a_plugin_adds_comes_behind(tmp_path):
    frame = read(run_of(tmp_path, [cell("a")], [timed("a", 1.0, kernel="fast")]))
    assert list(frame.columns) == [*COLUMNS, "kernel"]
    assert len(set(COLUMNS)) == len(COLUMNS)


def test_ids_of_digits_stay_text(tmp_path):
    names = ["000000000012", "123456789012", "12345678901e", "1e5000000000"]
    frame = read(run_of(tmp_path, [cell(name) for name in names], [timed(name, 1.0) for name in names]))
    assert list(frame["cell"]) == names
    assert set(frame["status"]) == {"ok"}


def test_a_torn_record_is_noted_when_a_run_is_read_and_its_cell_is_pending(tmp_path, capsys):
    run_of(tmp_path, [cell("a"), cell("b")], [timed("a", 1.0), timed("b", 1.0)])
    path = tmp_path / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert list(read(tmp_path)["status"]) == ["ok", "pending"]
    assert capsys.readouterr().err == f"note: {path}:2: not a whole record, left out; its visit counts as not made\n"


def test_a_run_of_no_cells_has_no_rows(tmp_path):
    frame = read(run_of(tmp_path, [], [timed("a", 1.0)]))
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == 0
    assert Run(tmp_path).counts == {}


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RequestError, match=r"no run here \(cells\.jsonl is missing\)"):
        read(tmp_path)
    with pytest.raises(RequestError, match="no run here"):
        read(tmp_path / "gone")


# The folder


def test_a_new_request_replaces_the_cells_and_keeps_the_records(tmp_path):
    run_of(tmp_path, [cell("a"), cell("b")], [timed("a", 1.0), timed("b", 1.0)])
    frame = read(run_of(tmp_path, [cell("b"), cell("c")], []))
    assert list(zip(frame["cell"], frame["status"], strict=True)) == [("b", "ok"), ("c", "pending")]
    assert len(read_lines(tmp_path / "records.jsonl")[0]) == 2


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    first = RunFolder.create(tmp_path / "run")
    with pytest.raises(RequestError, match="another run is writing to this folder"):
        RunFolder.create(tmp_path / "run")
    first.close()
    RunFolder.create(tmp_path / "run").close()


def test_a_writer_that_was_killed_leaves_no_lock(tmp_path):
    script = "import os, sys, pathlib; from attnbench.run_folder import RunFolder\n"
    script += f"folder = RunFolder.create(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), {int(signal.SIGKILL)})"
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    RunFolder.create(tmp_path).close()


def test_a_place_where_no_folder_can_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RequestError, match="cannot be written"):
            RunFolder.create(path)


def test_a_folder_of_somebodys_files_is_refused_and_not_even_locked(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(RequestError, match="holds no run; choose another folder"):
        RunFolder.create(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_folder_knows_whether_it_is_new_or_a_runs(tmp_path):
    folder = RunFolder.create(tmp_path)
    assert not folder.used
    folder.begin("sweep", [cell("a")], {})
    assert folder.used
    assert (folder.holds("sweep"), folder.holds("another")) == (True, False)
    folder.close()
    (tmp_path / "thesis.tex").write_text("")
    RunFolder.create(tmp_path).close()  # a file beside a run is no reason to refuse it


def test_a_run_that_was_killed_before_its_first_cell_may_be_begun_again(tmp_path):
    for name in ("sweep.toml", "environment.json", "cells.jsonl.part"):
        (tmp_path / name).write_text("half")
    folder = RunFolder.create(tmp_path)
    assert not folder.used
    folder.begin("sweep", [cell("a")], {"torch": "2"})
    folder.close()
    assert Run(tmp_path).environment == {"torch": "2"}
    assert sorted(os.listdir(tmp_path)) == [".lock", "cells.jsonl", "environment.json", "sweep.toml"]


def test_clearing_forgets_the_run_and_nothing_else(tmp_path):
    run_of(tmp_path, [cell("a")], [timed("a", 1.0)])
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "time.svg").write_text("old")
    folder = RunFolder.create(tmp_path)
    folder.clear()
    folder.close()
    assert sorted(os.listdir(tmp_path)) == [".lock", "notes.txt"]

"""The report of several runs: side by side, counted together, never averaged nor joined by a line."""

import json

import pytest
from run_rows import cell, run_of, timed

from attnbench.analyse.points import TIME, groups, points
from attnbench.cli import _report
from attnbench.errors import RequestError
from attnbench.records import read, run_names
from attnbench.report import between, of_runs

SIZES = (64, 128)


def run_on(path, device, name, factor, status="ok"):
    """Two variants at two sizes; `fused` takes T · factor microseconds, and at the larger size has the status."""
    cells, visits = [], []
    for variant, slower in (("fused", 1), ("full", 2)):
        for T in SIZES:
            known = f"{variant}{T}"
            cells.append(cell(known, variant=variant, label=variant, T=T, S=T, device=device, device_name=name))
            visits.append(timed(known, T * factor * slower * 1e-6, device_name=name))
    visits[1] |= {"status": status}
    made = run_of(path, cells, visits)
    about = {"baseline": "fused", "question": f"How fast is a {device}?", "processor": name}
    (made / "environment.json").write_text(json.dumps(about))
    return made


@pytest.fixture
def two(tmp_path):
    return [
        run_on(tmp_path / "on_cpu", "cpu", "A CPU", 10),
        run_on(tmp_path / "on_gpu", "cuda", "A GPU", 1, status="oom"),
    ]


def test_two_runs_are_on_one_page_with_both_questions_and_the_counts_of_all(two, tmp_path, capsys):
    _report(two, tmp_path / "both")
    assert capsys.readouterr().out == f"7 of 8 cells ok; 1 oom\nreport: {tmp_path / 'both' / 'report.html'}\n"
    page = (tmp_path / "both" / "report.html").read_text()
    for told in ("How fast is a cpu? · How fast is a cuda?", "7 of 8 cells ok", "on_cpu.processor", "A GPU", "oom"):
        assert told in page
    assert "time_device-cuda_device_name-A-GPU_run-on_gpu.csv" in {
        file.name for file in (tmp_path / "both" / "tables").iterdir()
    }


def test_runs_stay_as_they_were_when_they_are_shown_together(two, tmp_path):
    before = {file: file.read_bytes() for run in two for file in run.iterdir() if file.is_file()}
    of_runs(two, tmp_path / "both")
    assert {file: file.read_bytes() for run in two for file in run.iterdir() if file.is_file()} == before


def test_no_point_and_no_line_is_of_two_runs(two):
    whole = read(*two)
    found = groups(whole)
    assert [set(group.frame["run"]) for group in found] == [{"on_cpu"}, {"on_gpu"}]
    assert [len(group.frame) for group in found] == [4, 4]
    assert [points(group.frame, TIME)["n_cells"].max() for group in found] == [1, 1]


def test_the_same_cells_measured_twice_on_one_machine_stay_apart_too(tmp_path):
    runs = [run_on(tmp_path / name, "cpu", "A CPU", 1) for name in ("first", "second")]
    found = groups(read(*runs))
    assert [group.differs for group in found] == [("run",), ("run",)]
    assert "device_name" not in found[0].settings


def test_a_cell_without_a_visit_is_of_the_machine_that_was_to_make_it(tmp_path):
    run = run_of(tmp_path, [cell("a", device_name="A CPU"), cell("b", T=128, device_name="A CPU")], [])
    assert len(groups(read(run))) == 1
    half = run_of(tmp_path / "half", [cell("a", device_name="A"), cell("b", T=128, device_name="A")], [timed("a", 1.0)])
    assert len(groups(read(half))) == 1


def test_one_run_alone_names_neither_itself_nor_its_machine(two):
    frame = read(two[0])
    assert frame["run"].isna().all()
    (group,) = groups(frame)
    assert group.settings.get("run") is None
    assert "device_name" not in group.settings


def test_runs_of_one_name_are_called_by_their_paths(tmp_path):
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    assert run_names(folders) == [str(folder) for folder in folders]
    assert run_names([folders[0], tmp_path / "other"]) == ["run", "other"]


def test_runs_may_be_called_as_anything_and_ask_nothing(tmp_path):
    runs = [run_on(tmp_path / name, "cpu", f"CPU of {name}", 1) for name in ("timing", "train")]
    for run in runs:
        about = {"baseline": "fused", "processor": f"CPU of {run.name}", "timing": {"max_s": 7}, "train": {"steps": 9}}
        (run / "environment.json").write_text(json.dumps(about))
    (runs[1] / "environment.json").write_text(json.dumps(about | {"question": "Which is faster?"}))
    page = of_runs(runs, tmp_path / "both")[0].read_text()
    assert "<h1>Which is faster?</h1>" in page
    for told in ("timing.processor", "CPU of timing", "train.processor", "CPU of train", "timing.max_s"):
        assert told in page


def test_what_a_run_shares_with_the_first_is_told_as_ratios(two, tmp_path):
    (table,) = between.ratios(read(*two))
    assert table.name == "runs_time"
    assert table.title == "on_gpu relative to on_cpu: Layer forward time, causal, B=1, float32, 1 thread"
    assert [row[:2] for row in table.rows] == [["d_model", "variant"], ["64", "fused"], ["64", "full"]]
    assert table.shown[64].str.startswith("0.10 ").tolist() == [True, True]
    assert table.shown[128].str.split().str[0].tolist() == ["oom", "0.10"]
    assert between.ratios(read(two[0])) == []
    assert table.title in of_runs(two, tmp_path / "both")[0].read_text()


def test_only_like_is_compared_with_like(tmp_path):
    def run(name, **more):
        cells = [cell("a", **more), cell("b", T=128, S=128, **more)]
        return run_of(tmp_path / name, cells, [timed("a", 1e-3), timed("b", 2e-3)])

    first = run("first")
    for name, more in {"wide": {"options": {"window": 9}}, "half": {"dtype": "bfloat16"}, "late": {"B": 4}}.items():
        assert between.ratios(read(first, run(name, **more))) == []
    third = run("third", device="cuda", threads=2)
    assert [table.name for table in between.ratios(read(first, run("second"), third))] == ["runs_time", "runs_time-2"]


def test_runs_whose_names_are_one_file_name_have_files_of_their_own(tmp_path):
    runs = [run_on(tmp_path / name, "cpu", "A CPU", 1) for name in ("cpu 1", "cpu-1", "CPU 1", "cpu-1-2")]
    of_runs(runs, tmp_path / "all")
    for folder, suffix in (("tables", ".csv"), ("plots", ".svg")):
        stems = {file.stem for file in (tmp_path / "all" / folder).glob(f"*{suffix}")}
        found = sorted(stem for stem in stems if stem.startswith("time_run"))
        assert found == ["time_run-CPU-1-3", "time_run-cpu-1", "time_run-cpu-1-2", "time_run-cpu-1-2-2"]


def test_a_wrong_request_is_refused_and_nothing_is_written(two, tmp_path):
    wrong = {
        "give --out DIR": (two, None),
        "holds a run; choose another folder": (two, two[0]),
        "is named twice": ([two[0], two[0]], tmp_path / "new"),
        "no run here": ([two[0], tmp_path / "nowhere"], tmp_path / "new"),
    }
    for told, (runs, out) in wrong.items():
        with pytest.raises(RequestError, match=told) as caught:
            of_runs(runs, out)
        assert len(caught.value.mistakes) == 1
    assert not (tmp_path / "new").exists()
    assert not (two[0] / "report.html").exists()


def test_one_run_is_reported_into_itself_or_elsewhere(two, tmp_path):
    assert of_runs([two[0]])[0] == two[0] / "report.html"
    page, frame = of_runs([two[0]], tmp_path / "elsewhere")
    assert page == tmp_path / "elsewhere" / "report.html"
    assert len(frame) == 4

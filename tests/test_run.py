"""Whole runs: every requested cell gets one status of its own, and nothing measured is ever lost."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import torch
from runs import HEEDING, PLUGINS, write_sweep

import attnbench
from attnbench.errors import RequestError
from attnbench.execute import runner, scratch
from attnbench.execute.listener import Listener
from attnbench.records import read_records
from attnbench.registry import variant_name
from attnbench.report import chosen, of_runs
from attnbench.visits import counted

TWO_BY_TWO = '[[grid]]\nvariant = ["full", "fused"]\nT = [8, 12]\nmeasure = ["time", "memory"]\n'


def records(folder):
    return read_records(folder)[0]


class Recorder(Listener):
    def __init__(self):
        self.seen = []
        self.n_visits = 0
        self.settlements = []

    def settled(self, cells, status, reason, detail):
        self.settlements.append((cells[0].label, len(cells), status))

    def started(self, run, n_cells, expected_s):
        self.expected_s = expected_s

    def uncounted(self, n_cells):
        self.n_uncounted = n_cells

    def ended(self, cell, record, n_visits, took_s, expected_s, detail):
        self.seen.append((record["measure"], took_s, expected_s))
        self.n_visits += n_visits


@pytest.fixture(scope="module")
def two_by_two(tmp_path_factory):
    """A whole run, its sweep file, and what its listener heard."""
    folder, recorder = tmp_path_factory.mktemp("two_by_two"), Recorder()
    sweep = write_sweep(folder, TWO_BY_TWO)
    return attnbench.run(sweep, out=folder / "run", listener=recorder), sweep, recorder


def test_every_cell_is_measured_and_reads_back_what_was_in_force(two_by_two):
    made, _, _ = two_by_two
    frame = made.frame
    assert made.counts == {"ok": 4}
    assert made.as_asked
    assert (frame["time_s"] > 0).all()
    assert (frame["peak_bytes"] > 0).all()
    assert (frame["n_params"] == 4 * 8 * 8).all()
    assert (frame["param_bytes"] == 4 * 4 * 8 * 8).all()
    assert (frame["threads"] == 1).all()
    assert set(frame["device"]) == {"cpu"}
    assert (frame[["sentinel_before_s", "sentinel_after_s", "cpu_s"]] > 0).all(axis=None)
    assert (frame["switches"].fillna(0) >= 0).all()
    assert set(frame["disturbed"]) <= {0, 1}  # this machine may be busy
    assert set(frame[frame["variant"] == "fused"]["backend"]) <= {"flash", "math"}
    assert json.loads(frame["options"].iloc[0])["n_kv_heads"] == 2
    assert set(made.environment["peaks"]["cpu"]["1"]) == {"float32_flops_per_s", "copy_bytes_per_s"}
    assert (frame["roof_share"] > 0).all()
    assert (frame["bytes_moved"] > 0).all()


def test_run_folder_holds_the_request_and_no_name_of_the_machine(two_by_two):
    made, sweep, _ = two_by_two
    assert (made.path / "sweep.toml").read_text() == sweep.read_text()
    assert len((made.path / "cells.jsonl").read_text().splitlines()) == 4
    written = "".join(file.read_text() for file in made.path.iterdir() if file.suffix in (".json", ".jsonl"))
    assert str(sweep.parent) not in written
    assert os.uname().nodename not in written


STACKS = """[[grid]]
variant = [["window", "linear"], ["fused"]]
T = 16
level = "model"
n_layers = 4
[[grid]]
measure = "accuracy"
task = "distance"
variant = [[{ name = "window", window = 3 }, "lstm"]]
T = 16
[train]
steps = 2
n_validation = 8
n_test = 8
"""


def test_a_stack_of_variants_is_built_layer_by_layer_timed_and_trained(tmp_path):
    frame = attnbench.run(write_sweep(tmp_path, STACKS), out=tmp_path / "run").frame.set_index("label")
    assert list(frame.index) == ["window+linear", "fused", "window+lstm"]
    assert list(frame["status"]) == ["ok"] * 3
    assert json.loads(frame["options"]["window+linear"]) | {"0.window": 64, "1.chunk": 64, "1.n_kv_heads": 2} == (
        json.loads(frame["options"]["window+linear"])
    )
    assert json.loads(frame["options"]["window+lstm"])["0.window"] == 3
    assert frame["time_s"]["window+linear"] > 0
    assert frame["flops"]["window+linear"] > frame["flops"]["fused"]  # linear's states are wider than these 16 keys
    assert frame["accuracy"]["window+lstm"] >= 0


def test_a_broken_layer_of_a_stack_is_named_and_an_unsupported_one_too(tmp_path):
    head = f'plugins = ["{PLUGINS / "leaks_future.py"}"]'
    grids = '[[grid]]\nvariant = [["fused", "block_mean"]]\nT = 8\nlevel = "model"\n'
    grids += '[[grid]]\nvariant = [["fused", "xformers"]]\nT = 8\nlevel = "model"\n'
    frame = attnbench.run(write_sweep(tmp_path, grids, head), out=tmp_path / "run").frame
    assert list(frame["status"]) == ["nonconformant", "unsupported"]
    assert frame["reason"][0].startswith("block_mean: ")
    assert frame["reason"][1].startswith("layer 1 (xformers): ")


@pytest.mark.parametrize(
    ("variant", "told"),
    [('[["fused", "leaks_late"]]', "leaks_late: causal_values: "), ('"leaks_late"', "causal_values: ")],
)
def test_a_variant_is_tried_as_the_layers_that_it_fills(tmp_path, variant, told):
    head = f'plugins = ["{PLUGINS / "leaks_late.py"}"]'
    grid = f'[[grid]]\nvariant = {variant}\nT = 8\nlevel = "model"\n'
    row = attnbench.run(write_sweep(tmp_path, grid, head), out=tmp_path / "run").frame.iloc[0]
    assert row["status"] == "nonconformant"
    assert row["reason"].startswith(told)
    assert "layer 1" in row["reason"]


def test_a_layer_that_no_cell_has_is_not_tried(tmp_path):
    head = f'plugins = ["{PLUGINS / "leaks_late.py"}"]'
    grid = '[[grid]]\nvariant = "leaks_late"\nT = 8\n'
    grid += '[[grid]]\nvariant = [["leaks_late", "fused"]]\nT = 8\nlevel = "model"\n'
    assert attnbench.run(write_sweep(tmp_path, grid, head), out=tmp_path / "run").counts == {"ok": 2}


@pytest.mark.parametrize(
    ("multiple", "T", "told"),
    [
        (1, "[11, 16, 64, 128, 130, 517, 512]", "causal_values: "),
        (128, "[128, 256, 512]", "causal_values: "),  # there is no other length that the variant takes
        (512, "512", "no promise could be tried: T must be a multiple of 512"),
    ],
)
def test_no_variant_goes_unchecked_whatever_lengths_a_sweep_has(tmp_path, multiple, T, told):
    head = f'plugins = ["{PLUGINS / "leaks_far.py"}"]'
    grid = f'[[grid]]\nvariant = {{ name = "far_sighted", beyond = 100, multiple = {multiple} }}\nT = {T}\n'
    frame = attnbench.run(write_sweep(tmp_path, grid, head), out=tmp_path / "run").frame
    assert set(frame["status"]) == {"nonconformant"}
    assert frame["reason"][0].startswith(told)


def test_a_run_whose_budget_is_spent_makes_one_visit_and_goes_on_later(tmp_path):
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = ["full", "fused"]\nT = [8, 12]\nmeasure = "memory"\n')
    spent = attnbench.run(sweep, out=tmp_path / "run", budget_s=0.0)
    assert spent.counts == {"ok": 1, "pending": 3}
    assert not spent.as_asked
    assert attnbench.run(sweep, out=tmp_path / "run", budget_s=600.0, resume=True).counts == {"ok": 4}


def test_compiled_cells_are_timed_apart_from_compiling_them(tmp_path):
    grid = '[[grid]]\nvariant = "full"\nT = 8\ncompile = [false, true]\nlevel = "core"\n'
    frame = attnbench.run(write_sweep(tmp_path, grid), out=tmp_path / "run").frame.set_index("compile")
    assert list(frame["status"]) == ["ok", "ok"]
    assert frame["cell"].nunique() == 2
    assert frame["compile_s"].isna()[False]
    assert frame["compile_s"][True] > 50 * frame["time_s"][True]
    assert frame["first_call_s"][True] < frame["compile_s"][True]


def test_decoding_is_not_compiled_and_says_so(tmp_path):
    grid = '[[grid]]\nvariant = "full"\nT = 8\ncompile = true\nphase = "decode"\n'
    made = attnbench.run(write_sweep(tmp_path, grid), out=tmp_path / "run")
    assert made.counts == {"unsupported": 1}
    assert made.frame["reason"][0] == "compile covers passes over whole sequences, not decoding"


def test_calamities_stay_in_their_own_cells(tmp_path):
    head = f'timeout = "4s"\nmemory_limit = "1GiB"\nplugins = ["{PLUGINS / "disasters.py"}"]'
    sweep = write_sweep(
        tmp_path, '[[grid]]\nvariant = ["disasters", "full"]\nT = [80, 96, 192, 384, 768, 1536, 64]\n', head
    )
    made = attnbench.run(sweep, out=tmp_path / "run")
    frame = made.frame
    bad = frame[frame["variant"] == "disasters"].set_index("T")["status"].to_dict()
    assert bad == {
        80: "failed",
        96: "oom",
        192: "oom",
        384: "killed",
        768: "timeout",
        1536: "nonconformant",
        64: "ok",
    }
    assert set(frame[frame["variant"] == "full"]["status"]) == {"ok"}
    assert not made.as_asked
    reasons = frame.set_index("T")["reason"].dropna().to_dict()
    assert reasons[192].endswith("; under memory_limit 1 GiB")
    assert reasons[384] == "killed (signal 9, perhaps out of memory)"
    assert reasons[80].startswith("KeyError: 'nothing is well at this length' (disasters.py:")


@pytest.mark.parametrize("fault", ["leaks_future", "mixes_rows", "ignores_key_mask", "wrong_normaliser"])
def test_a_faulty_variant_gets_no_numbers(tmp_path, fault):
    head = f'plugins = ["{PLUGINS / f"{fault}.py"}"]'
    (name,) = re.findall(r"^class (\w+)", (PLUGINS / f"{fault}.py").read_text(), re.MULTILINE)
    name = variant_name(type(name, (), {}))
    sweep = write_sweep(tmp_path, f'[[grid]]\nvariant = ["{name}", "full"]\nT = [8, 24]\n', head)
    recorder = Recorder()
    frame = attnbench.run(sweep, out=tmp_path / "run", listener=recorder).frame
    assert recorder.settlements == [(name, 2, "nonconformant")]
    assert set(frame[frame["variant"] == name]["status"]) == {"nonconformant"}
    assert frame[frame["variant"] == name]["time_s"].isna().all()
    assert set(frame[frame["variant"] == "full"]["status"]) == {"ok"}


def test_what_cannot_be_is_unsupported_with_a_reason_and_as_asked(tmp_path):
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = ["lstm", "full"]\nT = 8\nlevel = ["core", "layer"]\n')
    made = attnbench.run(sweep, out=tmp_path / "run")
    frame = made.frame.set_index(["variant", "level"])
    assert frame.loc[("lstm", "core"), "status"] == "unsupported"
    assert "queries and keys" in frame.loc[("lstm", "core"), "reason"]
    assert made.counts == {"ok": 3, "unsupported": 1}
    assert made.as_asked


def test_resume_makes_each_visit_once_and_a_bigger_sweep_only_what_is_new(tmp_path):
    grid = '[[grid]]\nvariant = ["full", "fused"]\nT = [8, 12]\nseed = [0, 1]\n'
    sweep, run = write_sweep(tmp_path, grid), tmp_path / "run"
    attnbench.run(sweep, out=run)
    whole = records(run)
    assert len(whole) == 8
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    (run / "records.jsonl").write_text("".join(lines[:3]))
    assert dict(attnbench.read(run)["status"].value_counts()) == {"ok": 3, "pending": 5}
    attnbench.run(sweep, out=run, resume=True)
    assert len(records(run)) == 8
    attnbench.run(sweep, out=run, resume=True)
    assert len(records(run)) == 8
    wider = write_sweep(tmp_path, '[[grid]]\nseed = [0, 1]\nT = [8.0, 12, 16]\nvariant = ["full", "fused"]\n')
    before = attnbench.read(run).set_index("cell")["time_s"].to_dict()
    made = attnbench.run(wider, out=run, resume=True)
    assert len(records(run)) == 12
    reordered = write_sweep(tmp_path, '[[grid]]\nT = [16, 12.0, 8]\nvariant = ["fused", "full"]\nseed = [1.0, 0]\n')
    assert attnbench.run(reordered, out=run, resume=True).counts == {"ok": 12}
    assert len(records(run)) == 12
    after = attnbench.read(run).set_index("cell")["time_s"].to_dict()
    assert {name: after[name] for name in before} == before
    assert len({(r["cell"], r["measure"]) for r in records(run)}) == 12
    assert made.counts == {"ok": 12}


def test_a_narrower_sweep_tells_what_it_leaves_out_and_loses_nothing(tmp_path):
    sweep, run = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = [8, 12, 16]\n'), tmp_path / "run"
    attnbench.run(sweep, out=run)
    narrow, listener = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = 8\n', name="narrow.toml"), Recorder()
    assert attnbench.run(narrow, out=run, resume=True, listener=listener).counts == {"ok": 1}
    assert (listener.n_uncounted, listener.n_visits) == (2, 0)
    assert attnbench.run(sweep, out=run, resume=True, listener=Recorder()).counts == {"ok": 3}
    assert len(records(run)) == 3


def test_several_visits_give_one_row_with_all_samples(tmp_path):
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = [8, 12]\n')
    sweep.write_text(sweep.read_text().replace("[timing]", "[timing]\nvisits = 3"))
    frame = attnbench.run(sweep, out=tmp_path / "run").frame
    assert list(frame["visits"]) == [3, 3]
    made = counted(r for r in records(tmp_path / "run") if r["cell"] == frame["cell"][0])
    assert len(frame["samples_s"][0]) == sum(len(r["samples_s"]) for r in made)
    cells = [r["cell"] for r in records(tmp_path / "run")]
    assert [len(set(cells[i : i + 2])) for i in (0, 2, 4)] == [2, 2, 2]  # round after round


def test_folder_of_another_sweep_is_refused_and_left_as_it_was(tmp_path):
    attnbench.run(write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = 8\n'), out=tmp_path / "run")
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    other = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = 12\n')
    with pytest.raises(RequestError, match="another sweep already; say --resume or --overwrite"):
        attnbench.run(other, out=tmp_path / "run")
    assert {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()} == before
    assert list(attnbench.run(other, out=tmp_path / "run", overwrite=True).frame["T"]) == [12]
    assert len(records(tmp_path / "run")) == 1


def test_resume_by_a_sweep_without_a_cell_in_common_is_refused_and_the_run_left_as_it_was(tmp_path):
    run = tmp_path / "run"
    attnbench.run(write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = [8, 9]\n'), out=run)
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    other = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = 12\n', name="other.toml")
    for sweep, overrides in ((other, []), (tmp_path / "sweep.toml", ["T=12"])):
        with pytest.raises(RequestError, match=f"no cell of {re.escape(str(sweep))} is in the run that it holds"):
            attnbench.run(sweep, out=run, overrides=overrides, resume=True)
    assert {file.name: file.read_bytes() for file in run.iterdir()} == before
    attnbench.run(other, out=run, overrides=["T=[12, 9]"], resume=True)
    assert attnbench.run(other, out=run, overrides=["T=8"], resume=True).counts == {
        "ok": 1
    }  # measured once, asked anew


def test_resume_by_the_same_sweep_goes_on_though_its_cells_have_other_ids_now(tmp_path):
    plugin = tmp_path / "quick.py"
    plugin.write_text((PLUGINS / "quick.py").read_text())
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "nothing"\nT = 8\n', 'plugins = "quick.py"')
    attnbench.run(sweep, out=tmp_path / "run")
    plugin.write_text(plugin.read_text() + "# changed\n")
    assert attnbench.run(sweep, out=tmp_path / "run", resume=True).counts == {"ok": 1}
    assert len(records(tmp_path / "run")) == 2


def test_folder_with_somebodys_files_is_refused(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    with pytest.raises(RequestError, match="holds no run; choose another folder"):
        attnbench.run(write_sweep(tmp_path, TWO_BY_TWO), out=tmp_path / "run", overwrite=True)


def test_two_runs_never_write_to_one_folder(tmp_path):
    from filelock import FileLock

    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".lock"), pytest.raises(RequestError, match="another run is writing"):
        attnbench.run(write_sweep(tmp_path, TWO_BY_TWO), out=tmp_path / "run")


def test_runs_that_start_together_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner.time, "strftime", lambda _: "20260101-000000")
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = 8\n')
    assert [attnbench.run(sweep).path.name for _ in range(2)] == ["sweep-20260101-000000", "sweep-20260101-000000-2"]


def at_once(calls):
    """What calls give, each made in a thread of its own and all at the same moment; an error is its result."""
    start = threading.Barrier(len(calls))

    def made(call):
        start.wait()
        try:
            return call()
        except RequestError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(made, calls))


UNSUPPORTED = '[[grid]]\nvariant = "lstm"\nlevel = "core"\nT = [8, 12]\n'  # settled without a visit


def test_eight_runs_at_the_same_moment_have_eight_whole_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner.time, "strftime", lambda _: "20260101-000000")
    main, sweep = sys.modules["__main__"], write_sweep(tmp_path, UNSUPPORTED)
    runs = at_once([lambda: attnbench.run(sweep)] * 8)
    assert len({run.path for run in runs}) == 8
    for run in runs:
        assert run.counts == {"unsupported": 2}
        assert {file.name for file in run.path.iterdir()} >= {"sweep.toml", "cells.jsonl", "environment.json"}
        assert len(records(run.path)) == 2
    assert sys.modules["__main__"] is main


def test_of_two_runs_into_one_folder_one_is_refused(tmp_path):
    sweep = write_sweep(tmp_path, UNSUPPORTED)
    runs = at_once([lambda: attnbench.run(sweep, out=tmp_path / "run")] * 2)
    made, refused = sorted(runs, key=lambda run: isinstance(run, RequestError))
    assert made.counts == {"unsupported": 2}
    assert re.search("another run is writing|holds a run of this sweep already", str(refused))
    assert len(records(tmp_path / "run")) == 2


def test_order_of_cells_does_not_move_a_peak(tmp_path):
    peaks = []
    for i, T in enumerate(("[256, 16]", "[16, 256]")):
        sweep = write_sweep(tmp_path, f'[[grid]]\nvariant = "full"\nmeasure = "memory"\nT = {T}\n')
        made = attnbench.run(sweep, out=tmp_path / f"run{i}")
        assert made.environment["peaks"] == {}  # nothing is timed
        peaks.append(made.frame.set_index("T")["peak_bytes"].to_dict())
    assert peaks[0] == peaks[1]


def test_constructor_and_forward_have_peaks_of_their_own(tmp_path):
    head = f'plugins = ["{PLUGINS / "hungry.py"}"]'
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "hungry"\nmeasure = "memory"\nT = 8\n', head)
    row = attnbench.run(sweep, out=tmp_path / "run").frame.iloc[0]
    assert row["status"] == "ok", row["reason"]
    assert row["build_peak_bytes"] == pytest.approx(64 * 2**20, rel=0.01)
    assert row["peak_bytes"] == pytest.approx(16 * 2**20, rel=0.01)


def test_memory_of_a_failed_cell_is_gone_before_the_next(tmp_path):
    head = f'plugins = ["{PLUGINS / "hungry.py"}"]'
    grid = '[[grid]]\nvariant = [{name = "hungry", fail_at = 8}, "full"]\nmeasure = "memory"\nT = [8, 12]\n'
    frame = attnbench.run(write_sweep(tmp_path, grid, head), out=tmp_path / "run", workers=1).frame
    assert sorted(frame["status"]) == ["ok", "ok", "ok", "oom"]
    alone = attnbench.run(
        write_sweep(tmp_path, '[[grid]]\nvariant="full"\nmeasure="memory"\nT=[8, 12]\n'), out=tmp_path / "b"
    )
    full = frame[frame["variant"] == "full"]
    assert list(full["peak_bytes"]) == list(alone.frame["peak_bytes"])
    assert full["rss_peak_bytes"].to_numpy() == pytest.approx(alone.frame["rss_peak_bytes"].to_numpy(), abs=50 * 2**20)


def test_first_call_of_each_size_stands_apart_from_the_samples(tmp_path):
    head = f'plugins = ["{PLUGINS / "quick.py"}"]'
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "slow_start"\nT = [64, 128, 256]\n', head)
    frame = attnbench.run(sweep, out=tmp_path / "run").frame
    assert list(frame["status"]) == ["ok"] * 3
    assert (frame["time_s"] < 0.1).all()  # a call takes some ms, the first of a size sleeps for 0.3 s
    assert frame["first_call_s"].between(0.3, 1).all()
    assert (frame["warmup_s"] >= frame["first_call_s"]).all()


def test_cell_that_does_nothing_has_a_positive_time_and_a_flag(tmp_path):
    head = f'plugins = ["{PLUGINS / "quick.py"}"]'
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "nothing"\nT = 1\n', head)
    row = attnbench.run(sweep, out=tmp_path / "run").frame.iloc[0]
    assert row["time_s"] > 0
    assert "at timer resolution" in row["flags"]


def test_thread_count_is_in_the_record_and_the_callers_is_left_alone(tmp_path):
    before = torch.get_num_threads()
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = 8\nthreads = [1, 2]\n')
    frame = attnbench.run(sweep, out=tmp_path / "run").frame
    assert sorted(frame["threads"]) == [1, 2]
    assert frame["cell"].nunique() == 2
    assert torch.get_num_threads() == before


def test_what_a_mixer_says_of_itself_never_spoils_its_record(tmp_path):
    head = f'plugins = ["{PLUGINS / "oddities.py"}"]'
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = [{ name = "odd", gamma = 2.0 }]\nT = 8\n', head)
    row = attnbench.run(sweep, out=tmp_path / "run").frame.iloc[0]
    assert (row["status"], row["reason"]) == ("ok", None)
    assert json.loads(row["options"]) == {"gamma": 2.0, "name": "x"}
    assert row["tile"].startswith("Odd(")


def test_variant_that_ends_the_process_when_it_is_built_harms_no_other(tmp_path):
    head = f'plugins = ["{PLUGINS / "oddities.py"}"]'
    grid = '[[grid]]\nvariant = ["suicidal", "lstm"]\nT = 8\nlevel = ["core", "layer"]\n'
    frame = attnbench.run(write_sweep(tmp_path, grid, head), out=tmp_path / "run").frame
    statuses = frame.set_index(["variant", "level"])["status"].to_dict()
    assert (statuses["lstm", "core"], statuses["lstm", "layer"]) == ("unsupported", "ok")
    assert statuses["suicidal", "layer"] == "failed"


def test_a_visit_that_goes_wrong_is_not_repeated(tmp_path):
    head = f'plugins = ["{PLUGINS / "disasters.py"}"]'
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "disasters"\nT = [80, 8]\n', head)
    sweep.write_text(sweep.read_text().replace("[timing]", "[timing]\nvisits = 3"))
    recorder = Recorder()
    made = attnbench.run(sweep, out=tmp_path / "run", listener=recorder)
    assert made.counts == {"ok": 1, "failed": 1}
    assert sorted(r["status"] for r in records(tmp_path / "run")) == ["failed", "ok", "ok", "ok"]
    assert recorder.n_visits == len(recorder.expected_s) == 6


def test_retry_tries_again_what_ended_so_and_nothing_else(tmp_path):
    head = f'plugins = ["{PLUGINS / "disasters.py"}"]'
    sweep, run = write_sweep(tmp_path, '[[grid]]\nvariant = "disasters"\nT = [80, 96, 8]\n', head), tmp_path / "run"
    attnbench.run(sweep, out=run)
    attnbench.run(sweep, out=run, resume=True)
    assert len(records(run)) == 3
    made = attnbench.run(sweep, out=run, resume=True, retry=["failed"])
    assert sorted(r["status"] for r in records(run)) == ["failed", "failed", "ok", "oom"]
    assert made.counts == {"failed": 1, "oom": 1, "ok": 1}


def test_a_retry_that_goes_well_replaces_what_went_wrong(tmp_path):
    sweep, run = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = [2048, 8]\n'), tmp_path / "run"
    assert attnbench.run(sweep, out=run, timeout_s=0.001).counts == {"timeout": 2}
    assert attnbench.run(sweep, out=run, resume=True, retry=["timeout"]).counts == {"ok": 2}


def test_fail_fast_stops_at_the_first_and_leaves_the_rest_to_resume(tmp_path):
    head = f'plugins = ["{PLUGINS / "disasters.py"}"]'
    sweep, run = write_sweep(tmp_path, '[[grid]]\nvariant = "disasters"\nT = [80, 96]\n', head), tmp_path / "run"
    first = attnbench.run(sweep, out=run, fail_fast=True)
    assert sorted(first.counts.values()) == [1, 1]
    assert first.counts["pending"] == 1
    assert attnbench.run(sweep, out=run, resume=True).counts == {"failed": 1, "oom": 1}


def test_accuracy_is_trained_in_the_dtype_that_was_asked_for(tmp_path):
    grid = (
        '[[grid]]\nmeasure = "accuracy"\nvariant = "full"\ntask = "distance"\nT = 8\ndtype = ["float32", "float64"]\n'
    )
    sweep = write_sweep(tmp_path, grid + "[train]\nsteps = 2\nlr = 1e-2\nn_test = 8\nn_validation = 8\n")
    frame = attnbench.run(sweep, out=tmp_path / "run").frame
    assert list(frame["status"]) == ["ok", "ok"], list(frame["reason"])
    assert sorted(frame["dtype"]) == ["float32", "float64"]
    assert frame["loss"].nunique() == 2


def test_accuracy_cell_is_trained_and_scored(tmp_path):
    grid = '[[grid]]\nmeasure = "accuracy"\nvariant = ["full", "lstm"]\ntask = "distance"\nT = 16\n'
    sweep = write_sweep(tmp_path, grid + "[train]\nsteps = 5\nlr = [1e-2]\nn_test = 64\nn_validation = 32\n")
    frame = attnbench.run(sweep, out=tmp_path / "run").frame
    assert list(frame["status"]) == ["ok", "ok"], list(frame["reason"])
    assert frame["accuracy"].between(0, 1).all()
    assert list(frame["chance"]) == [1 / 8] * 2
    assert list(frame["positions"]) == ["learned", "none"]
    assert frame["fingerprint"].nunique() == 1
    assert sum(part["n"] for part in frame["slices"][0].values()) == 64 * 4


def test_listener_hears_of_every_visit_and_what_it_was_expected_to_take(two_by_two):
    _, _, recorder = two_by_two
    assert len(recorder.seen) == 8
    assert sorted((measure, expected_s) for measure, _, expected_s in recorder.seen) == sorted(recorder.expected_s)
    assert all(took_s > 0 and expected_s > 0 for _, took_s, expected_s in recorder.seen)


def test_run_killed_in_the_middle_is_finished_by_resume(tmp_path):
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = ["full", "fused"]\nT = [8, 9, 10, 11]\nseed = [0, 1, 2]\n')
    command = [sys.executable, "-m", "attnbench", "run", str(sweep), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    file = tmp_path / "run" / "records.jsonl"
    while not (file.exists() and file.read_text().count("\n") >= 5):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    n_before = len(records(tmp_path / "run"))
    assert 5 <= n_before < 24
    finished = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=True)
    assert "24 of 24 cells ok" in finished.stdout
    made = records(tmp_path / "run")
    assert len(made) == len({r["cell"] for r in made}) == 24


def a_run_that_sleeps(folder, *more):
    """A process whose run has recorded one visit and waits for another; its children; TMPDIR is folder / "tmp"."""
    head = f'plugins = ["{PLUGINS / "disasters.py"}"]'
    sweep = write_sweep(folder, '[[grid]]\nvariant = "disasters"\nT = [64, 768]\n', head)
    (folder / "tmp").mkdir()
    process = subprocess.Popen(
        [*HEEDING, sys.executable, "-m", "attnbench", "run", str(sweep), *more],
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder / "tmp")},
    )
    while not list(folder.glob("**/records.jsonl")):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.02)
    time.sleep(0.3)
    return process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize(
    ("number", "what"),
    [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM"), (signal.SIGHUP, "ended by SIGHUP")],
)
def test_a_run_that_is_stopped_says_how_to_go_on_and_leaves_no_process_and_no_scratch(tmp_path, number, what):
    process, workers = a_run_that_sleeps(tmp_path, "--out", "run")
    for _ in range(2):  # a second one does not disturb the first
        process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert errors.splitlines()[-1] == f"error: {what}; the same command with --resume goes on from here"
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    assert len(records(tmp_path / "run")) == 1
    assert list((tmp_path / "tmp").glob("attnbench-scratch-*")) == []


def test_a_stopped_run_without_a_folder_of_its_own_choice_names_the_one_it_has(tmp_path):
    process, _ = a_run_that_sleeps(tmp_path)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    (folder,) = (tmp_path / "results").iterdir()
    last = errors.splitlines()[-1]
    assert last.endswith(f"the same command with --out results/{folder.name} --resume goes on from here")


def test_what_a_killed_run_left_goes_with_the_next(tmp_path, monkeypatch):
    process, workers = a_run_that_sleeps(tmp_path, "--out", "run")
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []
    (left,) = (tmp_path / "tmp").glob("attnbench-scratch-*")
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path / "tmp"))
    young = scratch.Scratch()
    assert left.exists()
    monkeypatch.setattr(scratch, "SETTLED_S", 0.0)
    another = scratch.Scratch()
    assert not left.exists()
    assert young.path.exists()  # its owner lives
    young.remove()
    another.remove()
    assert list((tmp_path / "tmp").glob("attnbench-scratch-*")) == []


def test_a_cell_with_fewer_visits_than_were_asked_for_is_pending(tmp_path):
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = 8\n').read_text()
    (tmp_path / "sweep.toml").write_text(sweep.replace("[timing]", "[timing]\nvisits = 3"))
    made = attnbench.run(tmp_path / "sweep.toml", out=tmp_path / "run")
    assert made.counts == {"ok": 1}
    kept = (made.path / "records.jsonl").read_text().splitlines(keepends=True)
    (made.path / "records.jsonl").write_text("".join(kept[:2]))
    short = attnbench.Run(made.path)
    assert (short.counts, short.frame["reason"][0]) == ({"pending": 1}, "2 of 3 visits made")
    assert short.frame["time_s"][0] > 0
    assert attnbench.run(tmp_path / "sweep.toml", out=made.path, resume=True).counts == {"ok": 1}
    assert len(records(made.path)) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"resume": True, "overwrite": True, "out": "x"}, "exclude each other"),
        ({"resume": True}, "--resume goes with --out"),
        ({"retry": "oom"}, "--retry goes with --resume"),
        ({"resume": True, "out": "x", "retry": "om"}, 'did you mean "oom"'),
        ({"overrides": "t=[8]"}, 'did you mean "T"'),
    ],
)
def test_arguments_that_do_not_go_together_are_refused_from_python_too(tmp_path, arguments, message):
    with pytest.raises(RequestError, match=message):
        attnbench.run(write_sweep(tmp_path, TWO_BY_TWO), **arguments)


def test_a_broken_promise_hides_numbers_in_tables_and_report_and_shows_why(tmp_path):
    head = f'plugins = ["{PLUGINS / "leaks_future.py"}"]'
    grid = '[[grid]]\nvariant = ["block_mean", "full"]\nT = [8, 24]\nrole = ["causal", "bidirectional"]\n'
    made = attnbench.run(write_sweep(tmp_path, grid, head), out=tmp_path / "run")
    frame = made.frame[made.frame["variant"] == "block_mean"]
    hidden = frame["status"] == "nonconformant"
    assert set(frame[hidden]["role"]) >= {"causal"}
    assert frame[hidden][["time_s", "peak_bytes", "flops"]].isna().all(axis=None)
    table = chosen.table(made.frame, rows="variant", columns="T", value="time_s", where='role == "causal"')
    (row,) = (row for row in table.rows if row[0] == "block_mean")
    assert set(row[1:]) == {"nonconformant"}
    page, _ = of_runs([made.path])
    text = page.read_text(encoding="utf-8")
    assert "nonconformant" in text
    assert "outputs before t = " in text

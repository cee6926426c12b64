"""The command line as a person meets it: what it prints, and how it leaves."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer
from commands import attnbench
from run_rows import cell, run_of, timed
from runs import PLUGINS, write_sweep

from attnbench import cli
from attnbench.execute import runner
from attnbench.records import Run, read_records

GRID = '[[grid]]\nvariant = ["full", "fused"]\nT = [8, 12, 16]\nmeasure = ["time", "memory"]\n'


@pytest.mark.parametrize(
    "command",
    [
        *("", "run", "report", "plot", "table", "check", "audit", "crossover", "capacity", "explain", "new"),
        *("theory", "doctor", "variants", "tasks"),
    ],
)
def test_help_shows_an_example(command):
    done = attnbench(*command.split(), "--help")
    assert done.returncode == 0
    assert f"Example: attnbench {command}" in " ".join(done.stdout.split())


def test_variants_and_tasks_are_listed_with_their_sources():
    variants = json.loads(attnbench("variants", "--json").stdout)
    assert {"full", "fused", "window", "linear", "lstm"} <= {row["name"] for row in variants["found"]}
    assert ["distance", "attnbench.tasks.distance:Distance"] in [
        line.split()[:2] for line in attnbench("tasks").stdout.splitlines()
    ]


def test_one_variant_is_shown_with_options_claim_and_roles():
    facts = json.loads(attnbench("variants", "window", "--json").stdout)
    assert facts["options"]["window"].startswith("integer >= 1")
    assert set(facts["claim"]) == {"time", "memory", "sequential", "path"}
    assert facts["roles"]["causal"] is None
    assert facts["roles"]["cross"]


def test_the_version_is_that_of_the_package():
    done = attnbench("--version")
    assert (done.returncode, done.stdout) == (0, f"attnbench {version('attnbench')}\n")


def test_one_task_is_shown_with_options_chance_and_floor():
    facts = json.loads(attnbench("tasks", "distance", "--json").stdout)
    assert facts["options"]["n_slots"] == "integer >= 1 (default 4)"
    assert (facts["chance"], facts["floor"]) == (0.125, 0.125)
    assert facts["min_T"] == 8


def test_broken_plugins_are_listed_with_their_reason_and_harm_no_other(tmp_path):
    (tmp_path / "bad.py").write_text("import no_such_module_at_all\n")
    (tmp_path / "worse.py").write_text("def f(:\n")
    (tmp_path / "exits.py").write_text("import sys; sys.exit(3)\n")
    (tmp_path / "empty.py").write_text("x = 1\n")
    files = ["bad.py", str(PLUGINS / "good.py"), "worse.py", "exits.py", "empty.py"]
    done = attnbench("variants", *[word for file in files for word in ("--plugin", file)], cwd=tmp_path)
    assert done.returncode == 0
    assert "cosine" in done.stdout
    broken = [line for line in done.stdout.splitlines() if line.startswith("broken: ")]
    reasons = ("ModuleNotFoundError", "SyntaxError", "SystemExit", "defines no subclass")
    assert len(broken) == len(reasons)
    for line, reason in zip(broken, reasons, strict=True):
        assert reason in line


def test_sweep_that_does_not_use_a_broken_plugin_runs_and_one_that_does_is_told_why(tmp_path):
    (tmp_path / "bad.py").write_text("import no_such_module_at_all\n")
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = 8\n')
    arguments = ("run", sweep, "--plugin", "bad.py")
    assert attnbench(*arguments, "--out", "run", cwd=tmp_path).returncode == 0
    done = attnbench(*arguments, "--out", "other", "--set", "variant=mine", cwd=tmp_path)
    assert done.returncode == 2
    assert 'unknown variant "mine"' in done.stderr
    assert "ModuleNotFoundError: No module named 'no_such_module_at_all' (bad.py:1)" in done.stderr
    assert not (tmp_path / "other").exists()


def test_plugin_may_not_take_a_name_that_is_taken(tmp_path):
    (tmp_path / "full.py").write_text(
        "import attnbench\nclass Full(attnbench.Attention):\n    def attend(self, q, k, v, *, key_mask): return v\n"
    )
    done = attnbench("variants", "--plugin", "full.py", cwd=tmp_path)
    assert done.returncode == 2
    assert 'two plugins are named "full"' in done.stderr
    assert "full.py" in done.stderr


def test_run_writes_a_report_and_says_where(tmp_path):
    done = attnbench("run", write_sweep(tmp_path, GRID), "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["6 of 6 cells ok", f"report: {tmp_path / 'run' / 'report.html'}"]
    assert "6 cells, 12 visits to make" in done.stderr
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000


def test_report_can_be_made_again_by_itself(tmp_path):
    run = run_of(tmp_path, [cell("a")], [timed("a", 1.0)])
    for _ in range(2):
        assert attnbench("report", run).returncode == 0
        (run / "report.html").unlink()


def test_failures_are_told_when_they_happen_and_give_exit_status_1(tmp_path):
    head = f'plugins = ["{PLUGINS / "disasters.py"}"]\n'
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = ["disasters"]\nT = [80, 64, 96]\n', head)
    done = attnbench("run", sweep, "--out", tmp_path / "run", "--timeout", "20s")
    assert done.returncode == 1
    assert done.stdout.startswith("1 of 3 cells ok; ")
    assert "failed: disasters layer forward T=80" in done.stderr
    assert "oom: disasters layer forward T=96" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Traceback" in attnbench("run", sweep, "--out", tmp_path / "again", "--debug").stderr
    assert attnbench("report", tmp_path / "run").returncode == 0


def test_dry_run_says_what_overrides_did_and_which_points_are_the_same(tmp_path):
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = ["window", "linear"]\nT = [8, 12]\n')
    same = 'variant=["window", { name = "window", window = 64 }]'
    done = attnbench("run", sweep, "--dry-run", "--set", "T=20", "--set", same)
    assert done.returncode == 0, done.stderr
    assert "override: grid[0].T: [8, 12] -> 20" in done.stdout
    assert "note: 1 point has the effective settings of an earlier one" in done.stdout
    assert "1 cell, about" in done.stdout
    assert "1 cells" not in done.stdout


def test_dry_run_has_a_table_for_each_kind_of_cell(tmp_path):
    grids = '[[grid]]\nvariant = ["full", "fused"]\nT = [8, 12]\nphase = ["forward", "decode"]\n'
    done = attnbench("run", write_sweep(tmp_path, grids, 'memory_limit = "1.5GiB"'), "--dry-run")
    assert "4 cells: phase = forward" in done.stdout
    assert "memory_limit = 1536 MiB" in done.stdout
    assert "4 cells: phase = decode" in done.stdout


def test_budget_that_is_spent_says_how_to_go_on(tmp_path):
    sweep = write_sweep(tmp_path, GRID.replace('["time", "memory"]', '"memory"'))  # nothing to narrow
    done = attnbench("run", sweep, "--out", tmp_path / "run", "--budget", "1ms")
    assert done.returncode == 1
    assert "the budget of 1ms is spent, 5 cells pending; the same command with --resume goes on" in done.stdout
    assert attnbench("run", sweep, "--out", tmp_path / "run", "--budget", "10m", "--resume").returncode == 0


def test_times_that_no_quiet_visit_gave_are_told(tmp_path, monkeypatch, capsys):
    made = [timed("a", 1.0, flags=["disturbed: 9% of the sampling stolen"]), timed("b", 1.0, flags=[])]
    run_of(tmp_path, [cell("a"), cell("b", T=128)], made)
    monkeypatch.setattr(runner, "run", lambda *arguments, **more: Run(tmp_path))
    with pytest.raises(typer.Exit):
        cli.run_command(tmp_path / "sweep.toml")
    assert capsys.readouterr().err == "note: 1 of 2 cells without an undisturbed time\n"


def test_dry_run_shows_every_resolved_cell_and_runs_nothing(tmp_path):
    done = attnbench("run", write_sweep(tmp_path, GRID), "--dry-run", "--set", "T=[8,20]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 cells, about" in done.stdout
    assert "; nothing was run" in done.stdout
    for line in ("role = causal", "threads = 1", "dtype = float32", "baseline = fused"):
        assert line in done.stdout
    assert [entry.name for entry in tmp_path.iterdir()] == ["sweep.toml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "missing.toml"], "missing.toml: No such file or directory"),
        (["run", "."], "Is a directory"),
        (["run", "sweep.toml", "--plugin", "missing.py"], "missing.py: no such plugin file"),
        (["run", "sweep.toml", "--set", "T"], "expected KEY=VALUE"),
        (["run", "sweep.toml", "--set", "varaint=full"], 'did you mean "variant"?'),
        (["run", "sweep.toml", "--timeout", "soon"], "expected a duration"),
        (["run", "sweep.toml", "--budget", "0"], "--budget 0: expected a duration"),
        (["run", "sweep.toml", "--resume", "--overwrite"], "exclude each other"),
        (["run", "sweep.toml", "--retry", "failed"], "--retry goes with --resume"),
        (["run", "sweep.toml", "--resume"], "--resume goes with --out"),
        (["run", "sweep.toml", "--dry-run", "--budget", "soon"], "--budget soon: expected a duration"),
        (
            ["run", "sweep.toml", "--set", "phase=decode", "--set", "max_T=16"],
            "T: 17 is beyond max_T = 16 (decode is one",
        ),
        (["run", "sweep.toml", "--out", "x", "--resume", "--retry", "fialed"], 'did you mean "failed"?'),
        (["run", "sweep.toml", "--set", "baseline=lstm"], '"lstm" is not among the variants'),
        (["report", "nowhere"], "nowhere: no run here"),
        (["check", "fussed"], 'did you mean "fused"?'),
        (["check", "missing.py"], "missing.py: no such plugin file"),
        (["check", "mis\nsing.py"], r"mis\u000asing.py: no such plugin file"),
        (["check"], "give a variant's name or a plugin file"),
        (["check", f"{PLUGINS / 'good.py'}:Cosin"], 'did you mean "Cosine"?'),
        (["variants", "windw"], 'did you mean "window"?'),
        (["tasks", "distanse"], 'did you mean "distance"?'),
    ],
)
def test_wrong_request_is_one_clear_line_and_exit_status_2(tmp_path, arguments, message):
    write_sweep(tmp_path, GRID)
    done = attnbench(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert message in lines[0]
    assert [entry.name for entry in tmp_path.iterdir()] == ["sweep.toml"]


@pytest.mark.parametrize(("axis", "levels"), [("n_layers = [1, 2]", "model"), ("d_ff = [0, 16]", "block and model")])
def test_axis_without_effect_at_the_level_is_refused_and_not_folded_into_one_cell(tmp_path, axis, levels):
    sweep = write_sweep(tmp_path, f'[[grid]]\nvariant = "full"\nT = 8\n{axis}\n')
    done = attnbench("run", sweep, "--dry-run")
    assert done.returncode == 2
    assert f"grid[0].{axis.split()[0]}: has no effect at level layer, only at {levels}" in done.stderr


def test_limit_longer_than_a_system_call_can_wait_is_fine(tmp_path):
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = 8\n')
    done = attnbench("run", sweep, "--out", tmp_path / "run", "--timeout", "10000h")
    assert done.returncode == 0, done.stderr


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path):
    sweep = write_sweep(
        tmp_path,
        '[[grid]]\nvariant = ["full", "performr"]\nt = [8]\nT = [0]\ntask = "distanse"\n'
        "[options.window]\nwindw = 64\n[options.full]\nwindow = 3\n",
        'qestion = "?"',
    )
    done = attnbench("run", sweep, "--out", tmp_path / "run")
    assert done.returncode == 2
    for mistake in ("performr", "grid[0].t", "grid[0].T", "windw", "options.full.window", "qestion", "distanse"):
        assert mistake in done.stderr
    assert all(line.startswith(f"error: {sweep}: ") for line in done.stderr.splitlines())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        ("leaks_future", "causal_values"),
        ("wrong_dtype", "dtype"),
        ("leaks_late", "causal_values"),
    ],
)
def test_check_names_the_broken_promise_of_a_faulty_plugin(fault, promise):
    done = attnbench("check", PLUGINS / f"{fault}.py", "--dtype", "float32")
    assert done.returncode == 1
    assert f"{promise}: broken" in done.stdout


def test_check_of_a_builtin_is_green():
    assert attnbench("check", "fused", "--dtype", "bfloat16").returncode == 0


def test_a_certificate_of_a_good_plugin_is_green_and_one_page_with_a_table_and_every_reason_once():
    done = attnbench("check", f"{PLUGINS / 'good.py'}:Cosine")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "certificate of cosine"
    assert "digest " in lines[2]
    assert "float64, float32, bfloat16" in lines[3]
    (row,) = (line for line in lines if "key_mask_honoured" in line)
    assert row.count("kept") == 3
    (reason,) = (line for line in lines if line.endswith(": gives no slow form"))
    assert reason.startswith("– equals_slow_form [causal, bidirectional, cross]")
    assert lines[-1].startswith("cosine keeps its promises (")
    assert len(lines) < 50


def test_a_certificate_as_json_holds_every_result_and_its_dtype():
    done = attnbench("check", PLUGINS / "wrong_dtype.py", "--json", "--dtype", "float32")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["dtypes"] == ["float32"]
    assert found["green"] is False
    broken = {(one["name"], one["dtype"]) for one in found["results"] if one["status"] == "broken"}
    assert ("dtype", "float32") in broken
    assert attnbench("check", "fused", "--dtype", "float8").returncode == 2


def test_what_cannot_run_on_a_device_is_told_and_red_only_where_it_was_asked_for():
    done = attnbench("check", "xformers")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        1,
        "xformers: nothing could be tried: xformers has kernels for CUDA alone, not for cpu",
    )
    done = attnbench("check", "xformers", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["green"]) == (1, False)
    assert told["untried"] == "xformers has kernels for CUDA alone, not for cpu"


def test_disk_that_takes_no_more_is_told_in_one_line_and_loses_nothing(tmp_path):
    sweep, out = write_sweep(tmp_path, GRID), tmp_path / "run"
    command = f'ulimit -f 5; exec "{sys.executable}" -m attnbench run "{sweep}" --out "{out}"'  # 5 KiB a file
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: {out}/records.jsonl: File too large; what was measured is kept"
    assert "Traceback" not in done.stderr
    n_kept = len(read_records(out)[0])
    assert 0 < n_kept < 12
    again = attnbench("run", sweep, "--out", out, "--resume")
    assert again.returncode == 0, again.stderr
    assert len(read_records(out)[0]) == 12

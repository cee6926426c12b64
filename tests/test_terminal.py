"""Terminals that know little, and signals that are to be ignored."""

import io
import os
import signal
import subprocess
import sys

import pytest
from run_rows import cell, run_of, timed
from runs import HEEDING, write_sweep

from attnbench import terminal

GRID = '[[grid]]\nvariant = "none"\nT = 8\nmeasure = ["memory"]\n'
COMMANDS = """
import sys
from attnbench.cli import main
commands = [[]]
for word in sys.argv[1:]:
    commands.append([]) if word == "+" else commands[-1].append(word)
for command in commands:
    sys.argv[1:] = command
    try:
        main()
    except SystemExit as end:
        assert not end.code, (command, end.code)
"""


def called(command, folder, environment):
    asked = {"cwd": folder, "env": os.environ | environment, "timeout": 120}
    return subprocess.run(command, capture_output=True, check=False, **asked)


def attnbench(folder, *arguments, **environment):
    return called([sys.executable, "-m", "attnbench", *arguments], folder, environment)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"PYTHONIOENCODING": "ascii"}, b"error: gr??e ~ 4.toml: "),
        ({"LC_ALL": "C", "PYTHONUTF8": "0"}, rb"error: gr\udcc3\udcb6\udcc3\udc9fe \udce2\udc89\udc88 4.toml: "),
    ],
)
def test_no_character_stops_a_command(tmp_path, environment, told):
    sweep = write_sweep(tmp_path, GRID, "# naïve\n", name="größe ≈ 3.toml")
    run_of(tmp_path / "größe ≈ made", [cell("a"), cell("b", T=128, S=128)], [timed("a", 1e-6), timed("b", 3e-6)])
    commands = (
        ("run", sweep.name, "--out", "größe ≈ run"),
        ("report", "größe ≈ made"),
        ("table", "größe ≈ made", "--rows", "variant", "--columns", "T", "--value", "time_s"),
        ("variants", "--roles"),
        ("variants", "strided"),
        ("run", sweep.name, "--dry-run"),
    )
    words = [word for command in commands for word in ("+", *command)][1:]
    done = called([sys.executable, "-c", COMMANDS, *words], tmp_path, environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    for part in (b"1 of 1 cells ok", b"1.00 us", b"nothing was run"):
        assert part in done.stdout
    assert b"Error" not in done.stderr
    done = attnbench(tmp_path, "run", "größe ≈ 4.toml", **environment)
    assert done.returncode == 2
    assert done.stderr.startswith(told)
    assert done.stderr.isascii()
    assert len(done.stderr.splitlines()) == 1


def test_what_has_a_plain_form_takes_it_and_the_rest_a_question_mark(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", None)
    terminal.speak_plainly()
    print("T ≈ 3 … 5 µs – 三 \udcff", flush=True)
    assert raw.getvalue() == b"T ~ 3 ... 5 us - ? ?\n"


def test_a_signal_that_nohup_ignores_stays_ignored():
    script = "import signal; from attnbench import terminal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    script += "terminal.stop_in_good_order(); print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_measures_nothing_is_stopped_in_one_line_too(tmp_path, number):
    (tmp_path / "slow.py").write_text("import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(60)\n")
    command = [*HEEDING, sys.executable, "-m", "attnbench", "check", "slow.py"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert len(errors.splitlines()) == 1

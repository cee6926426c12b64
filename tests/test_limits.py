"""What is not a visit has limits too: loading plugins and trying promises, bounded by the sweep's timeout."""

import time

import pytest
from commands import attnbench as command
from runs import PLUGINS, write_sweep

import attnbench
from attnbench.errors import RequestError
from attnbench.execute import plan
from attnbench.sweep import timeout_of


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(plan, "SHORTEST_TIMEOUT_S", 2.0)


def test_a_limit_is_the_timeout_within_reason():
    assert plan.bounded(60.0, 30.0) == 30.0
    assert plan.bounded(60.0, 300.0) == 60.0
    assert plan.bounded(60.0, 0.001) == plan.SHORTEST_TIMEOUT_S


@pytest.mark.parametrize(("tables", "timeout_s"), [({}, 300.0), ({"timeout": "5m"}, 300.0), ({"timeout": "x"}, 300.0)])
def test_the_timeout_of_a_file_is_known_before_the_file_is_valid(tables, timeout_s):
    assert timeout_of(tables) == timeout_s
    assert timeout_of(tables | {"timeout": "7s", "grid": 3}) == 7.0


def test_a_plugin_that_never_ends_its_import_is_named_with_the_limit(tmp_path, short):
    (tmp_path / "loop.py").write_text("while True: pass\n")
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "mine"\nT = 8\n', 'timeout = "1s"\nplugins = ["loop.py"]')
    with pytest.raises(RequestError, match=r"ran past its limit of 2 s while importing loop\.py"):
        attnbench.run(sweep, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_check_that_never_ends_is_told_with_its_file_and_limit(tmp_path, short):
    head = f'plugins = ["{PLUGINS / "hangs.py"}"]'
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = "endless"\nT = 8\n', head)
    row = attnbench.run(sweep, out=tmp_path / "run", timeout_s=2.0).frame.iloc[0]
    assert row["status"] == "timeout"
    limit = "ran past its limit of 2 s while trying the promises of endless (hangs.py)"
    assert row["reason"] == f"in its conformance check: {limit}"


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        ("while True: pass\n", 2, "error: ran past its limit of 1 s while importing mine.py"),
        ("", 1, "endless: timeout: ran past its limit of 1 s while trying the promises of endless"),
    ],
)
def test_check_takes_a_limit_of_its_own(tmp_path, text, status, told):
    (tmp_path / "mine.py").write_text(text or (PLUGINS / "hangs.py").read_text())
    begun = time.monotonic()
    done = command("check", "mine.py", "--timeout", "1s", cwd=tmp_path)
    assert time.monotonic() - begun < 60  # the limits before were 120 s and 600 s
    assert done.returncode == status
    assert told in (done.stdout + done.stderr).splitlines()

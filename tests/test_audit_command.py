"""Requests for an audit that cannot be, as a person meets them."""

import pytest
from commands import attnbench
from runs import PLUGINS

CHEATS = PLUGINS / "cheats.py"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give a variant's name or a plugin file, or --all"),
        (("full", "--all"), "give a variant's name or a plugin file, or --all"),
        (("ful",), 'unknown variant "ful"; did you mean "full"?'),
        ((f"{CHEATS}:SayLinear",), 'has no mixer SayLinear; did you mean "SaysLinear"?'),
        ((f"{CHEATS}:Unreadable",), 'unreadable: claim time="T d^2 + widnow T d": unknown letter "widnow"'),
        (("no_such_file.py",), "no_such_file.py: no such plugin file"),
    ],
)
def test_an_audit_that_cannot_be_is_refused_in_one_line_before_anything_runs(arguments, told):
    done = attnbench("audit", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert told in done.stderr


def test_a_plugin_that_does_not_load_is_a_wrong_request(tmp_path):
    (tmp_path / "bad.py").write_text("import no_such_module_at_all\n")
    done = attnbench("audit", tmp_path / "bad.py")
    assert done.returncode == 2
    assert "ModuleNotFoundError: No module named 'no_such_module_at_all' (bad.py:1)" in done.stderr


def test_among_all_a_plugin_that_does_not_load_is_told_before_anything_runs(tmp_path):
    (tmp_path / "bad.py").write_text("import no_such_module_at_all\n")
    for command in ("audit", "check"):
        done = attnbench(command, "--all", "--plugin", tmp_path / "bad.py")
        assert (done.returncode, done.stdout) == (2, "")
        assert "No module named 'no_such_module_at_all'" in done.stderr


def test_a_file_without_a_variant_is_told(tmp_path):
    (tmp_path / "empty.py").write_text("")
    done = attnbench("audit", tmp_path / "empty.py")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "empty.py" in done.stderr
    assert attnbench("audit", f"{tmp_path / 'empty.py'}:").stderr == done.stderr


def test_an_audit_goes_into_no_folder_that_holds_one(tmp_path):
    (tmp_path / "full").mkdir()
    done = attnbench("audit", "full", "--out", tmp_path)
    assert done.returncode == 2
    assert "holds a run already" in done.stderr

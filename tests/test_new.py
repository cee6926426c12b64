"""What `attnbench new` writes works at once, and harms nothing that is there."""

import subprocess
import sys
import tomllib

import pytest

import attnbench
from attnbench import cli, new, registry
from attnbench.errors import RequestError


def checked(file):
    (source,) = registry.file_sources(file)
    results = attnbench.check_variant(registry.load(source), roles=["causal"]).results
    assert ("equals_slow_form", "kept") in {(result.name, result.status) for result in results}
    return source.name


@pytest.mark.parametrize("name", ["block_mean", "MyIdea", "a_1", "_x2_"])
def test_the_plugin_is_offered_under_its_name_and_keeps_every_promise(name, tmp_path):
    plugin, _ = new.write(name, tmp_path)
    assert plugin == tmp_path / f"{name}.py"
    assert checked(plugin) == name


def test_what_is_written_is_formatted_and_sorted(tmp_path):
    pytest.importorskip("ruff")
    for name in ("block_mean", "MyIdea"):
        new.write(name, tmp_path)
    for words in (["check", "--select", "E,F,I,UP,B"], ["format", "--check"]):
        asked = [sys.executable, "-m", "ruff", *words, "--isolated", "--line-length", "120", "."]
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def test_its_own_test_passes_and_fails_when_the_mechanism_is_changed(tmp_path, monkeypatch):
    plugin, test = new.write("block_mean", tmp_path)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in conftest.py
    assert subprocess.run(words, capture_output=True, check=False, cwd=tmp_path).returncode == 0
    plugin.write_text(plugin.read_text().replace("self.d_k**0.5", "self.d_k", 1))  # in attend
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "equals_slow_form: broken" in done.stdout


def test_a_package_names_its_entry_point_its_module_and_its_dependency(tmp_path):
    files = new.write("block_mean", tmp_path / "deep" / "er", package=True)
    assert [file.name for file in files] == ["block_mean.py", "test_block_mean.py", "pyproject.toml"]
    settings = tomllib.loads(files[2].read_text())
    assert settings["project"]["name"] == "attnbench-block-mean"
    assert settings["project"]["dependencies"] == ["attnbench"]
    assert settings["project"]["entry-points"][registry.VARIANTS] == {"block_mean": "block_mean:BlockMean"}
    assert settings["tool"]["setuptools"]["py-modules"] == ["block_mean"]


@pytest.mark.parametrize("name", ["block-mean", "class", "9x", "_", "", "a b", "../x", "Häuser", "None", "a.py"])
def test_a_name_that_python_cannot_use_is_refused(name, tmp_path):
    with pytest.raises(RequestError, match="not a name in Python"):
        new.write(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["full", "torch", "json", "attnbench", "attention"])
def test_a_name_that_is_taken_is_refused(name, tmp_path):
    with pytest.raises(RequestError, match="taken"):
        new.write(name, tmp_path, package=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["block_mean.py", "test_block_mean.py", "pyproject.toml"])
def test_no_file_is_overwritten_and_none_is_written_beside_it(there, tmp_path):
    (tmp_path / there).write_text("mine")
    with pytest.raises(RequestError, match=f"{there}: is there already"):
        new.write("block_mean", tmp_path, package=True)
    assert [file.name for file in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"


def test_the_command_says_what_it_wrote_and_what_comes_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["attnbench", "new", "block_mean", "--package"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:3] == [
        f"wrote block_mean/{file}" for file in ("block_mean.py", "test_block_mean.py", "pyproject.toml")
    ]
    assert printed[3] == "next: attnbench check block_mean/block_mean.py"
    assert (tmp_path / "block_mean" / "pyproject.toml").is_file()

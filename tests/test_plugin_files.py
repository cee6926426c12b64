"""Plugin files of a run: found where a sweep says, kept beside the records, and found there again."""

import json
import shutil
from pathlib import Path

import pytest
from runs import PLUGINS, write_sweep

import attnbench
from attnbench import plugin_files
from attnbench.errors import RequestError
from attnbench.records import Run, read_records

GRID = '[[grid]]\nvariant = "nothing"\nT = [1, 2]\n'


def write(folder, name, text=""):
    path = Path(folder) / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text or (PLUGINS / "quick.py").read_text())
    return path


def named(*names):
    return {"plugins": list(names)}


def test_one_file_is_not_split_into_letters():
    assert plugin_files.listed("x.py") == plugin_files.listed(Path("x.py")) == [Path("x.py")]
    assert plugin_files.listed(["x.py", Path("y.py")]) == [Path("x.py"), Path("y.py")]


def test_files_of_one_name_are_kept_apart_and_one_file_named_twice_is_one(tmp_path):
    first, second = write(tmp_path, "a/mine.py"), write(tmp_path, "b/mine.py")
    found = plugin_files.find(named("a/mine.py", "b/mine.py", "a/../a/mine.py"), tmp_path / "s.toml", [first])
    assert found == {"mine.py": first, "mine-2.py": second}


def test_a_path_that_leads_nowhere_is_found_among_the_copies_beside_the_sweep(tmp_path):
    kept = [write(tmp_path, f"plugins/{name}") for name in ("mine.py", "mine-2.py", "more.py")]
    assert plugin_files.find({"plugins": "gone/more.py"}, tmp_path / "s.toml", []) == {"more.py": kept[2]}
    found = plugin_files.find(named("../gone/mine.py", "/nowhere/mine.py"), tmp_path / "s.toml", [Path("more.py")])
    assert list(found.values()) == kept


def test_what_is_beside_the_sweep_comes_before_a_copy(tmp_path):
    here = write(tmp_path, "mine.py")
    write(tmp_path, "plugins/mine.py")
    assert plugin_files.find(named("mine.py"), tmp_path / "s.toml", []) == {"mine.py": here}


def test_every_file_that_is_nowhere_is_told(tmp_path):
    with pytest.raises(RequestError) as caught:
        plugin_files.find(named("a.py"), tmp_path / "s.toml", [Path("b.py")])
    assert caught.value.mistakes == [f"{tmp_path / 'a.py'}: no such plugin file", "b.py: no such plugin file"]


def test_a_run_is_repeated_from_its_folder_alone(tmp_path):
    write(tmp_path, "home/quick.py")
    sweep = write_sweep(tmp_path / "home", GRID, 'plugins = ["quick.py"]')
    first = attnbench.run(sweep, out=tmp_path / "run")
    shutil.rmtree(tmp_path / "home")
    again = attnbench.run(tmp_path / "run" / "sweep.toml", out=tmp_path / "again")
    assert again.counts == {"ok": 2}
    assert list(again.frame["cell"]) == list(first.frame["cell"])
    assert (again.path / "plugins" / "quick.py").read_text() == (PLUGINS / "quick.py").read_text()
    assert Run(again.path).environment["plugins"] == ["quick.py"]


def test_a_plugin_of_the_command_line_is_kept_and_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = write(tmp_path, "mine.py")
    made = attnbench.run(write_sweep(tmp_path, GRID), out=tmp_path / "run", plugins=mine)
    mine.unlink()
    again = attnbench.run(made.path / "sweep.toml", out=tmp_path / "again", plugins="mine.py")
    assert again.counts == {"ok": 2}


def test_a_run_goes_on_and_begins_again_in_its_own_folder(tmp_path):
    sweep = write_sweep(tmp_path, GRID, f'plugins = ["{write(tmp_path, "quick.py")}"]')
    run = attnbench.run(sweep, out=tmp_path / "run").path
    (tmp_path / "quick.py").unlink()
    (run / "plugins" / "notes.txt").write_text("mine")
    assert attnbench.run(run / "sweep.toml", out=run, resume=True).counts == {"ok": 2}
    assert len(read_records(run)[0]) == 2
    assert attnbench.run(run / "sweep.toml", out=run, overwrite=True).counts == {"ok": 2}
    assert len(read_records(run)[0]) == 2
    attnbench.run(write_sweep(tmp_path, '[[grid]]\nvariant = "full"\nT = 1\n', name="b.toml"), out=run, overwrite=True)
    assert [file.name for file in (run / "plugins").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("environment", ["", '{"plugins": ["../sweep.toml", 3]}'])
def test_somebodys_plugins_are_no_copies_and_their_folder_is_refused(tmp_path, environment):
    mine = write(tmp_path, "home/plugins/quick.py")
    sweep = write_sweep(tmp_path / "home", GRID, 'plugins = ["plugins/quick.py"]')
    (tmp_path / "home" / "environment.json").write_text(environment)
    with pytest.raises(RequestError, match="holds no run"):
        attnbench.run(sweep, out=tmp_path / "home", overwrite=True)
    assert mine.exists()


def test_copies_of_a_run_that_was_killed_as_it_began_are_no_obstacle(tmp_path):
    write(tmp_path, "run/plugins/quick.py", "half")
    (tmp_path / "run" / "environment.json").write_text(json.dumps({"plugins": ["quick.py"]}))
    sweep = write_sweep(tmp_path, GRID, f'plugins = ["{PLUGINS / "quick.py"}"]')
    assert attnbench.run(sweep, out=tmp_path / "run").counts == {"ok": 2}


def test_the_copy_of_the_sweep_is_verbatim(tmp_path):
    sweep = tmp_path / "sweep.toml"
    text = b"\xef\xbb\xbf# caf\xc3\xa9\r\n"
    text += b'[[grid]]\r\nvariant = "full"\r\nT = 1\r\nd_model = 8\r\n[timing]\r\nmax_s = 0.001\r\n'
    sweep.write_bytes(text)
    run = attnbench.run(sweep, out=tmp_path / "run").path
    assert (run / "sweep.toml").read_bytes() == text
    attnbench.run(sweep, out=run, resume=True, overrides=["T=[1, 2]"])

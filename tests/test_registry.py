import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from attnbench import Mixer, registry
from attnbench.errors import RequestError
from attnbench.execute.describe import catalogue, sources_with
from attnbench.registry import PluginError, Source
from attnbench.sweep import validate, wanted_tasks, wanted_variants

GOOD = "from attnbench import Mixer\n\n\nclass BlockMean(Mixer):\n    pass\n"
MINE = GOOD.replace("    pass", '    name = "mine"')
BROKEN = {  # plugin file -> what is told of it
    "import nosuchthing\n": "ModuleNotFoundError: No module named 'nosuchthing' (bad.py:1)",
    "x = 1\ndef f(:\n": "SyntaxError: invalid syntax (bad.py:2)",
    "if 1:\n\tx = 1\n        y = 2\n": "TabError: inconsistent use of tabs and spaces in indentation (bad.py:3)",
    "\n\nraise ValueError('one\\ntwo')\n": "ValueError: one two (bad.py:3)",
    "import sys\nsys.exit('bye')\n": "SystemExit: bye (bad.py:2)",
    "import sys\nsys.exit()\n": "SystemExit (bad.py:2)",
    "import json\njson.loads('{')\n": "JSONDecodeError: Expecting property name enclosed in double quotes: "
    "line 1 column 2 (char 1) (bad.py:2)",
    "x = 1\n": "defines no subclass of attnbench.Mixer or attnbench.tasks.Task",
    "from attnbench import Attention, Mixer\n": "defines no subclass of attnbench.Mixer or attnbench.tasks.Task",
}


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / name
    path.write_text(text)
    return path


def install(folder: Path, package: str, **points: str) -> None:
    """A package as pip leaves it, with entry points of variants."""
    info = folder / f"{package}-1.0.dist-info"
    write(info, "METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in points.items()]
    write(info, "entry_points.txt", "\n".join([f"[{registry.VARIANTS}]", *lines]) + "\n")


def told(file: Path) -> str:
    with pytest.raises(PluginError) as caught:
        registry.file_sources(file)
    (line,) = caught.value.mistakes
    return line


# Names and files


@pytest.mark.parametrize(
    ("class_name", "name"),
    [
        ("BlockMean", "block_mean"),
        ("GRU", "gru"),
        ("GLANorm", "gla_norm"),
        ("HTTPServer", "http_server"),
        ("LSTM", "lstm"),
    ],
)
def test_a_class_is_offered_under_its_name_in_snake_case(class_name, name):
    assert registry.variant_name(type(class_name, (), {})) == name


def test_a_class_may_name_itself_and_its_subclasses_do_not_inherit_that():
    named = type("BlockMean", (), {"name": "mine"})
    assert registry.variant_name(named) == "mine"
    assert registry.variant_name(type("Other", (named,), {})) == "other"
    assert registry.variant_name(type("Other", (), {"name": property(str)})) == "other"


@pytest.mark.parametrize("given", ['""', '"a/b"', '"window+linear"', "3", '"two words"', '"line\\n"', '"-x"', "[]"])
def test_a_name_that_no_sweep_could_use_is_refused_in_one_line(tmp_path, given):
    path = write(tmp_path, "mine.py", MINE.replace('"mine"', given))
    assert told(path) == f'plugin {path}: BlockMean.name: expected a word like "block_mean", got {eval(given)!r}'


def test_an_entry_point_that_is_called_like_a_stack_is_refused_in_one_line(tmp_path, monkeypatch):
    install(tmp_path, "fakepack", **{"window+linear": "fakepack:Mine"})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RequestError) as caught:
        registry.installed(registry.VARIANTS)
    assert caught.value.mistakes == ['fakepack 1.0: entry point "window+linear": expected a word like "block_mean"']


def test_a_file_offers_the_mixers_that_it_defines_itself(tmp_path):
    text = """
from attnbench import Attention, Mixer

class Base(Mixer): pass
class _Hidden(Mixer): pass
class NotAMixer: pass
class Second(Base): name = "2nd"
Alias = Base

def made():
    class Inner(Mixer): pass
    return Inner

Local = made()
"""
    path = write(tmp_path, "many.py", text)
    assert registry.file_sources(path) == [
        Source("base", f"{path}:Base", str(path)),
        Source("2nd", f"{path}:Second", str(path)),
        Source("inner", f"{path}:Local", str(path)),
    ]
    assert all(issubclass(registry.load(source), Mixer) for source in registry.file_sources(path))


def test_a_file_is_run_once_however_it_is_named(tmp_path, monkeypatch):
    path = write(tmp_path, "good.py", GOOD)
    (tmp_path / "link.py").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    assert registry.load_file(path) is registry.load_file(Path("good.py")) is registry.load_file(tmp_path / "link.py")


def test_files_of_one_stem_do_not_meet(tmp_path):
    first = write(tmp_path / "a", "plugin.py", GOOD + "whose = 1\n")
    second = write(tmp_path / "b", "plugin.py", GOOD + "whose = 2\n")
    assert (registry.load_file(first).whose, registry.load_file(second).whose) == (1, 2)


def test_a_plugin_named_like_a_module_of_python_hides_it_from_nobody(tmp_path):
    before = sys.modules["random"]
    path = write(tmp_path, "random.py", "import random\n" + GOOD + "standard = random\n")
    assert registry.load_file(path).standard is before
    assert sys.modules["random"] is before
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize("text", BROKEN)
def test_a_file_that_does_not_load_is_told_in_one_line_with_its_error_and_place(tmp_path, text):
    path = write(tmp_path, "bad.py", text)
    assert told(path) == f"plugin {path}: {BROKEN[text]}"


def test_a_broken_file_leaves_no_half_loaded_module_and_its_error_is_the_cause(tmp_path):
    path = write(tmp_path, "bad.py", "raise ValueError('no')\n")
    before = set(sys.modules)
    with pytest.raises(PluginError) as caught:
        registry.load_file(path)
    assert isinstance(caught.value.__cause__, ValueError)
    assert set(sys.modules) == before
    path.write_text(GOOD)
    assert registry.file_sources(path)[0].name == "block_mean"


def test_what_is_no_file_of_python_is_told(tmp_path):
    assert told(tmp_path / "gone.py") == f"plugin {tmp_path / 'gone.py'}: no such file"
    assert told(tmp_path) == f"plugin {tmp_path}: no such file"
    assert told(write(tmp_path, "notes.txt", GOOD)) == f"plugin {tmp_path / 'notes.txt'}: not a Python file"


def test_an_interrupt_while_a_plugin_loads_is_an_interrupt(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        registry.load_file(write(tmp_path, "bad.py", "raise KeyboardInterrupt\n"))


# Installed packages


def test_what_is_installed_is_listed_by_name_and_nothing_of_it_is_imported(tmp_path, monkeypatch):
    install(tmp_path, "fakepack", mine="fakepack_absent:Mine", another="fakepack_absent:Another")
    monkeypatch.syspath_prepend(tmp_path)
    found = registry.installed(registry.VARIANTS)
    assert found["mine"] == Source("mine", "fakepack_absent:Mine", "fakepack 1.0")
    assert {"full", "fused", "window", "linear", "lstm", "another"} <= found.keys()
    assert list(found) == sorted(found)
    assert "fakepack_absent" not in sys.modules


def test_an_installed_class_is_loaded(tmp_path, monkeypatch):
    write(tmp_path, "fakepack_good.py", GOOD)
    monkeypatch.syspath_prepend(tmp_path)
    cls = registry.load(Source("mine", "fakepack_good:BlockMean", "fakepack 1.0"))
    assert cls.__module__ == "fakepack_good"
    del sys.modules["fakepack_good"]


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("fakepack_absent:Mine", "ModuleNotFoundError: No module named 'fakepack_absent'"),
        ("fakepack_raises:Mine", "RuntimeError: no driver (fakepack_raises.py:2)"),
        ("fakepack_exits:Mine", "SystemExit: 3 (fakepack_exits.py:2)"),
        ("json:Mine", "json has no class Mine"),
        ("json:dumps", "json has no class dumps"),
        ("json", "ValueError: Empty module name"),
    ],
)
def test_an_installed_class_that_cannot_be_had_is_told_with_its_package(tmp_path, monkeypatch, target, reason):
    write(tmp_path, "fakepack_raises.py", "\nraise RuntimeError('no driver')\n")
    write(tmp_path, "fakepack_exits.py", "import sys\nsys.exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError) as caught:
        registry.load(Source("mine", target, "fakepack 1.0"))
    assert caught.value.mistakes == [f"plugin fakepack 1.0: {reason}"]


def test_two_packages_with_one_name_are_both_named(tmp_path, monkeypatch):
    install(tmp_path, "onepack", mine="onepack:Mine")
    install(tmp_path, "twopack", mine="twopack:Other")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RequestError) as caught:
        registry.installed(registry.VARIANTS)
    assert caught.value.mistakes == ['two plugins are named "mine": onepack 1.0 (Mine) and twopack 1.0 (Other)']


def test_a_package_cannot_replace_a_built_in_without_a_word(tmp_path, monkeypatch):
    install(tmp_path, "rogue", full="rogue:Full")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RequestError, match=r'two plugins are named "full": attnbench .* and rogue 1\.0'):
        registry.installed(registry.VARIANTS)


def test_one_class_offered_twice_is_no_clash():
    first = Source("mine", "m:Mine", "onepack 1.0")
    found = {"mine": first}
    registry.add(found, Source("mine", "m:Mine", "twopack 1.0"))
    assert found == {"mine": first}


def test_an_unknown_name_is_told_with_the_nearest_one():
    known = {"window": Source("window", "m:W", "p 1")}
    assert registry.find("window", known) == known["window"]
    with pytest.raises(RequestError, match='unknown variant "windw"; did you mean "window"'):
        registry.find("windw", known)
    with pytest.raises(RequestError, match="unknown task"):
        registry.find("distanse", {}, "task")


# Several plugins at once


def test_broken_plugins_hide_no_good_one_and_are_each_told(tmp_path):
    texts = ["import nosuchthing\n", GOOD, "def f(:\n", "import sys\nsys.exit()\n", "x = 1\n", MINE]
    files = [str(write(tmp_path, f"plugin_{i}.py", text)) for i, text in enumerate(texts)]
    found, broken, clashes = sources_with(files)
    assert {"block_mean", "mine", "full"} <= found.keys()
    assert [line.partition(": ")[0] for line in broken] == [f"plugin {files[i]}" for i in (0, 2, 3, 4)]
    assert clashes == []


def test_the_same_file_twice_is_no_error(tmp_path, monkeypatch):
    path = write(tmp_path, "good.py", GOOD)
    monkeypatch.chdir(tmp_path)
    assert sources_with([str(path), "good.py", f"{tmp_path}/../{tmp_path.name}/good.py"])[1:] == ([], [])


def test_one_name_claimed_twice_is_told_with_both_places(tmp_path, monkeypatch):
    first, second = write(tmp_path, "a.py", MINE), write(tmp_path, "b.py", MINE)
    assert sources_with([str(first), str(second)])[2] == [
        f'two plugins are named "mine": {first} (BlockMean) and {second} (BlockMean)'
    ]
    full = write(tmp_path, "full.py", MINE.replace("mine", "full"))
    (clash,) = sources_with([str(full)])[2]
    assert clash.startswith('two plugins are named "full": attnbench ')
    assert clash.endswith(f"and {full} (BlockMean)")
    twice = write(tmp_path, "twice.py", MINE + MINE.replace("BlockMean", "Other"))
    assert sources_with([str(twice)])[2] == [f'two plugins are named "mine": {twice} (BlockMean) and {twice} (Other)']
    install(tmp_path, "onepack", mine="onepack:Mine")
    monkeypatch.syspath_prepend(tmp_path)
    assert sources_with([str(first)])[2] == [
        f'two plugins are named "mine": onepack 1.0 (Mine) and {first} (BlockMean)'
    ]


def sweep_of(variant: str, files: list[Path]):
    tables = tomllib.loads(f'[[grid]]\nvariant = "{variant}"\nT = 8\nd_model = 8\n')
    described = catalogue(wanted_variants(tables), wanted_tasks(tables), [str(file) for file in files])
    return validate(tables, "s.toml", described)


def test_a_broken_plugin_stops_only_the_sweep_that_names_it(tmp_path):
    good, bad = write(tmp_path, "good.py", GOOD), write(tmp_path, "bad.py", "raise ValueError('no')\n")
    assert sweep_of("block_mean", [bad, good])
    with pytest.raises(RequestError) as caught:
        sweep_of("bad", [bad, good])
    assert caught.value.mistakes[0] == f"plugin {bad}: ValueError: no (bad.py:1)"
    assert caught.value.mistakes[1].startswith('s.toml: grid[0].variant: unknown variant "bad"')


def test_an_installed_plugin_that_does_not_load_stops_only_the_sweep_that_names_it(tmp_path, monkeypatch):
    install(tmp_path, "fakepack", mine="fakepack_absent:Mine", dict="builtins:dict")
    monkeypatch.syspath_prepend(tmp_path)
    assert sweep_of("full", [])
    with pytest.raises(RequestError) as caught:
        sweep_of("mine", [])
    assert caught.value.mistakes == [
        's.toml: grid[0].variant: "mine" cannot be used: plugin fakepack 1.0: '
        "ModuleNotFoundError: No module named 'fakepack_absent'"
    ]
    with pytest.raises(RequestError, match='"dict" cannot be used: dict is no subclass'):
        sweep_of("dict", [])


def test_a_clash_stops_every_sweep(tmp_path):
    files = [write(tmp_path, "a.py", MINE), write(tmp_path, "b.py", MINE)]
    with pytest.raises(RequestError, match='two plugins are named "mine"'):
        sweep_of("full", files)


def test_a_plugin_that_kills_its_process_is_never_loaded_by_a_listing(tmp_path):
    install(tmp_path, "deadly", mine="deadly_module:Mine")
    write(tmp_path, "deadly_module.py", "import os\nos._exit(7)\n")
    script = "from attnbench import registry; print(registry.installed(registry.VARIANTS)['mine'].target)"
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "deadly_module:Mine\n"


@pytest.mark.parametrize(
    ("error", "text"),
    [(ValueError("a\n\n b"), "ValueError: a b"), (KeyError("x"), "KeyError: 'x'"), (MemoryError(), "MemoryError")],
)
def test_an_error_without_a_place_is_described_by_itself(error, text):
    assert registry.describe_error(error) == text


def test_an_error_is_described_with_the_innermost_place():
    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        fail()
    line = fail.__code__.co_firstlineno + 1
    assert registry.describe_error(caught.value) == f"ValueError: no (test_registry.py:{line})"


def test_loading_a_plugin_leaves_nothing_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "mine.py").write_text("value = 3\n")
    assert registry.load_file(tmp_path / "mine.py").value == 3
    assert [file.name for file in tmp_path.iterdir()] == ["mine.py"]

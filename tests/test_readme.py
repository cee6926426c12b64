"""What the README shows works as it stands there."""

import re
import tomllib
from pathlib import Path

import attnbench
from attnbench import registry
from attnbench.execute import describe
from attnbench.sweep import validate, wanted_tasks, wanted_variants

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def block(language, containing):
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = (text for text in blocks if containing in text)
    return found


def test_the_plugin_keeps_every_promise(tmp_path):
    (tmp_path / "cosine.py").write_text(block("python", "class Cosine"))
    (source,) = registry.file_sources(tmp_path / "cosine.py")
    assert source.name == "cosine"
    attnbench.check_variant(registry.load(source))


def test_the_sweep_is_valid():
    tables = tomllib.loads(block("toml", "question"))
    validate(tables, "README.md", describe.catalogue(wanted_variants(tables), wanted_tasks(tables), []))


def test_every_file_it_points_to_is_there():
    root = Path(__file__).parent.parent
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (root / target).exists(), target


def test_the_built_in_variants_are_all_in_its_table():
    rows = re.findall(r"^\| (`[\w`, ]+`) \|", README, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == set(registry.installed(registry.VARIANTS))

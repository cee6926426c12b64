"""What docs/plugins.md shows works as it stands there, and every page points to what is there."""

import re
import tomllib
from pathlib import Path

import pytest

import attnbench
from attnbench import new, registry
from attnbench.execute import describe
from attnbench.sweep import validate, wanted_tasks, wanted_variants

DOCS = Path(__file__).parent.parent / "docs"
TEXT = (DOCS / "plugins.md").read_text(encoding="utf-8")


def block(language, containing):
    (found,) = (text for text in re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL) if containing in text)
    return found


@pytest.mark.parametrize("name", ["Tempered", "RunningMean"])
def test_every_whole_plugin_keeps_its_promises(tmp_path, name):
    (tmp_path / "mine.py").write_text(block("python", f"class {name}("))
    (source,) = registry.file_sources(tmp_path / "mine.py")
    attnbench.check_variant(registry.load(source), roles=["causal"])


def test_the_lines_that_are_to_be_changed_make_a_variant_that_equals_its_slow_form(tmp_path):
    plugin, _ = new.write("cosine_of_the_docs", tmp_path)
    for start, containing in (("scores = ", "# in attend"), ("weights = (q", "# in slow_attend")):
        lines = plugin.read_text().splitlines()
        (at,) = (i for i, line in enumerate(lines) if line.strip().startswith(start))
        indent = lines[at][: -len(lines[at].lstrip())]
        lines[at : at + 1] = [indent + line for line in block("python", containing).splitlines()[1:]]
        plugin.write_text("\n".join(lines))
    plugin.write_text(plugin.read_text().replace("from torch import Tensor", "from torch import Tensor, nn"))
    (source,) = registry.file_sources(plugin)
    results = attnbench.check_variant(registry.load(source), roles=["causal"]).results
    assert ("equals_slow_form", "kept") in {(result.name, result.status) for result in results}


def test_the_sweep_is_valid(tmp_path):
    (tmp_path / "cosine.py").write_text(block("python", "class Tempered(").replace("Tempered", "Cosine"))
    tables = tomllib.loads(block("toml", "question"))
    described = describe.catalogue(wanted_variants(tables), wanted_tasks(tables), [str(tmp_path / "cosine.py")])
    validate(tables, "docs/plugins.md", described)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_every_file_that_a_page_points_to_is_there(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (DOCS / target).exists(), target

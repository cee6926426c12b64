"""What may import what: read from the sources, and tried in fresh interpreters in which torch cannot be imported."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from run_rows import cell, run_of, timed

ROOT = Path(__file__).parent.parent
CORE = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "attnbench").rglob("*.py"))
}
VARIANTS = sorted((ROOT / "variants").glob("*.py"))
HEAVY = ("torch", "pandas", "scipy", "matplotlib", "numpy", "triton", "xformers", "ray")
TORCH_FREE = [
    name
    for name in CORE
    if name.removeprefix("attnbench.").partition(".")[0]
    in {
        "analyse",
        "api",
        "audit_command",
        "capacity_search",
        "cells",
        "certificate",
        "certificate_page",
        "check_command",
        "claims",
        "cli",
        "commands",
        "crossover_search",
        "errors",
        "explained",
        "intervals",
        "new",
        "options",
        "progress",
        "records",
        "registry",
        "report",
        "settings",
    }
    | {"statistics", "sweep", "sweep_file", "targets", "tasks_command", "visits", "wording"}
    or name in tuple(f"attnbench.execute.{part}" for part in ("doctor", "local", "orders", "runner"))
    or name == "attnbench.measure.quiet"
]


def imported(path: Path, *, whole: bool = True) -> Iterator[str]:
    """Every module, and every name of a module, that a file imports; `whole`: inside functions too."""
    tree = _parsed(path)
    nodes = ast.walk(tree) if whole else _at_import(tree.body)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports are not used here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _at_import(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The statements that run when a module is imported, outside functions and TYPE_CHECKING."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for inner in ("body", "orelse", "handlers", "finalbody"):
            yield from _at_import(getattr(node, inner, []))


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


# Read from the sources


def test_the_reader_of_imports_sees_them(tmp_path):
    source = "import a.b\nfrom c import d\nif TYPE_CHECKING:\n    import e\ntry:\n    import f\nexcept ImportError:\n"
    source += "    import g\ndef h():\n    import i\nclass J:\n    import k\n"
    path = tmp_path / "m.py"
    path.write_text(source)
    assert sorted(imported(path, whole=False)) == ["a.b", "c.d", "f", "g", "k"]
    assert sorted(imported(path)) == ["a.b", "c.d", "e", "f", "g", "i", "k"]


ONLY = {  # of ours, these import nothing but
    "attnbench.errors": (),
    "attnbench.intervals": ("attnbench.statistics",),
    "attnbench.settings": (),
    "attnbench.statistics": (),
    "attnbench.wording": ("attnbench.errors", "attnbench.settings"),
    "attnbench.mixer": ("attnbench.settings",),
    "attnbench.kernels": ("attnbench.kernels", "attnbench.mixer"),
    "attnbench.positions": ("attnbench.mixer", "attnbench.settings"),
    "attnbench.transformer": ("attnbench.mixer", "attnbench.kernels", "attnbench.positions", "attnbench.settings"),
}
# These alone import matplotlib.
DRAWS = tuple(f"attnbench.report.{name}" for name in ("plots", "curves", "fit_plot", "overview", "panels", "planes"))
NEVER = {  # these import none of
    "attnbench.sweep": ("cells", "records", "analyse", "report", "execute", "train", "transformer", "measure"),
    "attnbench.cells": ("records", "analyse", "report", "execute", "train", "transformer", "measure"),
    "attnbench.visits": ("cells", "records", "analyse", "report", "execute", "train", "transformer", "measure"),
    "attnbench.records": ("analyse", "report", "execute", "train", "transformer", "measure"),
    "attnbench.analyse": ("report", "execute", "train", "transformer", "measure"),
    "attnbench.report": ("execute", "train", "transformer", "measure"),
    "attnbench.train": ("execute", "analyse", "report", "records", "sweep", "cells", "measure"),
    "attnbench.tasks": ("execute", "analyse", "report", "records", "sweep", "cells", "measure", "train"),
    "attnbench.measure": ("execute", "analyse", "report", "records", "sweep", "cells", "train"),
    "attnbench.execute": ("analyse", "report"),
}


@pytest.mark.parametrize("name", CORE)
def test_imports_of_the_core_point_one_way(name):
    ours = {module for module in imported(CORE[name]) if within(module, ("attnbench",))}
    for home, allowed in ONLY.items():
        if within(name, (home,)):
            assert {module for module in ours if not within(module, allowed)} == set()
    for home, banned in NEVER.items():
        if within(name, (home,)):
            assert {module for module in ours if within(module, tuple(f"attnbench.{part}" for part in banned))} == set()
    if name not in (
        "attnbench.cli",
        "attnbench.__main__",
        "attnbench.dry_run",
        "attnbench.audit_command",
        "attnbench.claims.command",
        "attnbench.questions",
    ):
        assert {module for module in ours if within(module, ("attnbench.cli", "attnbench.progress"))} == set()


@pytest.mark.parametrize("path", [*CORE.values(), *VARIANTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_imports_variants_and_only_plots_draws(path):
    assert [name for name in imported(path) if within(name, ("variants", "attnbench_variants"))] == []
    if path not in [CORE[name] for name in DRAWS]:
        assert [name for name in imported(path) if within(name, ("matplotlib",))] == []


def test_every_rule_is_about_modules_that_exist():
    homes = {*ONLY, *NEVER, *(f"attnbench.{part}" for parts in NEVER.values() for part in parts)}
    assert {home for home in homes if home not in CORE} == set()
    assert {name for name in DRAWS if name not in CORE} == set()
    assert [name for name in DRAWS if not any(within(one, ("matplotlib",)) for one in imported(CORE[name]))] == []
    assert VARIANTS


@pytest.mark.parametrize("path", VARIANTS, ids=lambda path: path.stem)
def test_a_variant_has_the_rights_of_a_strangers_plugin(path):
    ours = [name for name in imported(path) if within(name, ("attnbench",))]
    assert [name for name in ours if not within(name, ("attnbench.mixer", "attnbench.kernels"))] == []
    others = {name.partition(".")[0] for name in imported(path, whole=False)}
    assert others <= {"attnbench", "torch", "annotated_types", *sys.stdlib_module_names}


@pytest.mark.parametrize("name", TORCH_FREE)
def test_what_needs_no_torch_imports_none(name):
    assert [module for module in imported(CORE[name], whole=False) if within(module, ("torch",))] == []


# Tried in fresh interpreters


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory) -> dict[str, str]:
    """The environment of a machine whose torch, triton and xformers all fail at import."""
    folder = tmp_path_factory.mktemp("without_torch")
    for name in ("torch", "triton", "xformers"):
        (folder / f"{name}.py").write_text(f"raise RuntimeError('{name} cannot be imported here')\n")
    return os.environ | {"PYTHONPATH": str(folder)}


def interpreter(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


LOOK = f"""
import io, json, sys
from contextlib import redirect_stdout

def loaded():
    return [name for name in {HEAVY} if name in sys.modules]

def command(*arguments):
    sys.argv = ["attnbench", *arguments]
    with redirect_stdout(io.StringIO()) as output:
        try:
            attnbench.cli.main()
        except SystemExit as stop:
            return stop.code, output.getvalue(), loaded()

import attnbench
found = {{"import attnbench": loaded()}}
import attnbench.cli
found["import attnbench.cli"] = loaded()
for name in ("--help", "variants", "tasks"):
    code, text, heavy = command(name)
    found[name] = heavy
    assert not code, (name, code)
    assert {{"--help": "Usage", "variants": "attnbench_variants.full:Full", "tasks": "distance"}}[name] in text, text
try:
    import torch
except RuntimeError:
    print(json.dumps(found))
"""


def test_help_and_listings_are_quick_and_work_where_torch_does_not(without_torch):
    done = interpreter(without_torch, "-c", LOOK)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert list(found) == ["import attnbench", "import attnbench.cli", "--help", "variants", "tasks"]
    assert [heavy for heavy in found.values() if heavy] == []


def test_the_package_runs_as_a_module(without_torch):
    done = interpreter(without_torch, "-m", "attnbench", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "attnbench run" in done.stdout


def test_what_needs_no_torch_can_be_imported_where_torch_cannot(without_torch):
    script = f"import {', '.join(TORCH_FREE)}, sys; print('torch' in sys.modules)"
    done = interpreter(without_torch, "-c", script)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_what_needs_torch_says_so_where_it_cannot_be_imported(without_torch):
    done = interpreter(without_torch, "-c", "import attnbench; attnbench.Mixer")
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: torch cannot be imported here\n")


def test_a_run_is_reported_where_torch_cannot_be_imported(without_torch, tmp_path):
    run = run_of(tmp_path, [cell("a"), cell("b", T=128, S=128)], [timed("a", 1e-3), timed("b", 2e-3)])
    done = interpreter(without_torch, "-m", "attnbench", "report", str(run))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("2 of 2 cells ok\n")
    assert (run / "report.html").stat().st_size > 0


def test_every_public_name_can_be_had_and_no_other():
    import attnbench

    assert [name for name in attnbench.__all__ if getattr(attnbench, name, None) is None] == []
    with pytest.raises(AttributeError, match="has no attribute 'Transformer'"):
        attnbench.Transformer  # noqa: B018  # the access is what is tried


# What decides a cell's id

UNDECIDING = {  # of what a visit imports, these decide no number: they find, check, name, order or describe
    "attnbench",
    "attnbench.analyse.claims",
    "attnbench.blame",
    "attnbench.catalogue",
    "attnbench.causality",
    "attnbench.cells",
    "attnbench.certificate",
    "attnbench.conformance",
    "attnbench.errors",
    "attnbench.execute",
    "attnbench.execute.orders",
    "attnbench.execute.stages",
    "attnbench.forms",
    "attnbench.lengths",
    "attnbench.out_of_memory",
    "attnbench.promises",
    "attnbench.registry",
    "attnbench.settings",
    "attnbench.subject",
    "attnbench.sweep",
    "attnbench.wording",
}


def test_whatever_decides_a_number_of_a_visit_decides_its_id():
    from attnbench.execute.describe import ACCURACY_MODULES, COST_MODULES, _modules

    found, fresh = set(), {"attnbench.execute.cell"}
    while fresh:
        found |= fresh
        names = {name for module in fresh if module != "attnbench" for name in imported(CORE[module])}
        fresh = {name for module in names for name in (module, module.rpartition(".")[0]) if name in CORE} - found
    covered = {name for name, path in CORE.items() if path in _modules((*COST_MODULES, *ACCURACY_MODULES))}
    assert sorted(found - covered - UNDECIDING) == []
    assert sorted(UNDECIDING - found) == []

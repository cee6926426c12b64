"""A stranger's package of two files: installed by pip, it is listed, checked and swept like a built-in."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from runs import write_sweep

import attnbench

HERE = Path(__file__).parent / "example_plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment of a person who has installed the package."""
    copy = shutil.copytree(HERE, tmp_path_factory.mktemp("source") / "package")
    target = tmp_path_factory.mktemp("target")
    words = ["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--target", target, copy], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return os.environ | {"PYTHONPATH": str(target)}


def command(environment, *arguments):
    words = [sys.executable, "-m", "attnbench", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, env=environment, check=False, timeout=120)


def test_it_is_two_short_files():
    files = sorted(file.name for file in HERE.iterdir() if file.is_file())
    assert files == ["attnbench_sigmoid.py", "pyproject.toml"]
    assert len((HERE / "attnbench_sigmoid.py").read_text().splitlines()) < 25


def test_it_is_listed_with_the_package_that_offers_it(installed):
    found = json.loads(command(installed, "variants", "--json").stdout)["found"]
    (row,) = [row for row in found if row["name"] == "sigmoid"]
    assert (row["target"], row["origin"]) == ("attnbench_sigmoid:Sigmoid", "attnbench-sigmoid 0.1.0")


def test_it_is_swept_beside_a_built_in(installed, tmp_path):
    sweep = write_sweep(tmp_path, '[[grid]]\nvariant = ["sigmoid", "fused"]\nT = [8, 16]\nmeasure = ["time"]\n')
    done = command(installed, "run", sweep, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert set(attnbench.read(tmp_path / "run")["variant"]) == {"sigmoid", "fused"}
    assert set(attnbench.read(tmp_path / "run")["status"]) == {"ok"}

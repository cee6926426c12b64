"""What `doctor` and `variants --roles` tell: facts of this machine, and a reason for all that does not work on it."""

import json
import os
import subprocess
import sys

import pytest
from commands import attnbench

from attnbench import commands, registry
from attnbench.execute import doctor
from attnbench.execute.abilities import abilities
from attnbench.execute.describe import profile
from attnbench.execute.local import FreshProcesses
from attnbench.measure.machine import usable_cores
from attnbench.registry import Source

PACKAGES = {  # a package of that name -> what is told of it
    "xformers": ("raise RuntimeError('built for another torch')\n", "unusable: RuntimeError: built for another torch"),
    "triton": ("import sys; print('noise'); sys.exit(3)\n", "unusable: SystemExit: 3"),
    "fla": ("import os; os._exit(0)\n", "unusable: the process ended by itself with status 0"),
    "ray": ("__version__ = '9.9'\n", "usable, 9.9"),
}


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """What doctor says on a machine with four optional packages, three of them unusable."""
    folder = tmp_path_factory.mktemp("packages")
    for name, (text, _) in PACKAGES.items():
        (folder / f"{name}.py").write_text(text)
    words, environment = ("-m", "attnbench", "doctor", "--json"), os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", PACKAGES)
def test_an_optional_package_is_imported_whatever_it_does_and_its_reason_told(facts, name):
    assert facts["packages"][name].startswith(PACKAGES[name][1])


def test_machine_torch_clock_and_the_cost_of_a_visit_are_told(facts):
    assert facts["cores"] >= 1
    assert facts["torch"]["threads"] >= 1
    assert facts["torch"]["version"].startswith(facts["versions"]["torch"].partition("+")[0])
    assert 0 < facts["clock"]["step_s"] < 1e-3
    assert facts["clock"]["look_s"] > 0
    assert 0 < facts["visit"]["time_s"] <= facts["visit"]["time_high_s"]
    assert facts["visit"]["n"] == doctor.N_VISITS
    for threads in {"1", str(usable_cores())}:
        names = {f"{dtype}_flops_per_s" for dtype in ("float64", "float32", "bfloat16")} | {"copy_bytes_per_s"}
        assert set(facts["peaks"]["cpu"][threads]) == names
        assert all(peak > 0 for peak in facts["peaks"]["cpu"][threads].values())


def test_what_cannot_be_learnt_says_why(monkeypatch):
    monkeypatch.setattr(doctor, "HERE", "attnbench.no_such_module")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    with FreshProcesses() as processes:
        told = doctor.examine(processes)
    assert set(told["packages"].values()) == {"not installed"}
    for part in (told["torch"], told["clock"], told["visit"]["trouble"]):
        assert part.startswith("not available: ModuleNotFoundError: No module named 'attnbench.no_such_module'")


def test_facts_are_read_in_lines_with_units():
    facts = {"memory_bytes": 2**31, "variables": {}, "clock": {"step_s": 4e-8}, "gpus": [], "gone": None}
    assert commands._lines(facts) == ["memory: 2.00 GiB", "clock:", "  step: 40.0 ns", "gpus: none"]
    peaks = {"copy_bytes_per_s": 1.5e10, "float32_flops_per_s": 9e10, "float64_flops_per_s": "not available: no"}
    assert commands._lines(peaks) == ["copy: 15.0 GB/s", "float32: 90.0 GFLOP/s", "float64: not available: no"]


PLUGIN = """
from attnbench import Attention, Mixer
class Whole(Attention):
    pass
class OnlyGpu(Mixer):
    @classmethod
    def unsupported(cls, spec, use, **options):
        return "cuda only" if use.device == "cpu" else super().unsupported(spec, use, **options)
class Picky(Attention):
    @classmethod
    def unsupported(cls, spec, use, **options):
        return "no cross" if spec.role == "cross" else "no holes" if use.mask == "any" else None
class Confused(Mixer):
    @classmethod
    def unsupported(cls, spec, use, **options):
        raise KeyError("role")
"""


@pytest.fixture
def found(tmp_path):
    (tmp_path / "mine.py").write_text(PLUGIN)
    rows, broken = abilities({source.name: source for source in registry.file_sources(tmp_path / "mine.py")})
    assert broken == []
    return {row["name"]: row for row in rows}


def test_a_reason_stands_for_all_that_a_variant_cannot_do(found):
    assert found["picky"]["roles"] == {"causal": None, "bidirectional": None, "cross": "no cross"}
    assert found["picky"]["masks"] == {role: {"right": None, "any": "no holes"} for role in ("causal", "bidirectional")}
    assert found["whole"]["decoding"]["causal"] is None
    assert "KeyError" in found["confused"]["roles"]["causal"]


def test_a_role_that_only_another_device_serves_is_served(found):
    assert found["only_gpu"]["roles"]["causal"] is None
    assert found["only_gpu"]["devices"] == {"cpu": "cuda only", "cuda": None}


def test_one_variant_alone_has_the_roles_that_the_table_of_all_gives_it(found, tmp_path):
    sources = {source.name: source for source in registry.file_sources(tmp_path / "mine.py")}
    for name, row in found.items():
        alone = profile(name, sources)
        assert (alone["roles"], alone["devices"]) == (row["roles"], row["devices"])


def test_the_table_shows_kinds_of_masks_and_every_reason_once(found, capsys):
    commands.show_abilities(list(found.values()), ["bad.py: no"], as_json=False)
    shown = capsys.readouterr().out
    rows = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]]
        for line in shown.split("\n")
        if line.startswith("│")
    }
    assert rows["whole"] == ["any", "any", "any", "causal, cross", "yes", "yes"]
    assert rows["picky"][:3] == ["right", "right", "–"]
    assert rows["only_gpu"][-2:] == ["–", "yes"]
    assert rows["confused"] == ["–"] * 6
    assert "picky causal with any mask, bidirectional with any mask: no holes" in shown
    assert shown.count("no holes") == 1
    assert shown.endswith("broken: bad.py: no\n")


def test_variants_that_do_not_load_are_listed_with_their_reason():
    sources = {name: Source(name, f"{name}:X", "somebody 1.0") for name in ("no_such_module", "json")}
    rows, broken = abilities(sources)
    assert rows == []
    assert "No module named 'no_such_module'" in broken[0]
    assert "json has no class X" in broken[1]


def test_the_roles_of_the_installed_variants_are_told_by_the_command():
    told = json.loads(attnbench("variants", "--roles", "--json").stdout)
    assert {row["name"] for row in told["found"]} == set(registry.installed(registry.VARIANTS))
    assert told["broken"] == []
    alone = json.loads(attnbench("variants", "window", "--roles", "--json").stdout)
    assert [row["name"] for row in alone["found"]] == ["window"]

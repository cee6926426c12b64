"""Whole runs on tasks: sequence to sequence, tasks of plugin files, and what is refused before anything runs."""

import re
import subprocess
import sys

import pandas as pd
import pytest
from runs import PLUGINS, write_sweep

import attnbench
from attnbench.catalogue import variant_key
from attnbench.errors import RequestError
from attnbench.execute.describe import catalogue, sources_with, task_profile
from attnbench.execute.plan import make_plan
from attnbench.registry import TASKS, file_sources
from attnbench.sweep import VariantUse
from attnbench.sweep_file import read_toml

TRAIN = "\n[train]\nsteps = 4\nbatch_size = 8\nlr = 1e-3\nn_validation = 16\nn_test = 24\neval_every = 2\n"
GRID = '[[grid]]\nmeasure = "accuracy"\nT = {T}\nvariant = {variants}\ntask = "{task}"\nn_layers = 1\n'
PLUGIN = PLUGINS / "first_token.py"


def sweep(folder, variants, task, T=8, more="", head=""):
    grid = GRID.format(T=T, variants=list(variants), task=task).replace("'", '"')
    return write_sweep(folder, grid + more + TRAIN, head)


UNGUARDED = "import sys, attnbench; attnbench.run(sys.argv[1], out=sys.argv[2], start_method='spawn', workers=3)"


def test_results_depend_neither_on_workers_nor_on_how_they_start_nor_on_the_script(tmp_path):
    path = sweep(
        tmp_path, ["local"], "distance", more="seed = [0, 1]\n", head=f'plugins = ["{PLUGINS / "local_parts.py"}"]'
    )
    here = attnbench.run(path, out=tmp_path / "here", workers=1)
    assert here.counts == {"ok": 2}, list(here.frame["reason"])
    command = [sys.executable, "-", path, tmp_path / "there"]
    subprocess.run(command, input=UNGUARDED, check=True, text=True, timeout=120)
    same = ["cell", "status", "accuracy", "loss", "fingerprint", "trials", "n_params"]
    pd.testing.assert_frame_equal(attnbench.read(tmp_path / "there")[same], here.frame[same])


@pytest.fixture
def processes():
    from attnbench.execute.local import FreshProcesses

    with FreshProcesses() as made:
        yield made


def test_a_run_trains_encoder_decoders_and_says_which_cannot_be_built(tmp_path):
    path = sweep(tmp_path, ["fused", "lstm", "running_sum"], "reverse", head=f'plugins = ["{PLUGIN}"]')
    made = attnbench.run(path, out=tmp_path / "run")
    frame = made.frame.set_index("variant")
    assert dict(frame["status"]) == {"fused": "ok", "lstm": "ok", "running_sum": "unsupported"}
    assert frame["reason"]["running_sum"] == "as encoder: sums in one direction only"
    assert set(frame["cross"]) == {"fused"}
    assert (frame.loc[["fused", "lstm"], "accuracy"] >= 0).all()
    assert (frame.loc[["fused", "lstm"], "sequence_accuracy"] <= frame.loc[["fused", "lstm"], "accuracy"]).all()
    assert frame["fingerprint"]["fused"] == frame["fingerprint"]["lstm"]
    assert made.as_asked


def test_an_encoder_that_takes_no_padding_is_unsupported_before_anything_runs(tmp_path, processes):
    plugin = tmp_path / "unmasked.py"
    plugin.write_text(
        "from attnbench import Mixer\n\n\nclass Unmasked(Mixer):\n"
        "    @classmethod\n    def unsupported(cls, spec, use, **options):\n"
        "        return None if use.mask == 'none' else f'no {use.mask} masks'\n"
    )
    path = sweep(tmp_path, ["unmasked"], "reverse", head='plugins = ["unmasked.py"]')
    (judged,) = make_plan(processes, path, read_toml(path)).judgements
    assert judged.reason == "as encoder: no right masks"


def test_an_answer_that_stands_in_the_tokens_is_for_causal_models_only(tmp_path, processes):
    for task in ("copy", "reverse"):
        path = sweep(tmp_path, ["fused"], task, T=16, more='role = "bidirectional"\n')
        (judged,) = make_plan(processes, path, read_toml(path)).judgements
        assert judged.reason == f"the answers of {task} stand in its tokens: its roles are causal"
    path = sweep(tmp_path, ["fused"], "distance", T=16, more='role = "bidirectional"\n')
    (judged,) = make_plan(processes, path, read_toml(path)).judgements
    assert judged.reason is None


def test_a_cell_says_which_cross_attention_it_has(tmp_path, processes):
    plans = [make_plan(processes, path, read_toml(path)) for path in (sweep(tmp_path, ["full"], "reverse"),)]
    (cell,) = plans[0].cells
    assert (cell.cross, cell.mixer_roles, cell.role) == ("fused", ("bidirectional", "causal"), "causal")
    assert plans[0].order(cell, "accuracy").cross == plans[0].catalogue.variant_sources["fused"]
    path = sweep(tmp_path, ["full"], "copy", T=16)
    (plain,) = make_plan(processes, path, read_toml(path)).cells
    assert (plain.cross, plain.mixer_roles) == (None, ("causal",))


def test_a_file_offers_its_tasks_and_its_variants(tmp_path):
    assert [source.name for source in file_sources(PLUGIN)] == ["running_sum"]
    assert [(source.name, source.target) for source in file_sources(PLUGIN, TASKS)] == [
        ("first_token", f"{PLUGIN}:FirstToken")
    ]
    found, broken, clashes = sources_with([str(PLUGIN)], TASKS)
    assert {"distance", "first_token"} <= set(found)
    assert broken == clashes == []
    profile = task_profile("first_token", found)
    assert (profile["title"], profile["min_T"], profile["floor"]) == ("name the first token", 2, 1 / 8)
    assert profile["options"] == {"n_tokens": "integer >= 2 (default 8)"}


def test_a_task_of_a_plugin_runs(tmp_path):
    path = sweep(
        tmp_path,
        ["running_sum", "fused"],
        "first_token",
        more="[tasks.first_token]\nn_tokens = 5\n",
        head=f'plugins = ["{PLUGIN}"]',
    )
    frame = attnbench.run(path, out=tmp_path / "run").frame
    assert set(frame["status"]) == {"ok"}
    assert set(frame["floor"]) == {0.2}
    assert set(frame["slice_unit"]) == {"slice"}
    assert (frame["n_params_body"] < frame["n_params"]).all()


def test_a_name_that_a_plugin_takes_from_an_installed_task_is_a_clash(tmp_path, processes):
    plugin = tmp_path / "mine.py"
    plugin.write_text("from attnbench.tasks import Task\n\n\nclass Distance(Task):\n    pass\n")
    path = sweep(tmp_path, ["fused"], "distance", T=16, head='plugins = ["mine.py"]')
    with pytest.raises(RequestError, match='two plugins are named "distance"'):
        make_plan(processes, path, read_toml(path))


def test_a_missing_task_is_told_with_the_plugin_that_does_not_load(tmp_path, processes):
    (tmp_path / "torn.py").write_text("import nosuchthing\n")
    path = sweep(tmp_path, ["fused"], "distanse", T=16, head='plugins = ["torn.py"]')
    with pytest.raises(RequestError) as caught:
        make_plan(processes, path, read_toml(path))
    assert re.search(r'unknown task "distanse"; did you mean "distance"', str(caught.value))
    assert "nosuchthing" in str(caught.value)


@pytest.mark.parametrize(
    ("task", "options", "told"),
    [
        ("distance", {"train_max_gap": 2}, "train_max_gap must be 0 or at least n_slots = 4, got 2"),
        ("mqar", {"vocab_size": 10}, "n_pairs = 8 needs an even vocab_size of at least 18, got vocab_size = 10"),
        ("copy", {"train_max_length": 3}, "train_max_length must be 0 or at least min_length = 4, got 3"),
    ],
)
def test_options_that_do_not_go_together_are_told_before_anything_runs(task, options, told):
    use = VariantUse(task, options)
    assert told in str(catalogue([], [use], []).tasks[variant_key(task, options)].error)


def test_what_a_task_inherits_is_part_of_what_decides_a_cell(monkeypatch):
    def digest():
        return catalogue([], [VariantUse("copy")], []).tasks[variant_key("copy", {})].digest

    before = digest()
    monkeypatch.setattr(sys.modules["attnbench.tasks.strings"], "__file__", __file__)
    assert digest() != before


def test_a_source_of_cross_attention_is_part_of_what_decides_a_cell():
    reverse, copy = (catalogue([], [VariantUse(name)], []).tasks[variant_key(name, {})] for name in ("reverse", "copy"))
    assert (reverse.cross, copy.cross) == ("fused", None)
    assert reverse.digest != copy.digest

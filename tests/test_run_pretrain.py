"""Whole runs that cross n_training and pretraining: what stands in the folder, and that no order of visits matters."""

import pandas as pd
import pytest
from runs import PLUGINS, write_sweep

import attnbench

GRID = """
[[grid]]
measure = "accuracy"
variant = "local"
task = { name = "mqar", n_pairs = 2, vocab_size = 12 }
T = 8
n_layers = 1
n_training = [4, 8]
pretrain = ["none", { name = "distance", n_slots = 2, T = 12 }]
[train]
steps = 4
batch_size = 8
lr = [1e-2, 1e-3]
n_validation = 16
n_test = 24
eval_every = 2
"""
SAME = ["cell", "status", "accuracy", "loss", "fingerprint", "trials", "n_params", "pretrain_accuracy"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_sweep(tmp_path_factory.mktemp("sweep"), GRID, f'plugins = ["{PLUGINS / "local_parts.py"}"]')


@pytest.fixture(scope="module")
def made(path, tmp_path_factory):
    """One visit after the other: the first trains the weights, the second reads them."""
    run = attnbench.run(path, out=tmp_path_factory.mktemp("runs") / "run", workers=1)
    assert run.counts == {"ok": 4}, list(run.frame["reason"])
    return run


def test_a_row_says_from_what_its_training_started(made):
    scratch, pretrained = made.frame[made.frame["pretrain"].isna()], made.frame[made.frame["pretrain"].notna()]
    assert list(made.frame["n_training"]) == [4, 4, 8, 8]
    assert set(pretrained["pretrain"]) == {"distance[n_slots=2, T=12]"}
    assert set(pretrained["pretrain_steps"]) == {4}
    assert pretrained["pretrain_accuracy"].between(0, 1).all()
    assert scratch[["pretrain_options", "pretrain_accuracy", "pretrain_steps"]].isna().all(axis=None)
    assert set(scratch["max_T"]) == {8}
    assert set(pretrained["max_T"]) == {12}
    assert set(scratch["fingerprint"]).isdisjoint(pretrained["fingerprint"])


def test_cells_of_one_pretraining_share_one_file(made):
    assert len(list((made.path / "weights").iterdir())) == 1


def test_results_depend_neither_on_who_trained_the_weights_nor_on_a_file_that_was_damaged(made, path, tmp_path):
    (file,) = (made.path / "weights").iterdir()
    (tmp_path / "run").mkdir()
    other = attnbench.run(path, out=tmp_path / "run", workers=2, budget_s=1e-3)
    (tmp_path / "run" / "weights").mkdir(exist_ok=True)
    (tmp_path / "run" / "weights" / file.name).write_bytes(file.read_bytes()[:-1])
    other = attnbench.run(path, out=tmp_path / "run", workers=2, resume=True)
    pd.testing.assert_frame_equal(other.frame[SAME], made.frame[SAME])
    assert (tmp_path / "run" / "weights" / file.name).read_bytes() == file.read_bytes()


def test_a_run_that_is_overwritten_leaves_no_weights(made, tmp_path):
    from attnbench.run_folder import RunFolder

    folder = RunFolder.create(tmp_path / "run")
    folder.begin("", [], {})
    folder.weights.mkdir()
    (folder.weights / "w.pt").write_bytes(b"")
    (folder.weights / "w.pt.1.part").write_bytes(b"")
    folder.clear()
    folder.close()
    assert not folder.weights.exists()

"""Grid keys `n_training` and `pretrain`: which cells they make, what their ids cover, and what is refused."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from catalogues import catalogue

from attnbench.cells import expand
from attnbench.errors import RequestError
from attnbench.execute import describe
from attnbench.execute.orders import Visit
from attnbench.settings import TimingSettings, TrainSettings
from attnbench.sweep import validate, wanted_tasks, wanted_variants
from attnbench.sweep_file import read_toml

GRID = '[[grid]]\nvariant = "full"\nT = 64\nd_model = 64\nmeasure = "accuracy"\ntask = "distance"\n'
GRID_OF_T = GRID.replace("T = 64\n", "")


def cells_of(more, grid=GRID):
    tables = tomllib.loads(grid + more)
    offered = catalogue(tables)
    return expand(validate(tables, "s.toml", offered), offered, "torch")


def refusal(more, grid=GRID, describing=catalogue):
    tables = tomllib.loads(grid + more)
    with pytest.raises(RequestError) as refused:
        validate(tables, "s.toml", describing(tables))
    return [line.removeprefix("s.toml: grid[0].") for line in refused.value.mistakes]


def really(tables):
    return describe.catalogue(wanted_variants(tables), wanted_tasks(tables), [])


def order_of(cell, folder=Path("weights")):
    return Visit(cell, "accuracy", (), None, TimingSettings(), TrainSettings(), weights=folder)


# n_training


def test_a_grid_crosses_n_training_and_each_value_is_a_cell_of_its_own():
    few, many = cells_of("n_training = [32, 64]\n")
    assert (few.n_training, many.n_training) == (32, 64)
    assert few.id != many.id
    assert few.digest == many.digest


def test_a_grid_goes_before_the_table_of_training_and_both_ways_to_write_it_are_one_cell():
    (of_table,) = cells_of("[train]\nn_training = 32\n")
    (of_grid,) = cells_of("n_training = 32\n[train]\nn_training = 64\n")
    assert of_table.n_training == of_grid.n_training == 32
    assert of_table.id == of_grid.id


def test_without_either_sequences_are_fresh_and_nothing_is_pretrained():
    (cell,) = cells_of("")
    assert cell.n_training is cell.pretrain is cell.pretrain_options is cell.pretrain_name is None
    assert cells_of('pretrain = "none"\n') == [cell]


@pytest.mark.parametrize("line", ["n_training = 64", 'pretrain = "distance"'])
def test_a_cell_that_is_not_trained_has_no_use_for_either(line):
    key = line.partition(" ")[0]
    (told,) = refusal(f"{line}\n", '[[grid]]\nvariant = "full"\nT = 64\nd_model = 64\n')
    assert told.startswith(f'{key}: only measure = ["accuracy"]')


def test_an_override_meant_for_accuracy_leaves_timed_grids_alone(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(f'{GRID}[[grid]]\nvariant = "full"\nT = 64\nd_model = 64\n')
    accuracy, timed = read_toml(file, ["n_training=[8,16]", "pretrain=distance"])["grid"]
    assert (accuracy["n_training"], accuracy["pretrain"]) == ([8, 16], "distance")
    assert not {"n_training", "pretrain"} & set(timed)


# pretrain


def test_pretraining_is_crossed_and_labelled_with_what_stands_beside_its_name():
    fresh, plain, named = cells_of('pretrain = ["none", "distance", { name = "distance", n_slots = 2, T = 128 }]\n')
    assert fresh.pretrain is None
    assert (plain.pretrain, plain.pretrain_options) == ("distance", {"n_slots": 4, "T": 64})
    assert (named.pretrain, named.pretrain_options) == ("distance[n_slots=2, T=128]", {"n_slots": 2, "T": 128})
    assert named.pretrain_name == "distance"
    assert len({fresh.id, plain.id, named.id}) == 3


def test_the_table_of_the_task_lies_beneath_the_options_of_pretraining_too():
    (cell,) = cells_of('pretrain = "distance"\n[tasks.distance]\nn_slots = 8\n')
    assert cell.pretrain_options == {"n_slots": 8, "T": 64}


@pytest.mark.parametrize(("T", "longest"), [(32, 64), (64, 64), (128, 128)])
def test_positions_cover_both_tasks(T, longest):
    (cell,) = cells_of(f'pretrain = {{ name = "distance", T = {T} }}\n')
    assert (cell.T, cell.max_T) == (64, longest)


def test_the_id_covers_the_source_of_the_task_of_pretraining():
    tables = tomllib.loads(GRID + 'pretrain = { name = "distance", n_slots = 2 }\n')
    offered = catalogue(tables)
    changed = {
        key: replace(task, digest="edited") if task.options["n_slots"] == 2 else task
        for key, task in offered.tasks.items()
    }
    sweep = validate(tables, "s.toml", offered)
    (before,), (after,) = (expand(sweep, one, "torch") for one in (offered, replace(offered, tasks=changed)))
    assert before.digest == after.digest
    assert before.id != after.id
    assert order_of(before).weights_file(16) != order_of(after).weights_file(16)


@pytest.mark.parametrize(
    ("pretrain", "line"),
    [
        ('"distanse"', 'pretrain: unknown task "distanse"; did you mean "distance"?'),
        ('["none", { name = "distance", n_slot = 2 }]', "pretrain[1].n_slot: unknown option"),
        ('{ name = "distance", T = 4 }', "pretrain: T = 4 is too short for the task distance; its smallest T is 8"),
        ('{ name = "distance", T = 0 }', "pretrain: expected T to be a whole number from 1 on"),
        ('{ name = "distance", T = true }', "pretrain: expected T to be a whole number from 1 on"),
        ('{ name = "distance", T = 128 }\nmax_T = 64', "pretrain: T = 128 is beyond max_T = 64"),
        ("[{ n_slots = 2 }]", "pretrain[0]: expected a name or a table"),
    ],
)
def test_a_wrong_pretraining_is_told_in_one_line_with_its_place(pretrain, line):
    (told,) = refusal(f"pretrain = {pretrain}\n")
    assert told.startswith(line)


def test_tasks_whose_models_differ_are_refused():
    (told,) = refusal('pretrain = "adding"\n', GRID.replace("distance", "mqar"), really)
    assert told.startswith(
        "pretrain: adding is of tokens with numbers and numbers as answers, mqar of tokens and labels"
    )


# Weights


def test_cells_that_differ_in_what_comes_afterwards_share_weights_and_others_do_not():
    first, *rest = cells_of(
        'T = [64, 96]\nn_training = [32, 64]\npretrain = { name = "distance", T = 128 }\n', GRID_OF_T
    )
    assert {order_of(cell).weights_file(16) for cell in rest} == {order_of(first).weights_file(16)}
    narrower = {"match": "params", "matched": {"d_model": 32}}
    for change in ({"seed": 1}, narrower, {"pretrain_digest": "x"}, {"pretrain_options": {}}, {"max_T": 256}):
        assert order_of(replace(first, **change)).weights_file(16) != order_of(first).weights_file(16), change
    assert order_of(first).weights_file(17) != order_of(first).weights_file(16)


def test_without_a_folder_no_file_is_kept():
    (cell,) = cells_of('pretrain = "distance"\n')
    assert order_of(cell, None).weights_file(16) is None

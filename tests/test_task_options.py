"""Options beside the name of a task in a grid: `task = [{ name = "distance", n_slots = 2 }, "distance"]`."""

import tomllib

import pytest
from catalogues import catalogue

from attnbench.cells import called, expand
from attnbench.errors import RequestError
from attnbench.sweep import validate

GRID = '[[grid]]\nvariant = "full"\nT = 64\nd_model = 64\nmeasure = "accuracy"\n'


def cells_of(task, more=""):
    tables = tomllib.loads(f"{GRID}task = {task}\n{more}")
    offered = catalogue(tables)
    return expand(validate(tables, "s.toml", offered), offered, "torch")


def refusal(task, more=""):
    with pytest.raises(RequestError) as refused:
        cells_of(task, more)
    return [line.removeprefix("s.toml: ") for line in refused.value.mistakes]


def test_options_beside_a_name_make_cells_of_their_own_with_a_label():
    with_options, plain = cells_of('[{ name = "distance", n_slots = 2 }, "distance"]')
    assert (with_options.task, plain.task) == ("distance[n_slots=2]", "distance")
    assert with_options.task_name == plain.task_name == "distance"
    assert (with_options.task_options, plain.task_options) == ({"n_slots": 2}, {"n_slots": 4})
    assert with_options.id != plain.id


def test_the_table_of_a_task_lies_beneath_the_options_beside_its_name():
    table = "[tasks.distance]\nn_slots = 8\n"
    beside, plain = cells_of('[{ name = "distance", n_slots = 2 }, "distance"]', table)
    assert (beside.task_options, plain.task_options) == ({"n_slots": 2}, {"n_slots": 8})


def test_a_cell_is_the_same_however_its_options_were_written():
    (beside,) = cells_of('{ name = "distance", n_slots = 2 }')
    (beneath,) = cells_of('"distance"', "[tasks.distance]\nn_slots = 2\n")
    assert beside.id == beneath.id
    assert beside.task != beneath.task


@pytest.mark.parametrize(
    ("task", "line"),
    [
        ('{ name = "distance", n_slot = 2 }', 'grid[0].task.n_slot: unknown option; did you mean "n_slots"?'),
        ('[{ name = "distanse" }]', 'grid[0].task[0]: unknown task "distanse"; did you mean "distance"?'),
        ("[{ n_slots = 2 }]", "grid[0].task[0]: expected a name or a table"),
        ('{ name = "distance", n_slots = 33 }', "grid[0].T: 64 is too short for the task distance; its smallest T is"),
    ],
)
def test_a_wrong_entry_is_told_with_its_place(task, line):
    told = refusal(task)
    assert len(told) == 1
    assert told[0].startswith(line)


def test_a_cell_without_a_task_has_no_name_of_one():
    tables = tomllib.loads(GRID.replace('measure = "accuracy"', ""))
    offered = catalogue(tables)
    (cell,) = expand(validate(tables, "s.toml", offered), offered, "torch")
    assert cell.task is cell.task_name is None


def test_a_name_tells_its_options_in_order():
    assert called("mqar", {}) == "mqar"
    assert called("mqar", {"n_pairs": 8, "slots": "even"}) == "mqar[n_pairs=8, slots=even]"

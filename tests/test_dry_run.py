"""What `run --dry-run` says before anything is spent."""

import pytest
from run_rows import tiny_cell as cell

from attnbench.dry_run import changes, repeats


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"grid": [{"T": [64, 128]}]}, {"grid": [{"T": 256}]}, ["grid[0].T: [64, 128] -> 256"]),
        ({"grid": [{}, {"B": 1}]}, {"grid": [{"B": 4}, {"B": 4}]}, ["grid[0].B: not given -> 4", "grid[1].B: 1 -> 4"]),
        ({}, {"train": {"steps": 3}}, ["train: not given -> { steps = 3 }"]),
        ({"train": {"steps": 5}}, {"train": {"steps": 3}}, ["train.steps: 5 -> 3"]),
        ({"options": {"a b": {"n": 1}}}, {"options": {"a b": {"n": 2}}}, ['options."a b".n: 1 -> 2']),
        ({"grid": [{"T": 64}]}, {"grid": [{"T": 64}]}, []),
        ({"grid": 3}, {"grid": [{}]}, ["grid: 3 -> [{}]"]),
    ],
)
def test_what_an_override_changed_is_told_with_its_place(before, after, told):
    assert list(changes(before, after)) == [f"override: {line}" for line in told]


def test_points_that_will_not_run_again_are_counted_and_the_first_ones_named():
    assert list(repeats([])) == []
    (one,) = repeats([cell(label="window")])
    assert one.startswith("note: 1 point has the effective settings of an earlier one")
    assert "window layer forward T=12 d_model=8" in one
    (many,) = repeats([cell(label=f"v{i}") for i in range(5)])
    assert many.endswith("v2 layer forward T=12 d_model=8; 2 more")

"""The packs of experiments/claims: each is valid, names cells and slices that exist, and brings three seeds."""

from pathlib import Path

import pytest

from attnbench import registry
from attnbench.claims.conduct import check, planned
from attnbench.claims.pack import Found, matching, read
from attnbench.claims.verdict import settings
from attnbench.execute.local import FreshProcesses
from attnbench.registry import load

FOLDER = Path(__file__).parent.parent / "experiments" / "claims"
PACKS = {path.stem: Found(path.stem, path, read(path)) for path in sorted(FOLDER.glob("*.toml"))}
SWEEPS = [name for name, found in PACKS.items() if found.pack.sweep is not None]


@pytest.fixture(scope="module")
def processes():
    with FreshProcesses() as made:
        yield made


@pytest.fixture(scope="module")
def cells(processes):
    """The rows of cells.jsonl of each pack with a sweep, whole and quick."""
    return {(name, quick): planned(processes, PACKS[name], quick) for name in SWEEPS for quick in (False, True)}


def test_the_ten_claims_and_the_unscaled_softmax_are_there():
    wanted = {"recall", "binding", "load", "distance", "adding", "selective", "copying", "parity", "listops"}
    assert wanted | {"capacity", "unscaled"} <= set(PACKS)


@pytest.mark.parametrize("name", SWEEPS)
@pytest.mark.parametrize("quick", [False, True])
def test_each_clause_selects_a_cell(cells, name, quick):
    pack = PACKS[name].pack
    clauses = [where for one in pack.expect for where in one.clauses] + ([pack.control] if pack.control else [])
    assert [where for where in clauses if not matching(cells[name, quick], where)] == []


@pytest.mark.parametrize("name", sorted(set(PACKS) - set(SWEEPS)))
def test_a_pack_without_a_sweep_names_what_there_is(processes, name):
    check(processes, PACKS[name], quick=False)
    if guesses := PACKS[name].pack.baselines:
        task = load(registry.installed(registry.TASKS)[guesses.task])
        assert task(guesses.T, **guesses.options).T == guesses.T


@pytest.mark.parametrize("name", SWEEPS)
def test_each_setting_has_three_seeds_and_a_quick_look_says_what_it_leaves_out(cells, name):
    assert {len(group) for group in settings(cells[name, False])} == {3}
    assert PACKS[name].pack.quick
    n_whole, n_quick = len(cells[name, False]), len(cells[name, True])
    assert 0 < n_quick < n_whole


@pytest.mark.parametrize("name", SWEEPS)
def test_each_side_of_an_order_is_one_setting(cells, name):
    orders = [where for one in PACKS[name].pack.expect for where in one.order or ()]
    for quick in (False, True):
        found = {str(where): len(settings(matching(cells[name, quick], where))) for where in orders}
        assert set(found.values()) <= {1}, found


@pytest.mark.parametrize("name", SWEEPS)
def test_each_slice_is_one_of_the_tasks(cells, name):
    tasks = registry.installed(registry.TASKS)
    for one in PACKS[name].pack.expect:
        for where in one.clauses if one.slice else ():
            for row in matching(cells[name, False], where):
                task = load(tasks[row["task"]])(row["T"], **row["task_options"])
                assert one.slice in task.slice_names


@pytest.mark.parametrize("name", SWEEPS)
def test_every_cell_is_judged_or_the_control_and_has_two_layers_and_one_thread(cells, name):
    pack = PACKS[name].pack
    clauses = [where for one in pack.expect for where in one.clauses] + ([pack.control] if pack.control else [])
    used = {row["cell"] for where in clauses for row in matching(cells[name, False], where)}
    assert used == {row["cell"] for row in cells[name, False]}
    assert {(row["n_layers"], row["threads"], row["embedding_std"]) for row in cells[name, False]} == {(2, 1, 0.02)}

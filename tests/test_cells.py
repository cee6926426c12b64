import json
import tomllib
from dataclasses import replace

import pytest
from catalogues import catalogue
from hypothesis import given
from hypothesis import strategies as st

from attnbench.catalogue import Described, variant_key
from attnbench.cells import Cell, _labelled, expand, repeated
from attnbench.sweep import VariantUse, validate

LEAST = {"variant": "full", "T": 64, "d_model": 64}


def cells_of(tables, *, context="torch 2", **more) -> list[Cell]:
    described = catalogue(tables, **more)
    return expand(validate(tables, "s.toml", described), described, context)


def cells(text: str, **more) -> list[Cell]:
    return cells_of(tomllib.loads(text), **more)


def only_cell(grid=(), **tables) -> Cell:
    """The one cell of a sweep with one grid."""
    (cell,) = cells_of({"grid": [LEAST | dict(grid)]} | tables)
    return cell


def ids(found: list[Cell]) -> set[str]:
    return {cell.id for cell in found}


# Expansion


def test_lists_are_crossed_and_grids_are_united():
    found = cells("""
    [[grid]]
    variant = ["full", "window"]
    T = [64, 128]
    d_model = [32, 64]
    [[grid]]
    variant = "linear"
    T = [64, 128, 256]
    d_model = 32
    """)
    assert len(found) == len(ids(found)) == 2 * 2 * 2 + 3
    assert [cell.variant for cell in found[8:]] == ["linear"] * 3


def test_defaults_are_those_of_the_manual():
    cell = only_cell()
    assert (cell.role, cell.level, cell.phase) == ("causal", "layer", "forward")
    assert (cell.B, cell.S, cell.max_T, cell.n_heads, cell.seed) == (1, 64, 64, 4, 0)
    assert (cell.dtype, cell.device, cell.threads, cell.measures) == ("float32", "cpu", 1, ("time",))


def test_a_model_has_layers_a_feed_forward_and_positions_and_a_layer_has_none():
    model = only_cell({"level": "model"})
    assert (model.n_layers, model.d_ff, model.embedding_std, model.positions) == (2, 256, 0.02, "learned")
    assert only_cell({"level": "model", "variant": "linear"}).positions == "none"
    assert only_cell({"level": "model", "positions": "sinusoidal"}).positions == "sinusoidal"
    assert only_cell({"level": "model", "d_ff": 0}).d_ff == 0
    block = only_cell({"level": "block"})
    assert (block.n_layers, block.d_ff, block.embedding_std, block.positions) == (None, 256, None, None)
    layer = only_cell({"n_layers": 3, "d_ff": 8, "embedding_std": 1.0, "positions": "none"})
    assert layer == only_cell()


STACK = [["window", {"name": "linear", "eps": 1e-3}]]


def test_a_stack_names_its_variants_and_its_options_by_layer():
    stack = only_cell({"variant": STACK, "level": "model"}, options={"window": {"window": 8}})
    assert stack.variant == stack.row()["variant"] == "window+linear"
    assert stack.options == {"0.window": 8, "1.kind": "elu", "1.eps": 1e-3, "1.n_features": 16}
    assert stack.positions == "learned"
    assert only_cell({"variant": [["linear", "linear"]], "level": "model"}).positions == "none"


def test_a_stack_of_one_is_that_variant():
    assert only_cell({"variant": [["window"]], "level": "model"}) == only_cell({"variant": "window", "level": "model"})


def test_the_order_of_a_stack_is_part_of_what_it_is():
    one, other = cells(
        '[[grid]]\nvariant = [["window", "full"], ["full", "window"]]\nT = 8\nd_model = 8\nlevel = "model"'
    )
    assert one.id != other.id
    assert [one.label, other.label] == ["window+full", "full+window"]


def test_points_with_the_effective_settings_of_an_earlier_one_are_told():
    tables = tomllib.loads("""
    [[grid]]
    variant = ["window", { name = "window", window = 64 }, "full"]
    T = [8, 16]
    d_model = 8
    [[grid]]
    measure = ["time", "memory"]
    variant = "full"
    T = 8
    d_model = 8
    """)
    described = catalogue(tables)
    again = repeated(validate(tables, "s.toml", described), described, "torch 2")
    assert [(cell.parts, cell.T) for cell in again] == [((VariantUse("window", {"window": 64}),), T) for T in (8, 16)]


def test_an_accuracy_cell_is_a_model_and_knows_no_phase():
    tables = {"defaults": {"level": "layer", "phase": "forward", "B": 7}, "train": {"batch_size": 16}}
    cell = only_cell({"measure": "accuracy", "task": "distance"}, **tables)
    assert (cell.level, cell.phase, cell.B) == ("model", None, 16)
    assert (cell.task, cell.task_options, cell.measures) == ("distance", {"n_slots": 4}, ("accuracy",))


def test_a_task_of_the_defaults_is_only_for_accuracy():
    cell = only_cell(defaults={"task": "distance"})
    assert (cell.task, cell.task_options) == (None, None)


def test_the_nearer_setting_wins():
    tables = {"defaults": {"B": 2, "threads": 2}}
    cell = only_cell({"B": 3}, **tables)
    assert (cell.B, cell.threads, cell.n_heads) == (3, 2, 4)
    options = {"window": {"window": 16}}
    assert only_cell({"variant": "window"}, options=options).options == {"window": 16}
    assert only_cell({"variant": {"name": "window", "window": 8}}, options=options).options == {"window": 8}


def test_heads_are_counted_or_measured():
    assert only_cell({"d_head": 8}).n_heads == 8
    assert only_cell({"d_head": 8}, defaults={"n_heads": 2}).n_heads == 8
    assert only_cell({"n_heads": 2}, defaults={"d_head": 8}).n_heads == 2


def test_a_device_left_open_is_the_best_that_there_is():
    tables = {"grid": [LEAST | {"device": "auto"}]}
    assert [cell.device for cell in cells_of(tables)] == ["cpu"]
    assert [cell.device for cell in cells_of(tables, devices={"cpu": "a", "cuda": "b"})] == ["cuda"]


def test_an_id_names_the_kind_of_the_device_it_runs_on_and_of_no_other():
    def ids(device, **kinds):
        return [cell.id for cell in cells_of({"grid": [LEAST | {"device": device}]}, devices=kinds)]

    on_gpu = ids("cuda", cpu="A", cuda="NVIDIA H200")
    assert on_gpu == ids("cuda", cpu="B", cuda="NVIDIA H200") == ids("auto", cpu="A", cuda="NVIDIA H200")
    assert on_gpu != ids("cuda", cpu="A", cuda="NVIDIA A100")
    assert ids("cpu", cpu="A") == ids("cpu", cpu="A", cuda="NVIDIA H200") != ids("cpu", cpu="B")
    (cell,) = cells_of({"grid": [LEAST | {"device": "cuda"}]}, devices={"cpu": "A", "cuda": "NVIDIA H200"})
    assert (cell.device, cell.row()["device_name"]) == ("cuda", "NVIDIA H200")


def test_a_repeated_value_gives_one_cell():
    assert len(cells_of({"grid": [LEAST | {"T": [64, 64, 64.0]}, LEAST]})) == 1


def test_a_cell_of_two_grids_is_asked_for_the_measures_of_both():
    grids = [LEAST | {"measure": ["memory", "time", "memory"]}, LEAST | {"measure": "time", "T": [64, 128]}]
    assert [(cell.T, cell.measures) for cell in cells_of({"grid": grids})] == [
        (64, ("memory", "time")),
        (128, ("time",)),
    ]


def test_time_and_accuracy_of_one_variant_are_cells_apart():
    accuracy = LEAST | {"measure": "accuracy", "task": "distance"}
    found = cells_of({"grid": [LEAST | {"level": "model"}, accuracy]})
    assert len(ids(found)) == 2


# Ids


def test_an_id_is_short_plain_and_lasting():
    assert only_cell().id == only_cell().id
    assert len(only_cell().id) == 12
    assert int(only_cell().id, 16) >= 0


@given(st.permutations(["variant", "T", "d_model", "measure", "seed"]))
def test_the_order_of_keys_and_the_way_to_write_a_number_do_not_change_an_id(order):
    grid = {"variant": ["full", "window"], "T": [64, 128], "d_model": 64.0, "measure": "time", "seed": [0, 1.0]}
    rearranged = {key: grid[key] for key in order} | {"T": [128.0, 64]}
    assert ids(cells_of({"grid": [rearranged]})) == ids(cells_of({"grid": [grid]}))


@pytest.mark.parametrize(
    "grid",
    [
        {"n_heads": 4},
        {"d_head": 16},
        {"max_T": 64},
        {"S": 64},
        {"B": 1.0},
        {"device": "auto"},
        {"dtype": "float32"},
        {"variant": {"name": "full"}},
        {"n_layers": 7},
        {"measure": ["memory"]},
    ],
)
def test_saying_what_is_in_force_anyway_does_not_change_an_id(grid):
    assert only_cell(grid).id == only_cell().id


def test_options_in_force_count_and_not_where_they_were_given():
    named = only_cell({"variant": {"name": "window", "window": 16}}).id
    assert only_cell({"variant": "window"}, options={"window": {"window": 16}}).id == named
    assert only_cell({"variant": "window"}).id == only_cell({"variant": {"name": "window", "window": 64}}).id != named


@pytest.mark.parametrize(
    "grid",
    [
        {"variant": "fused"},
        {"T": 65},
        {"d_model": 128},
        {"n_heads": 2},
        {"max_T": 128},
        {"B": 2},
        {"role": "bidirectional"},
        {"level": "block"},
        {"level": "core"},
        {"level": "model"},
        {"phase": "forward_backward"},
        {"dtype": "float64"},
        {"threads": 2},
        {"seed": 1},
        {"level": "core", "S": 32},
    ],
)
def test_every_setting_that_decides_the_numbers_is_in_the_id(grid):
    assert only_cell(grid).id != only_cell().id
    assert only_cell({"level": "model", "n_layers": 3}).id != only_cell({"level": "model"}).id


def test_sources_and_machine_are_in_the_id():
    tables = {"grid": [LEAST]}
    key, (before,) = variant_key("full", {}), cells_of(tables)
    edited = Described(positions="learned", digest="another source")
    assert ids(cells_of(tables, variants={key: edited})) != {before.id}
    assert ids(cells_of(tables, digests={"cost": "other modules", "accuracy": ""})) != {before.id}
    assert ids(cells_of(tables, digests={"cost": "cost modules", "accuracy": "other modules"})) == {before.id}
    assert ids(cells_of(tables, context="torch 3")) != {before.id}
    tables = {"grid": [LEAST | {"measure": "accuracy", "task": "distance"}]}
    (before,) = cells_of(tables)
    assert ids(cells_of(tables, digests={"cost": "other modules", "accuracy": "accuracy modules"})) == {before.id}
    assert ids(cells_of(tables, digests={"cost": "cost modules", "accuracy": "other modules"})) != {before.id}


def test_settings_of_timing_count_for_time_and_those_of_training_for_accuracy():
    accuracy = {"measure": "accuracy", "task": "distance"}
    assert only_cell(timing={"max_s": 9}).id != only_cell().id
    assert only_cell(train={"steps": 9}).id == only_cell().id
    assert only_cell(accuracy, train={"lr": 0.5}).id != only_cell(accuracy).id
    assert only_cell(accuracy, timing={"max_s": 9}).id == only_cell(accuracy).id
    assert only_cell(accuracy, tasks={"distance": {"n_slots": 2}}).id != only_cell(accuracy).id


def test_more_visits_of_a_cell_join_the_earlier_ones():
    assert only_cell(timing={"visits": 3, "repeats": 5}).id == only_cell().id


def test_limits_and_words_do_not_change_an_id():
    tables = {"timeout": "5s", "memory_limit": "1GiB", "question": "why?", "baseline": "full"}
    assert only_cell(**tables).id == only_cell().id


def test_a_longer_grid_keeps_the_cells_it_had():
    grid = {"variant": ["full", "window"], "T": [64, 128], "d_model": 64, "seed": [0, 1]}
    before = ids(cells_of({"grid": [grid]}))
    after = ids(cells_of({"grid": [grid | {"T": [256, 64.0, 128]}]}))
    assert len(before) == 8
    assert before < after
    assert len(after - before) == 4


# Labels and rows


def test_a_label_names_the_options_that_tell_two_uses_apart():
    uses = ["full", "window", {"name": "window", "window": 8}, {"name": "linear", "kind": "relu"}]
    found = cells_of({"grid": [LEAST | {"variant": uses}]})
    assert [cell.label for cell in found] == ["full", "window[window=64]", "window[window=8]", "linear"]


def test_a_label_is_one_line_whatever_an_option_holds():
    uses = [{"name": "window", "window": 8}, "window"]
    (first, _) = cells_of({"grid": [LEAST | {"variant": uses}]})
    odd = replace(first, parts=(VariantUse("window", {"window": "a\nb"}),))
    assert _labelled([first, odd])[1].label == r"window[window=a\u000ab]"


def test_an_option_without_a_value_is_not_part_of_a_label():
    (first,) = cells_of({"grid": [LEAST]})
    uses = [replace(first, parts=(VariantUse("full", {"n_kv_heads": n}),)) for n in (None, 1)]
    assert [cell.label for cell in _labelled(uses)] == ["full", "full[n_kv_heads=1]"]


def test_a_label_leaves_out_the_options_that_all_uses_share():
    uses = [{"name": "linear", "kind": kind, "n_features": 32} for kind in ("elu", "relu")]
    assert [cell.label for cell in cells_of({"grid": [LEAST | {"variant": uses}]})] == [
        "linear[kind=elu]",
        "linear[kind=relu]",
    ]


def test_a_label_does_not_change_the_id():
    cell = only_cell()
    assert replace(cell, label="other").id == cell.id
    alone = only_cell({"variant": "window"})
    both = cells_of({"grid": [LEAST | {"variant": ["window", {"name": "window", "window": 8}]}]})
    assert alone.id in ids(both)


def test_a_row_goes_through_json_unchanged_and_opens_with_the_id():
    cell = only_cell({"variant": "linear", "measure": ["time", "memory"]})
    row = cell.row()
    assert next(iter(row)) == "cell"
    assert json.loads(json.dumps(row)) == row
    assert row["cell"] == cell.id
    assert row["measures"] == ["time", "memory"]

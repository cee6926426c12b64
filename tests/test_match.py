"""Variants at sizes that make them like another in parameters, operations or decoding state."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_rows import cell, record, run_of, tiny_cell
from runs import write_sweep

import attnbench
from attnbench.errors import RequestError
from attnbench.execute.build import build_module, build_workload, mixer_factory
from attnbench.execute.match import TOLERANCE, WIDEST, _turned, matched
from attnbench.execute.phases import state_bytes
from attnbench.registry import TASKS, VARIANTS, installed, load
from attnbench.report import of_runs
from attnbench.sweep import VariantUse

GRID = '[[grid]]\nvariant = ["full", "lstm", "hyena"]\nT = 16\nlevel = "model"\nmeasure = "memory"\n'
FUSED = (VariantUse("fused"),)
MODEL = {"level": "model", "n_layers": 2, "d_ff": 64, "positions": "none", "embedding_std": 0.02}


def a_cell(variant="lstm", match="params", options=None, **changes):
    parts = {"parts": (VariantUse(variant, options or {}),), "d_model": 64, "n_heads": 4, "match": match}
    return tiny_cell(**parts | changes)


def solved(*cells):
    return matched(cells, FUSED, installed(VARIANTS), installed(TASKS))


def module_of(found, device="meta"):
    sources = installed(VARIANTS)
    built = replace(found.built, device=device, B=1)
    return built, build_module(built, mixer_factory(built, [load(sources[part.name]) for part in built.parts]))


def n_params(found):
    return sum(parameter.numel() for parameter in module_of(found, "cpu")[1].parameters())


def read_state(found):
    return state_bytes(build_workload(*module_of(found, "cpu")).prefill()[1])


# Of a sweep


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Every way but operations."""
    folder = tmp_path_factory.mktemp("matched")
    grid = f'{GRID}match = ["none", "params", "state"]\n'
    return attnbench.run(write_sweep(folder, grid, 'match_to = "full"'), out=folder / "run")


def rows(run, match):
    frame = run.frame[run.frame["match"] == match]
    return frame.set_index("variant")


def test_each_row_tells_what_gives_it_the_parameters_of_the_reference(run):
    frame = rows(run, "params").drop(index="hyena")  # its filters alone have more than all of full
    assert set(frame["status"]) == {"ok"}
    assert set(frame["d_model"]) == {8}  # by which they are compared
    assert set(frame["d_ff"]) == {32}
    assert not (frame["d_used"] % frame["n_heads"]).any()
    off = (frame["n_params_body"] / frame["n_params_body"]["full"] - 1).abs()
    assert frame["match_error"].to_list() == pytest.approx(off.to_list())
    assert off.max() <= TOLERANCE
    changes = {name: json.loads(text) for name, text in frame["matched"].items()}
    assert changes["full"] == {}
    assert changes["lstm"]
    assert {name: made.get("d_model", 8) for name, made in changes.items()} == frame["d_used"].to_dict()


def test_what_is_not_matched_is_as_asked(run):
    frame = rows(run, "none")
    assert set(frame["d_used"]) == {8}
    assert frame[["matched", "match_error"]].isna().all(axis=None)


def test_what_cannot_be_matched_is_unsupported_and_says_how_near_it_came(run):
    frame = rows(run, "state")
    assert frame["status"].to_dict() == {"full": "ok", "lstm": "unsupported", "hyena": "unsupported"}
    assert "comes no nearer than 1,024 of 2,064 bytes of state, with d_model = 64" in frame["reason"]["lstm"]
    assert "hyena keeps no state" in frame["reason"]["hyena"]


def test_the_report_tells_what_was_changed_in_cells_of_each_way_apart(run):
    of_runs([run.path])
    text = (run.path / "tables" / "cost.csv").read_text()
    assert "match,matched,match_error" in text.splitlines()[0]
    assert {path.name for path in (run.path / "tables").glob("memory*.csv")} == {
        f"memory_match-{way}.csv" for way in ("none", "params", "state")
    }


def test_the_report_tells_nothing_of_matching_where_nobody_asked(tmp_path):
    folder = run_of(tmp_path, [cell("a")], [record("a", n_params=3)])
    of_runs([folder])
    assert "match" not in (folder / "tables" / "cost.csv").read_text()
    assert set(attnbench.read(folder)["match"]) == {"none"}  # of runs from before there was a choice


def test_a_reference_that_is_not_measured_is_refused(tmp_path):
    sweep = write_sweep(tmp_path, GRID + 'match = "params"\n', 'match_to = "ful"')
    with pytest.raises(RequestError, match=r'match_to: "ful" is not among the variants; did you mean "full"\?'):
        attnbench.run(sweep, out=tmp_path / "run")


def test_a_reference_that_nobody_is_matched_to_is_refused(tmp_path):
    with pytest.raises(RequestError, match="match_to: has no effect without match = "):
        attnbench.run(write_sweep(tmp_path, GRID, 'match_to = "full"'), out=tmp_path / "run")


# Of a cell


def test_no_other_width_comes_nearer_to_the_parameters_of_the_reference():
    ((found, why),) = solved(a_cell(n_heads=1))
    aim = 4 * 64 * 64
    n = {d: 8 * d * d + 8 * d for d in range(2, 129, 2)}  # torch's LSTM: four gates, two matrices and two biases each
    even = min(n, key=lambda d: abs(n[d] - aim))
    assert abs(n[even] - aim) / aim > TOLERANCE  # so odd ones are tried
    assert why is None
    assert found.matched == {"d_model": 45}
    assert found.match_error == abs(n_params(found) - aim) / aim


def test_where_widths_are_too_coarse_the_feed_forward_network_takes_the_remainder():
    ((found, why),) = solved(a_cell(**MODEL | {"d_model": 16, "n_heads": 8}))
    assert why is None
    assert set(found.matched) >= {"d_ff"}
    assert found.match_error <= TOLERANCE


@pytest.mark.parametrize("variant", ["linear", "mamba2", "window", "fused"])
def test_a_state_is_that_of_the_reference_once_the_prompt_is_read(variant):
    options = {"window": {"window": 4}, "mamba2": {"d_state": 128}}.get(variant, {})
    ((found, why),) = solved(
        a_cell(variant, "state", options, **MODEL | {"T": 24, "max_T": 24, "d_model": 16, "n_heads": 2})
    )
    aim = read_state(replace(found, parts=FUSED, matched=None))
    assert why is None
    assert abs(read_state(found) / aim - 1) == pytest.approx(found.match_error)
    assert found.match_error <= TOLERANCE
    assert set(found.matched) == {"linear": {"d_model", "d_ff"}, "fused": set()}.get(variant, {*options})


def test_operations_are_those_of_the_task_s_own_vocabulary():
    task = {
        "task": "mqar",
        "task_options": {"n_pairs": 2, "vocab_size": 4096},
        "measures": ("accuracy",),
        "phase": None,
    }
    narrow, wide = ({**task, "task_options": {"n_pairs": 2, "vocab_size": n}} for n in (16, 4096))
    (small, _), (large, _) = solved(*(a_cell(match="flops", **MODEL | more | {"T": 16}) for more in (narrow, wide)))
    assert small.matched != large.matched  # the head weighs more, so that a change of width does too


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"level": "core"}, "a core has no parameters of its own"),
        ({"level": "core", "match": "state"}, "a core keeps no state"),
        ({"role": "bidirectional", "d_model": 65, "n_heads": 1}, "65"),
        ({"variant": "none", "match": "state"}, "comes no nearer than 0 of 6,152 bytes of state"),
        ({"d_model": 64, "n_heads": 32}, "comes no nearer than"),
        ({"role": "bidirectional", "match": "state"}, "keeps no state"),
    ],
)
def test_what_cannot_be_matched_stays_as_it_is_and_says_why(changes, why):
    found = a_cell(**changes)
    ((same, reason),) = solved(found)
    assert same == found
    assert f"cannot be matched in {found.match}: " in reason
    assert why in reason


def test_what_runs_both_ways_is_matched_at_a_width_that_it_can_halve():
    ((found, why),) = solved(a_cell("gru", role="bidirectional", d_model=66, n_heads=1))
    assert why is None
    assert found.built.d_model % 2 == 0
    assert found.built.d_model < 66


def test_seeds_and_measures_of_one_cell_are_matched_alike():
    cells = [a_cell(n_heads=1, seed=seed, measures=(measure,)) for seed in (0, 3) for measure in ("time", "memory")]
    found = [one for one, _ in solved(*cells)]
    assert [(one.seed, one.measures) for one in found] == [(one.seed, one.measures) for one in cells]
    assert [one.matched for one in found] == [{"d_model": 45}] * 4


def test_a_changed_size_is_a_cell_of_its_own_and_the_asked_one_is_not():
    plain = a_cell(match="none")
    assert plain.built == plain
    assert replace(plain, match="params", matched={}).id != plain.id
    ids = {a_cell(matched={"d_model": d}, match_error=e).id for d in (48, 52) for e in (0.0, 0.01)}
    assert len(ids) == 2
    changed = a_cell("window", options={"window": 8}, d_ff=9, matched={"d_model": 48, "d_ff": 7, "window": 3}).built
    assert (changed.d_model, changed.d_ff, changed.options) == (48, 7, {"window": 3})


@given(aim=st.integers(1, 5000), asked=st.integers(1, 40), power=st.sampled_from([1, 2]))
def test_a_knob_stops_at_the_value_nearest_to_the_aim(aim, asked, power):
    start = a_cell(d_model=asked, n_heads=1, matched={}, match_error=1.0)
    values = range(1, WIDEST * asked + 1)
    found = _turned(start, "d_model", values, lambda built: built.d_model**power, aim)
    assert abs(found.built.d_model**power - aim) == min(abs(value**power - aim) for value in values)


def test_a_knob_that_changes_nothing_any_more_is_turned_no_farther():
    start = a_cell("window", options={"window": 4}, matched={}, match_error=1.0)
    assert _turned(start, "window", range(1, 33), lambda built: min(built.options["window"], 7), 7.1).matched == {
        "window": 7
    }

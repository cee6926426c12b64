"""From packs and rows to verdicts: every branch of the rules, and what a bad pack file is told."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnbench.analyse.seeds import Interval, difference, interval
from attnbench.claims.conduct import written
from attnbench.claims.pack import Expectation, Pack, chosen, matching, read
from attnbench.claims.verdict import (
    Finding,
    control_failed,
    guessed,
    judged,
    settings,
    state_of,
    verdict,
)
from attnbench.errors import RequestError
from attnbench.settings import Settings

HEAD = 'claim = "c"\nsource = "s"\nshrunk = "t"\n'
SWEEP = '[sweep]\n[[sweep.grid]]\nvariant = "fused"\nT = 8\nd_model = 8\n'
EXPECT = '[[expect]]\nwhere = { variant = "fused" }\nat_least = 0.9\n'


def row(variant, accuracy, seed=0, **more):
    facts = {"label": variant, "options": '{"window": 8}', "task_options": '{"n_pairs": 4}', "T": 64, "d_model": 32}
    facts |= {"status": "ok", "chance": 0.1, "floor": 0.25, "slices": {"16": {"accuracy": accuracy / 2, "n": 9}}}
    return {"variant": variant, "seed": seed, "accuracy": accuracy, **facts, **more}


def rows(variant, *accuracies, **more):
    return [row(variant, accuracy, seed, **more) for seed, accuracy in enumerate(accuracies)]


def states(expectation, made):
    return [finding.state for finding in judged(Expectation(**expectation), made)]


# Bands


def test_a_band_holds_where_the_whole_interval_lies_in_it():
    sure, wide = rows("fused", 0.99, 0.98, 0.99), rows("fused", 0.99, 0.2, 0.99)
    assert states({"where": {}, "at_least": 0.9}, sure) == ["holds"]
    assert states({"where": {}, "at_most": 0.9}, sure) == ["contradicted"]
    assert states({"where": {}, "at_least": 0.9}, wide) == ["open"]
    assert states({"where": {}, "at_most": 0.9}, wide) == ["open"]


def test_the_floor_is_the_larger_of_chance_and_floor():
    assert states({"where": {}, "near_floor": 0.1}, rows("lstm", 0.3, 0.3, 0.3)) == ["holds"]
    assert states({"where": {}, "near_floor": 0.0}, rows("lstm", 0.3, 0.3, 0.3)) == ["contradicted"]
    assert states({"where": {}, "near_floor": 0.1, "at_most": 0.2}, rows("lstm", 0.3, 0.3, 0.3)) == ["contradicted"]


def test_each_setting_is_judged_on_its_own_and_named_by_what_tells_it_apart():
    made = [*rows("fused", 0.9, 0.9, d_model=32), *rows("fused", 0.5, 0.5, d_model=64)]
    found = judged(Expectation(where={"variant": "fused"}, at_least=0.8), made)
    assert [(one.what, one.state) for one in found] == [
        ("fused, d_model 32", "holds"),
        ("fused, d_model 64", "contradicted"),
    ]


def test_a_slice_and_another_column_are_read_where_they_stand():
    made = rows("fused", 0.8, 0.8, sequence_accuracy=0.3)
    (sliced,) = judged(Expectation(where={}, slice="16", at_most=0.41), made)
    (other,) = judged(Expectation(where={}, value="sequence_accuracy", at_most=0.31), made)
    assert (sliced.what, sliced.state) == ("fused, slice 16", "holds")
    assert (other.what, other.measured) == ("fused, sequence_accuracy", "0.300 ± 0.000 (2 seeds)")
    assert states({"where": {}, "slice": "99", "at_most": 0.5}, made) == ["missing"]


def test_one_seed_has_no_interval_and_contradicts_by_a_clear_miss_alone():
    assert [state_of(interval([x]), 0.9, None) for x in (0.9, 0.85, 0.79)] == ["holds", "open", "contradicted"]
    assert [state_of(interval([x]), None, 0.3) for x in (0.3, 0.35, 0.41)] == ["holds", "open", "contradicted"]


def test_a_cell_without_a_number_makes_its_setting_missing():
    made = [*rows("fused", 0.9, 0.9), row("fused", math.nan, 2, status="timeout")]
    (found,) = judged(Expectation(where={}, at_least=0.5), made)
    assert (found.state, found.measured) == ("missing", "2 of 3 cells: 1 timeout")
    assert states({"where": {"variant": "gru"}, "at_least": 0.5}, made) == ["missing"]


def test_a_number_of_a_failed_cell_does_not_count():
    assert states({"where": {}, "at_least": 0.5}, [row("fused", 0.9, status="failed")]) == ["missing"]


# Orders


def test_an_order_holds_where_the_difference_is_surely_above_its_margin():
    high, low = rows("fused", 0.9, 0.91, 0.9), rows("lstm", 0.3, 0.31, 0.3)
    order = {"order": [{"variant": "fused"}, {"variant": "lstm"}]}
    assert states(order, high + low) == ["holds"]
    assert states(order | {"by": 0.8}, high + low) == ["contradicted"]
    assert states({"order": [{"variant": "lstm"}, {"variant": "fused"}]}, high + low) == ["contradicted"]
    assert states(order, rows("fused", 0.9, 0.2, 0.9) + low) == ["open"]


def test_an_order_of_three_is_two_findings_and_one_of_several_settings_is_none():
    made = [*rows("a", 0.9, 0.9), *rows("b", 0.5, 0.5), *rows("c", 0.1, 0.1)]
    order = {"order": [{"variant": "a"}, {"variant": "b"}, {"variant": "c"}]}
    assert states(order, made) == ["holds", "holds"]
    assert states(order, [*made, *rows("b", 0.4, 0.4, T=128)]) == ["missing", "missing"]
    assert all(finding.is_order for finding in judged(Expectation(**order), made))


# Intervals

values = st.lists(st.floats(0, 1), min_size=2, max_size=6)


@given(values, st.floats(-1, 1))
def test_an_interval_encloses_its_mean_and_moves_with_it(sample, by):
    found, moved = interval(sample), interval([x + by for x in sample])
    assert found.low <= found.mean <= found.high
    assert moved.low == pytest.approx(found.low + by, abs=1e-6)


@given(values, values)
def test_a_difference_turns_round_with_its_sides(a, b):
    one, other = difference(a, b), difference(b, a)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-9)


def test_intervals_are_students():
    found = interval([0.0, 1.0, 2.0])
    assert found.high - found.mean == pytest.approx(4.3027 / 3**0.5, rel=1e-4)
    assert difference([0.5, 0.5], [0.2, 0.2])[1:3] == pytest.approx((0.3, 0.3))
    assert math.isnan(difference([0.5], [0.2, 0.1]).low)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_no_interval_both_holds_and_contradicts(a, b, limit):
    found = Interval((a + b) / 2, min(a, b), max(a, b), 3)
    both = {state_of(found, limit, None), state_of(found, None, limit)}
    assert both in ({"holds", "contradicted"}, {"open"}, {"holds", "open"}, {"holds"})


# The verdict


def finding(state, is_order=False):
    return Finding("x", "", "", state, is_order)


@pytest.mark.parametrize(
    ("bands", "orders", "told"),
    [
        (["holds"], ["holds"], "reproduced"),
        (["holds"], [], "reproduced"),
        (["open"], ["holds"], "trend reproduced"),
        (["contradicted"], ["holds"], "trend reproduced"),
        (["contradicted"], [], "refuted"),
        (["holds"], ["contradicted"], "refuted"),
        (["contradicted"], ["holds", "open"], "refuted"),
        (["holds"], ["open"], "not resolvable at this size"),
        (["open"], [], "not resolvable at this size"),
        (["missing", "contradicted"], ["holds"], "not resolvable at this size"),
        ([], [], "not resolvable at this size"),
    ],
)
def test_the_verdict_follows_from_the_findings(bands, orders, told):
    assert verdict([*map(finding, bands), *(finding(one, True) for one in orders)]) == told


def test_a_control_at_its_floor_and_cells_to_run_have_the_last_word():
    assert verdict([finding("holds")], controlled=False) == "not resolvable at this size"
    assert verdict([finding("holds")], pending=True) == "not finished"


def test_a_control_is_at_its_floor_when_one_of_its_settings_is():
    made = [*rows("fused", 0.9, 0.9, T=64), *rows("fused", 0.28, 0.29, T=128), *rows("lstm", 0.1)]
    assert control_failed({"variant": "fused"}, made) == "the control is at its floor"
    assert control_failed({"variant": "fused", "T": 64}, made) == ""
    assert control_failed(None, made) == ""


@given(st.permutations([0.125, 0.125, None]), st.sampled_from(["timeout", "oom", "diverged"]))
def test_a_seed_that_failed_neither_hides_the_floor_nor_counts_as_learnt(scores, status):
    lost = [row("fused", 0.0, seed) | {"status": status, "accuracy": None, "floor": None} for seed in range(3)]
    made = [one if score is None else row("fused", score) for one, score in zip(lost, scores, strict=True)]
    assert control_failed({"variant": "fused"}, made) == "the control is at its floor"
    assert control_failed({"variant": "fused"}, lost) == "the control has no score"


def test_an_order_of_two_floors_says_nothing():
    made = [*rows("a", 0.15, 0.15, 0.16, floor=0.125), *rows("b", 0.03, 0.03, 0.04, chance=0.01, floor=0.04)]
    order = {"order": [{"variant": "a"}, {"variant": "b"}], "by": 0.05}
    assert states(order, made) == ["open"]
    learnt = [*rows("a", 0.35, 0.35, 0.36, floor=0.125), *made[3:]]
    assert states(order, learnt) == ["holds"]


def test_seeds_of_models_made_alike_in_other_things_are_not_averaged():
    made = [*rows("gru", 0.9, 0.9, match="none"), *rows("gru", 0.1, 0.1, match="params")]
    assert [len(group) for group in settings(made)] == [2, 2]


def test_a_baseline_is_judged_without_an_interval():
    expectation = Expectation(baseline="majority", at_least=0.15, at_most=0.19)
    assert [guessed(expectation, {"majority": x}).state for x in (0.16, 0.2)] == ["holds", "contradicted"]
    assert guessed(expectation, {"bag": 0.1}).state == "missing"


# Clauses


def test_a_clause_finds_columns_options_and_options_of_the_task():
    made = [row("window", 0.1, label="window[window=8]")]
    for where in ({"variant": "window[window=8]"}, {"window": 8}, {"n_pairs": 4}, {"T": 64, "variant": "window"}):
        assert matching(made, where) == made
        assert matching([made[0] | {"options": {"window": 8}, "task_options": {"n_pairs": 4}}], where)
    assert matching(made, {"window": 16}) == []


# Files


def test_a_sound_pack_is_read(tmp_path):
    file = tmp_path / "one.toml"
    file.write_text(HEAD + SWEEP + EXPECT)
    assert isinstance(read(file), Settings)
    assert [found.name for found in chosen([], tmp_path)] == ["one"]
    assert chosen([str(file), "one"], tmp_path)[0].pack == Pack.model_validate(read(file).model_dump())


BAD = [
    (SWEEP + EXPECT, ["claim: missing", "source: missing", "shrunk: missing"]),
    (HEAD + EXPECT, ["expected one of sweep, baselines and theory"]),
    (HEAD + 'theory = "C99"', ['theory: unknown statement "C99"']),
    (HEAD + 'theory = "C7"\n' + EXPECT, ["a statement of theory brings its own"]),
    (HEAD + SWEEP, ["expected at least one [[expect]]"]),
    (HEAD + "colour = 1\n" + SWEEP + EXPECT, ["colour: unknown key"]),
    (HEAD + 'quick = ["seed=0"]\ntheory = "C7"', ["quick and control go with a sweep"]),
    (HEAD + SWEEP + "[[expect]]\nat_least = 1", ["expect[0]: expected one of where, order and baseline"]),
    (HEAD + SWEEP + "[[expect]]\nwhere = {}", ["expect[0]: expected at_least, at_most or near_floor"]),
    (HEAD + SWEEP + "[[expect]]\nwhere = {}\nat_least = 1\nby = 1", ["only an order takes by"]),
    (HEAD + SWEEP + "[[expect]]\norder = [{}]", ["expect[0].order: expected a list of 2 or more"]),
    (HEAD + SWEEP + "[[expect]]\norder = [{}, {}]\nat_least = 1", ["an order takes by"]),
    (HEAD + SWEEP + '[[expect]]\nwhere = {}\nat_least = "x"', ['expect[0].at_least: expected a number, got "x"']),
    (HEAD + SWEEP + '[[expect]]\nbaseline = "majority"\nat_least = 1', ["baseline goes with [baselines]"]),
    ("claim = ", ["not valid TOML"]),
]


@pytest.mark.parametrize(("text", "told"), BAD)
def test_a_bad_pack_is_told_line_by_line_with_file_and_key(tmp_path, text, told):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(RequestError) as caught:
        read(file)
    lines = caught.value.mistakes
    assert len(lines) == len(told)
    for line, part in zip(lines, told, strict=True):
        assert line.startswith(f"{file}: ")
        assert part in line
        assert "\n" not in line


def test_unknown_packs_and_an_empty_folder_are_told(tmp_path):
    with pytest.raises(RequestError, match="no claim packs here"):
        chosen([], tmp_path)
    (tmp_path / "recall.toml").write_text(HEAD + SWEEP + EXPECT)
    with pytest.raises(RequestError) as caught:
        chosen(["recal", "nowhere.toml"], tmp_path)
    first, second = caught.value.mistakes
    assert first == 'unknown claim "recal"; did you mean "recall"?'
    assert second == "nowhere.toml: No such file or directory"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)  # a file holds no half of a surrogate pair
scalars = st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), texts)
trees = st.recursive(scalars, lambda x: st.lists(x, max_size=3) | st.dictionaries(texts, x, max_size=3), max_leaves=4)


@given(st.dictionaries(texts, trees, max_size=3))
def test_what_is_written_as_toml_is_read_again(tables):
    import tomllib

    assert json.dumps(tomllib.loads(written(tables))) == json.dumps(tables)

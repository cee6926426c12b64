"""Flips: pairs that are surely in one order under one way of matching and surely in the other under another."""

import math

import pytest
from frames import frame, scores, timed
from hypothesis import given
from hypothesis import strategies as st

from attnbench.analyse.flips import Flip, Ranking, Score, flips, rankings
from attnbench.analyse.points import ACCURACY, TIME
from attnbench.report.matching import sentence, tables


def cells(seeds=3, chance=0.1, **ways):
    """Accuracy cells: none={"a": 0.9, "b": 0.5} and the like; seeds lie 0.004 apart, or are given one by one."""
    rows = []
    for match, of_variants in ways.items():
        for label, accuracy in of_variants.items():
            values = accuracy if isinstance(accuracy, list) else [accuracy + 0.004 * seed for seed in range(seeds)]
            for seed, value in enumerate(values):
                (row,) = scores([label], sizes=[64], widths=[32], seeds=[seed])
                rows.append(row | {"accuracy": value, "match": match, "chance": chance, "floor": chance})
    return frame(rows)


def found(made, measure=ACCURACY, control="a"):
    return flips(rankings(made, measure, control), measure)


def test_a_pair_that_changes_places_is_a_flip():
    (flip,) = found(cells(none={"a": 0.9, "b": 0.5, "c": 0.2}, params={"a": 0.6, "b": 0.8, "c": 0.2}))
    assert (flip.first, flip.second, flip.ahead, flip.behind) == ("a", "b", ("none",), ("params",))
    assert (flip.d_model, flip.T) == (32, 64)


def test_several_ways_of_one_order_stand_together():
    one, other = {"a": 0.9, "b": 0.5}, {"a": 0.6, "b": 0.8}
    (flip,) = found(cells(none=one, params=other, flops=one, state=other))
    assert (flip.ahead, flip.behind) == (("none", "flops"), ("params", "state"))


@pytest.mark.parametrize(
    "made",
    [
        cells(none={"a": 0.9, "b": 0.5}, params={"a": 0.9, "b": 0.6}),  # the same order
        cells(none={"a": 0.9, "b": 0.5}, params={"a": 0.700, "b": 0.709}),  # too near
        cells(none={"a": 0.9, "b": 0.5}, params={"a": [0.2, 0.9, 0.3], "b": 0.8}),  # seeds too far apart
        cells(none={"a": 0.9, "b": 0.5}, params={"a": [0.6], "b": [0.8]}),  # one seed
        cells(none={"a": 0.9, "b": 0.5}, params={"a": 0.6, "b": [math.nan]}),  # nothing to compare
        cells(none={"a": 0.9, "b": 0.5}, params={"a": 0.1, "b": 0.8}, chance=0.2),  # the control is guessing
    ],
)
def test_a_tie_is_no_flip_nor_is_what_is_not_known(made):
    assert found(made) == []


@given(st.lists(st.tuples(*[st.floats(0, 1)] * 4, st.floats(0, 0.3)), min_size=2, max_size=4))
def test_a_flip_never_depends_on_which_way_or_variant_stands_first(values):
    def ranked(order):
        for name, (*of_way, reach) in zip(("none", "params", "flops", "state"), values, strict=False):
            made = [Score(label, x, x, x - reach, x + reach) for label, x in zip("abcd", of_way, strict=True)]
            yield Ranking({}, name, 32, 64, tuple(made[::order]), {})

    forth, back = flips([*ranked(1)], ACCURACY), flips([*ranked(-1)][::-1], ACCURACY)
    assert {_unordered(flip) for flip in forth} == {_unordered(flip) for flip in back}


def _unordered(flip: Flip):
    return frozenset([(flip.first, frozenset(flip.ahead)), (flip.second, frozenset(flip.behind))])


def test_a_time_flips_where_its_intervals_and_the_margin_allow():
    def both(slow, fast, spread):
        return frame(
            timed(label, 64, 8, time_s, spread=spread, match=match)
            for match, pair in (("none", (1.0, 2.0)), ("flops", (slow, fast)))
            for label, time_s in zip("ab", pair, strict=True)
        )

    assert [(flip.first, flip.behind) for flip in found(both(2.0, 1.0, 0.02), TIME)] == [("a", ("flops",))]
    assert found(both(1.02, 1.0, 0.001), TIME) == []
    assert found(both(1.2, 1.0, 0.3), TIME) == []


def test_without_a_second_way_there_is_nothing_to_rank():
    made = cells(none={"a": 0.9, "b": 0.5})
    assert rankings(made, ACCURACY, "a") == []
    assert tables(made, "a") == []
    assert sentence(made, ACCURACY, "a") == ""


def test_places_of_other_settings_are_not_compared():
    made = cells(none={"a": 0.9, "b": 0.5}, params={"a": 0.6, "b": 0.8})
    apart = made.assign(threads=[1 if way == "none" else 2 for way in made["match"]])
    assert rankings(apart, ACCURACY, "a") == []


def test_the_report_says_the_order_of_each_way_and_what_changes_places():
    made = cells(none={"a": 0.9, "b": 0.5, "c": 0.505}, params={"a": 0.6, "b": 0.8, "c": [math.nan]})
    made.loc[made["accuracy"].isna(), "status"] = "unsupported"
    order, flipped = tables(made, "a")
    assert list(order.shown["order"]) == ["a 0.904 > c 0.509 ~ b 0.504", "b 0.804 > a 0.604; c: unsupported"]
    assert list(order.data["variant"]) == ["a", "c", "b", "b", "a", "c"]
    assert flipped.shown.iloc[0].to_dict() == {
        "d_model": 32,
        "T": 64,
        "variant": "a",
        "other": "b",
        "ahead": "none",
        "behind": "params",
    }
    said = sentence(made, ACCURACY, "a")
    assert said == "a is ahead of b at the same width and behind it at equal parameters (d = 32, T = 64)."


def test_the_report_ranks_nothing_where_the_control_is_guessing():
    made = cells(none={"a": 0.1, "b": 0.5}, params={"a": 0.1, "b": 0.8}, chance=0.2)
    (order,) = tables(made, "a")
    assert set(order.shown["order"]) == {"not ranked: a, the control, has learned nothing"}
    said = sentence(made, ACCURACY, "a")
    assert said == "Under no way of matching does an order mean anything: a, the control, has learned nothing."


@pytest.mark.parametrize(
    ("control", "lost", "why"),
    [("a", "a", "a, the control, has no score"), ("z", "c", "z, the control, is not among the cells")],
)
def test_the_report_ranks_nothing_without_a_control(control, lost, why):
    made = cells(none={"a": 0.9, "b": 0.5, "c": 0.2}, params={"a": 0.6, "b": 0.8, "c": 0.2})
    made.loc[made["label"] == lost, "accuracy"] = math.nan
    assert found(made, control=control) == []
    order, *flipped = tables(made, control)
    assert set(order.shown["order"]) == {f"not ranked: {why}"}
    assert flipped == []


def test_a_variant_that_lost_a_seed_is_in_no_order():
    made = cells(none={"a": 0.9, "b": [0.99, 0.99, math.nan]}, params={"a": 0.9, "b": [0.2, 0.2, 0.2]})
    made.loc[made["accuracy"].isna(), "status"] = "diverged"
    (order,) = tables(made, "a")
    assert list(order.shown["order"]) == ["a 0.904; b: 2 of 3 seeds", "a 0.904 > b 0.200"]
    assert found(made) == []


def test_no_flip_is_said_too():
    said = sentence(cells(none={"a": 0.9, "b": 0.5}, params={"a": 0.9, "b": 0.6}), ACCURACY, "a")
    assert said == "no two variants surely change places between cells at the same width, at equal parameters."

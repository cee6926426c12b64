"""What a block is made of, from the times of its levels, and what a free mixer would gain."""

import math

import pytest
from frames import frame, timed

from attnbench.analyse.amdahl import Share, by_level, splits
from attnbench.report import split

LEVELS = {"core": 0.3, "layer": 0.6, "block": 1.0, "model": 2.5}


def levels(label, times, T=1024, d=256, spread=0.01):
    more = {"phase": "forward", "n_layers": 2}
    return [timed(label, T, d, time_s, spread=spread, level=level, **more) for level, time_s in times.items()]


def one(times, **more):
    (found,) = splits(frame(levels("fused", times, **more)))
    return found


def test_the_parts_of_a_block_add_up_to_it():
    found = one(LEVELS)
    assert (found.mixing.value, found.projections, found.rest) == pytest.approx((0.3, 0.3, 0.4))
    assert found.mixing.value + found.projections + found.rest == pytest.approx(1)


def test_a_free_mixer_gains_what_amdahl_says():
    found = one(LEVELS)
    assert found.mixing.limit.value == pytest.approx(1 / 0.7)
    assert found.of_model.limit.value == pytest.approx(2.5 / (2.5 - 2 * 0.3))
    assert found.mixing.limit.low < 1 / 0.7 < found.mixing.limit.high


def test_a_part_that_is_all_of_it_has_no_limit():
    assert Share(1.0, 0.9, 1.1).limit == Share(math.inf, pytest.approx(10), math.inf)


def test_a_mixer_without_a_core_is_one_part_with_its_maps():
    found = one({"layer": 0.6, "block": 1.0})
    assert (found.mixing.value, found.projections, found.of_model) == (pytest.approx(0.6), None, None)
    assert "mixing, with its maps, is 60 %" in split.sentence(found)


def test_where_no_block_was_timed_there_is_no_split():
    assert splits(frame(levels("fused", {"core": 1.0, "layer": 2.0}))) == []


def test_each_place_is_split_by_itself_and_told_in_its_order():
    rows = [row for d, scale in ((256, 2), (64, 1)) for row in levels("fused", LEVELS, d=d) if scale]
    assert [found.d_model for found in splits(frame(rows))] == [64, 256]


def test_the_sentence_says_share_and_limit():
    said = split.sentence(one({"core": 0.31, "layer": 0.5, "block": 1.0}))
    assert said.startswith("at T = 1024, d = 256 mixing is 31 % [")
    assert "of a block of fused: a mixer that costs nothing would make the block at most 1.45 times faster." in said


def test_an_advantage_of_the_core_shrinks_from_level_to_level():
    cheap = {"core": 0.15, "layer": 0.45, "block": 0.85, "model": 2.2}
    both = frame([*levels("fused", LEVELS), *levels("linear", cheap)])
    compared = by_level(both, "fused").set_index("level")
    assert compared["ratio"].to_dict() == pytest.approx({name: cheap[name] / LEVELS[name] for name in LEVELS})
    table = split.levels(by_level(both, "fused"), "fused")
    assert table.rows == [
        ["d_model", "T", "variant", "core", "layer", "block", "model"],
        ["256", "1024", "linear", "0.50 faster", "0.75 faster", "0.85 faster", "0.88 faster"],
    ]
    assert split.shares(splits(both)).rows[1][3:6] == ["1.00 s", "30 % [30, 30]", "30 %"]

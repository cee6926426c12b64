"""Points: what may share a line, what stays apart, and no cell lost on the way."""

import numpy as np
import pytest
from frames import costs, failed, frame, run_frame, scores, timed
from hypothesis import given
from hypothesis import strategies as st

from attnbench.analyse.points import ACCURACY, APART, MEMORY, TIME, asked, groups, missing, points


@pytest.mark.parametrize("name", APART)
def test_a_different_setting_is_a_different_group(name):
    rows = [timed("a", 64, 8, 1), timed("a", 64, 8, 3) | {name: "other"}, timed("b", 64, 8, 1)]
    found = groups(frame(rows))
    assert [len(group.frame) for group in found] == [2, 1]
    assert {group.differs for group in found} == {(name,)}


def test_a_machine_is_named_only_beside_another():
    alone = frame([timed("a", 64, 8, 1, device_name="A CPU"), timed("a", 64, 8, 1, threads=2, device_name="A CPU")])
    assert ["device_name" in group.settings for group in groups(alone)] == [False, False]
    both = frame([timed("a", 64, 8, 1, device_name=name) for name in ("A CPU", "A GPU", None)])
    assert [group.settings["device_name"] for group in groups(both)] == ["A CPU", "A GPU", None]


def test_settings_that_follow_from_the_sizes_do_not_tear_a_line_apart():
    rows = [timed("a", T, d, 1, d_ff=4 * d, max_T=T, n_heads=d // 8) for T in (64, 128) for d in (8, 16)]
    (group,) = groups(frame(rows))
    assert "d_ff" not in group.settings
    assert group.differs == ()


@pytest.mark.parametrize("name", ["S", "n_heads", "n_layers", "d_ff", "embedding_std", "positions"])
def test_settings_that_vary_at_one_point_do(name):
    rows = [timed("a", T, 8, 1, **{name: value}) for T in (64, 128) for value in (1, 2)]
    found = groups(frame(rows))
    assert [group.settings[name] for group in found] == [1, 2]


def test_no_cell_is_lost_or_doubled_by_grouping():
    whole = run_frame()
    cells = [cell for group in groups(whole) for cell in group.frame["cell"]]
    assert sorted(cells) == sorted(whole["cell"])


def test_missing_settings_are_a_value_like_any_other():
    rows = [timed("full", 128, 8, 1, threads=None), timed("full", 256, 8, 1, threads=None), timed("a", 128, 8, 1)]
    assert [len(group.frame) for group in groups(frame(rows))] == [2, 1]


def test_a_failed_size_keeps_its_row_and_says_why():
    rows = [timed("full", 128, 8, 1), failed("full", 256, 8, "oom"), timed("window[window=16]", 128, 8, 2)]
    rows.append(failed("window[window=16]", 256, 8, "timeout"))
    merged = points(frame(rows), TIME)
    assert merged["value"].tolist() == pytest.approx([1, np.nan, 2, np.nan], nan_ok=True)
    assert merged["status"].tolist() == ["ok", "oom", "ok", "timeout"]
    assert missing(frame(rows), TIME) == {"oom": 1, "timeout": 1}


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_a_value_that_is_no_time_is_missing(bad):
    whole = frame([timed("a", 64, 8, bad), timed("a", 128, 8, 1)])
    assert points(whole, TIME)["status"].tolist() == ["not measured", "ok"]
    assert missing(whole, TIME) == {"not measured": 1}


def test_an_accuracy_of_zero_is_a_value():
    rows = scores(["fused"], sizes=[32], widths=[32], seeds=[0])
    rows[0]["accuracy"] = 0.0
    assert points(frame(rows), ACCURACY)["value"].tolist() == [0]


def test_seeds_are_averaged_with_their_range_and_one_seed_has_none():
    rows = [row | {"accuracy": row["seed"] / 10} for row in scores(["fused"], sizes=[32, 64], widths=[32])]
    merged = points(frame(rows[:4]), ACCURACY)
    assert merged[["value", "low", "high", "n_good"]].values.tolist() == [
        [pytest.approx(0.1), 0, 0.2, 3],
        [0, pytest.approx(np.nan, nan_ok=True), pytest.approx(np.nan, nan_ok=True), 1],
    ]


def test_seeds_without_a_score_are_counted():
    rows = scores(["fused"], sizes=[32], widths=[32])
    rows[1] |= {"accuracy": None, "status": "diverged"}
    (point,) = points(frame(rows), ACCURACY).itertuples()
    assert (point.n_good, point.n_cells, point.status) == (2, 3, "ok")


def test_cells_are_asked_for_what_their_measures_say():
    whole = run_frame()
    assert len(asked(whole, TIME)) == len(asked(whole, MEMORY)) == 90
    assert len(asked(whole, ACCURACY)) == 72


@given(statuses=st.lists(st.sampled_from(["ok", "oom", "pending", "unsupported", None]), min_size=1, max_size=12))
def test_every_cell_has_a_value_or_a_reason(statuses):
    rows = [failed("a", 2**i, 8, status) for i, status in enumerate(statuses)]
    whole = frame([*rows, *costs(["fused"], sizes=[64], widths=[8])])
    merged = points(whole, TIME)
    assert merged["n_cells"].sum() == len(whole)
    assert merged["n_good"].sum() + sum(missing(whole, TIME).values()) == len(whole)
    assert (merged["status"] != "").all()

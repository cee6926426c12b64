"""What a report says of accuracy beyond training: one row per place, one table and its curves per task."""

import json

import numpy as np
import pytest
from frames import failed, frame, scores

from attnbench.analyse.beyond import long, parts, places
from attnbench.report import beyond, html

LENGTHS = (16, 32, 64)


def place(T, accuracy, reason=None, **options):
    about = {"T": T, "options": options, "accuracy": accuracy, "reason": reason}
    return about | {"sequence_accuracy": None, "chance": 0.1, "floor": 1 / (4 + T / 8), "n": 100}


def trained(label, T, accuracy, tested, **more):
    cell = {"label": label, "T": T, "d_model": 32, "level": "model", "phase": None, "measures": ["accuracy"]}
    cell |= {"task": "mqar", "task_options": json.dumps({"n_pairs": 4, "vocab_size": 64}), "positions": "none"}
    return cell | {"accuracy": accuracy, "chance": 0.1, "floor": 0.25, "tested": tested, "B": 8} | more


def run(*more):
    """Two variants at two lengths with three seeds: `fused` keeps what it learnt, `lstm` loses it with T."""
    rows = []
    for label, T in (("fused", 16), ("fused", 32), ("lstm", 16), ("lstm", 32)):
        for seed in (0, 1, 2):
            kept = {at: 0.9 if label == "fused" else 0.9 * min(1, T / at) for at in LENGTHS}
            tested = [place(at, kept[at] + 0.01 * seed) for at in LENGTHS if at != T]
            tested += [place(64, 0.5 + 0.01 * seed, n_pairs=n) for n in (16, 8)]
            rows.append(trained(label, T, kept[T] + 0.01 * seed, tested, seed=seed))
    return frame([*rows, *more])


def only(found):
    (one,) = found
    return one


def test_the_score_of_a_cell_is_a_place_like_the_others():
    rows = long(only(parts(run())))
    assert len(rows) == 2 * 2 * 3 * 5
    own = rows[(rows["T"] == rows["T_test"]) & (rows["options"] == "")]
    assert len(own) == 2 * 2 * 3
    assert set(own["floor"]) == {0.25}


def test_a_place_that_repeats_the_cells_own_is_one_row():
    repeats = frame([trained("fused", 16, 0.5, [place(16, 0.5), place(16, 0.5, n_pairs=4), place(32, 0.4)])])
    assert list(long(only(parts(repeats)))["T_test"]) == [16, 32]


def test_places_are_means_over_seeds_with_their_range():
    found = places(only(parts(run())))
    one = found[(found["label"] == "lstm") & (found["T"] == 16) & (found["T_test"] == 64) & (found["options"] == "")]
    assert one[["value", "low", "high", "n_good"]].to_numpy() == pytest.approx(np.array([[0.235, 0.225, 0.245, 3]]))


def test_settings_that_differ_for_one_label_tell_its_lines_apart():
    rows = [
        trained(label, 16, 0.5, [place(32, 0.4)], positions=kind)
        for label, kind in (("fused", "none"), ("fused", "learned"), ("window[window=8]", "learned"))
    ]
    part = only(parts(frame([*rows, rows[2] | {"positions": "none"}, trained("lstm", 16, 0.5, [place(32, 0.4)])])))
    assert set(part["label"]) == {
        "fused[positions=none]",
        "fused[positions=learned]",
        "lstm",
        "window[positions=learned, window=8]",
        "window[positions=none, window=8]",
    }


def test_a_run_without_places_has_nothing_of_it():
    assert parts(frame(scores())) == parts(frame([])) == []
    assert beyond.tables(frame(scores())) == list(beyond.pictures(frame(scores()), "fused")) == []


def test_each_task_has_a_table_of_its_own():
    other = trained("fused", 16, 0.5, [place(32, 0.4)], task="parity", task_options="{}")
    assert [table.name for table in beyond.tables(run(other))] == [
        "accuracy_beyond_task-mqar",
        "accuracy_beyond_task-parity",
    ]


def test_the_table_has_a_column_per_place_lengths_first_and_options_by_size():
    table = only(beyond.tables(run()))
    assert list(table.shown.columns) == [
        "d_model",
        "variant",
        "trained at T",
        "T = 16",
        "T = 32",
        "T = 64",
        "T = 64, n_pairs=8",
        "T = 64, n_pairs=16",
    ]
    assert list(zip(table.shown["variant"], table.shown["trained at T"], strict=True)) == [
        ("fused", 16),
        ("fused", 32),
        ("lstm", 16),
        ("lstm", 32),
    ]
    assert table.shown["T = 64"][2] == "0.235 [0.225, 0.245]"
    assert set(table.data["variant"]) == {"fused", "lstm"}
    assert {"T_test", "accuracy", "floor"} <= set(table.data.columns)


def test_a_place_without_a_score_says_so_and_why():
    short = trained("linformer", 16, 0.5, [place(32, None, reason="ValueError: too long")])
    lost = failed(
        "rnn", 16, 32, "oom", **{key: short[key] for key in ("level", "measures", "task", "task_options", "B")}
    )
    table = only(beyond.tables(run(short, lost | {"phase": None})))
    rows = table.shown.set_index("variant")
    assert rows["T = 32"]["linformer"] == rows["T = 16"]["rnn"] == "no score"
    assert "no score (linformer): ValueError: too long" in table.note
    assert "no score (rnn): oom: made to be oom" in table.note


def test_seeds_that_are_missing_are_counted():
    table = only(beyond.tables(run(trained("fused", 16, 0.9, [place(64, None, reason="died")], seed=3))))
    assert table.shown["T = 64"][0] == "0.910 [0.900, 0.920] (3 of 4 seeds)"


def test_a_seed_that_failed_is_missing_at_every_place_of_its_other_seeds():
    asked = trained("fused", 16, None, None, seed=3)
    table = only(beyond.tables(run(failed("fused", 16, 32, "timeout") | asked | {"chance": None, "floor": None})))
    row = table.shown.iloc[0]
    places = [name for name in table.shown.columns if name.startswith("T = ")]
    assert len(places) > 3
    assert all("(3 of 4 seeds)" in row[name] for name in places)


def test_the_pictures_have_a_panel_per_training_length_with_a_line_where_training_ends():
    drawn = {picture.name: picture for picture in beyond.pictures(run(), "fused")}
    assert list(drawn) == ["accuracy_beyond_T_task-mqar", "accuracy_beyond_n_pairs_task-mqar"]
    axes = drawn["accuracy_beyond_T_task-mqar"].figure.axes
    assert [each.get_title(loc="left") for each in axes] == ["trained at T = 16", "trained at T = 32"]
    for each, T in zip(axes, (16, 32), strict=True):
        upright = [line for line in each.lines if len(set(line.get_xdata())) == 1]
        assert [list(line.get_xdata()) for line in upright] == [[T, T]]
        assert list(each.xaxis.get_majorticklocs()) == [16, 32, 64]
    loads = drawn["accuracy_beyond_n_pairs_task-mqar"].figure.axes
    assert [each.get_title(loc="left") for each in loads] == [
        "trained at T = 16, tested at 64",
        "trained at T = 32, tested at 64",
    ]
    for each in loads:
        assert list(each.xaxis.get_majorticklocs()) == [4, 8, 16]


def test_names_put_everything_into_the_section_of_accuracy():
    names = [*(table.name for table in beyond.tables(run())), *(p.name for p in beyond.pictures(run(), "fused"))]
    assert {html._section(name) for name in names} == {"accuracy"}


def test_widths_have_panels_of_their_own():
    wide = [trained("fused", 16, 0.5, [place(32, 0.4)], d_model=d) for d in (64, 32)]
    (picture,) = beyond.pictures(frame(wide), "fused")
    titles = [axes.get_title(loc="left") for axes in picture.figure.axes]
    assert titles == ["trained at T = 16, d = 32", "trained at T = 16, d = 64"]


def test_the_floor_is_drawn_though_cells_are_missing():
    first = failed("rnn", 16, 32, "oom") | {name: run().iloc[0][name] for name in ("level", "measures", "task", "B")}
    rows = [first | {"phase": None}, trained("fused", 16, 0.5, [place(32, 0.4)])]
    (picture,) = beyond.pictures(frame(rows), "fused")
    (axes,) = picture.figure.axes
    drawn = [line for line in axes.lines if list(line.get_ydata()) == [0.25, 0.125]]
    assert [list(line.get_xdata()) for line in drawn] == [[16, 32]]

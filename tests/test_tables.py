"""Tables: every requested cell with its value or its status, and files that hold what the page shows."""

import csv
import io
import re

import numpy as np
import pytest
from frames import costs, failed, frame, run_frame, scores, timed
from hypothesis import given
from hypothesis import strategies as st
from pandas import DataFrame, read_csv

from attnbench.records import STATUSES
from attnbench.report import words
from attnbench.report.tables import denominator, problems, summary, tables
from attnbench.report.writers import Table, latex, markdown, write


@pytest.fixture(scope="module")
def made():
    return {table.name: table for table in tables(run_frame(), "fused")}


def row(table, **wanted):
    """The one row of a table's text with these values."""
    shown = table.shown
    for name, value in wanted.items():
        shown = shown[shown[name] == value]
    assert len(shown) == 1
    return shown.iloc[0]


def of(rows, name, baseline="fused"):
    return {table.name: table for table in tables(frame(rows), baseline)}[name]


@given(statuses=st.lists(st.sampled_from([*STATUSES, "a_new_one", None]), max_size=20))
def test_counts_add_up_to_the_requested_cells(statuses):
    whole = frame(failed("a", i + 1, 8, status) for i, status in enumerate(statuses))
    counts = summary(whole)
    assert counts["cells"].sum() == len(statuses)
    assert len(problems(whole)) == len(statuses) - statuses.count("ok")
    assert denominator(whole) == f"{statuses.count('ok')} of {len(statuses)} cells"


def test_cells_are_counted_per_variant_and_status():
    rows = [timed("b", 64, 8, 1), failed("b", 128, 8, "oom"), failed("b", 256, 8, "oom"), failed("a", 64, 8, "timeout")]
    assert of(rows, "status").rows == [
        ["variant", "cells", "ok", "timeout", "oom"],
        ["b", "3", "1", "0", "2"],
        ["a", "1", "0", "1", "0"],
        ["all", "4", "1", "1", "2"],
    ]


def test_a_cell_without_a_value_shows_its_status(made):
    assert row(made["time"], variant="full", d_model=128)[2048] == "timeout"
    assert row(made["memory"], variant="fused", d_model=256)[2048] == "oom"
    assert made["time"].note == "5 of 90 cells missing: oom 2, timeout 2, killed 1"


def test_no_entry_of_any_table_is_blank(made):
    for table in made.values():
        assert all(cell.strip() and cell not in ("nan", "None") for line in table.rows for cell in line), table.name


def test_rows_with_missing_options_and_failed_sizes_stay():
    rows = [timed("full", 128, 8, 1e-3), failed("full", 256, 8, "failed")]
    rows += [timed("window", 128, 8, 2e-3, options='{"window": 16}', seed=seed) for seed in (0, 1)]
    rows += [failed("window", 256, 8, "failed", seed=seed) for seed in (0, 1)]
    shown = of(rows, "time").shown
    assert shown.values.tolist() == [
        [8, "full", "1.00 ms [0.980, 1.02]", "failed"],
        [8, "window", "2.00 ms [1.96, 2.04]", "failed"],
    ]


def test_a_point_that_nobody_asked_for_is_told_from_a_failed_one():
    rows = [timed("a", 64, 8, 1), timed("a", 128, 8, 1), failed("b", 64, 8, "oom")]
    assert of(rows, "time").shown.values.tolist()[1] == [8, "b", "oom", "–"]


@pytest.mark.parametrize(("name", "n"), [("threads", 2), ("B", 3), ("phase", 2), ("dtype", 2)])
def test_different_settings_have_tables_of_their_own(name, n):
    rows = [timed("a", 64, 8, 1 + i) | {name: i + 1} for i in range(n)]
    times = [table for table in tables(frame(rows), "a") if table.name.startswith("time")]
    assert [table.shown[64].iloc[0][:6] for table in times] == [f"{i + 1}.00 s" for i in range(n)]
    assert len({table.title for table in times}) == n


def test_file_names_are_legal_everywhere():
    rows = [timed("a", 64, 8, 1, device=device) for device in ("cuda:0", "cpu", "a/b\\c<>?*|")]
    names = [table.name for table in tables(frame(rows), "a")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names)
    assert len(set(names)) == len(names)


def test_accuracy_shows_seeds_chance_and_floor(made):
    entry = row(made["accuracy"], variant="fused", d_model=64)[128]
    assert re.fullmatch(r"0\.9\d\d \[0\.9\d\d, (0\.9\d\d|1\.000)\]", entry)
    assert row(made["accuracy"], variant="lstm", d_model=64)[128].endswith("(2 of 3 seeds)")
    assert row(made["accuracy"], variant="floor", d_model=64)[128] == "0.125"
    assert row(made["accuracy"], variant="chance", d_model=64)[128] == "0.083"


def guessing(*labels, at=0.13):
    """Accuracy cells where these labels guess."""
    rows = scores(["fused", "linear", "none"], sizes=[32], widths=[32, 64])
    return [row | ({"accuracy": at} if row["label"] in labels else {}) for row in rows]


def test_what_guessing_gives_is_flagged():
    table = of(guessing("none"), "accuracy")
    assert row(table, variant="none", d_model=32)[32] == "0.130 [0.130, 0.130], not above chance"
    assert "chance" not in row(table, variant="linear", d_model=32)[32]
    assert table.note.endswith("not above chance: guessing at chance or floor does as well, by a binomial test at 0.01")
    assert table.data.set_index("variant")["at_chance"].groupby(level=0).all().to_dict() == {
        "chance": False, "floor": False, "fused": False, "linear": False, "none": True
    }  # fmt: skip
    assert "not above chance" not in of(guessing(), "accuracy").note


def test_counts_that_depend_on_T_are_marked():
    rows = [timed("a", T, 8, 1, n_params=T * 1000, n_params_body=512) for T in (64, 128)]
    rows += [timed("b", T, 8, 1, n_params=1000) for T in (64, 128)]
    cost = of(rows, "cost")
    assert cost.shown["n_params"].tolist() == ["64.0 k, grows with T", "128 k, grows with T", "1.00 k", "1.00 k"]
    assert cost.shown["n_params_body"].tolist() == ["512"] * 2 + ["not available"] * 2
    assert cost.data["n_params"].tolist() == [64000, 128000, 1000, 1000]


def test_what_compiling_took_is_told_of_cells_that_were_compiled():
    rows = [timed("a", 64, 8, 1, compile=False), timed("a", 64, 8, 1, compile=True, compile_s=2.5)]
    cost = of(rows, "cost")
    assert cost.shown["compile_s"].tolist() == ["–", "2.50 s"]
    assert cost.note.endswith("; compile_s: what compiling, and the first call, took")
    plain = of(rows[:1], "cost")
    assert "compile_s" not in [*plain.shown.columns, *plain.note.split()]


def test_one_seed_has_no_interval():
    shown = of(scores(["fused"], sizes=[32], widths=[32], seeds=[0]), "accuracy").shown
    assert re.fullmatch(r"0\.\d{3}|1\.000", shown[32].iloc[0])


def test_accuracy_by_gap_ends_in_the_reach(made):
    shown = made["accuracy_gap"].shown
    assert list(shown.columns) == ["d_model", "T", "variant", "4", "8", "16", "32", "64", "reach"]
    assert row(made["accuracy_gap"], variant="window", d_model=64, T=128)["reach"] == "16"
    assert row(made["accuracy_gap"], variant="fused", d_model=64, T=128)["reach"] == "64"
    assert row(made["accuracy_gap"], variant="fused", d_model=64, T=64)["64"] == "–"


@pytest.mark.parametrize(("unit", "said"), [("length", "length"), ("nesting depth", "nesting depth"), (None, "slice")])
def test_slices_are_called_what_the_task_calls_them(unit, said):
    rows = [row | {"slice_unit": unit} for row in scores(["fused"], sizes=[32], widths=[32])]
    made = of(rows, f"accuracy_{said.replace(' ', '-')}")
    assert made.title.startswith(f"By {said}: Model accuracy on distance")
    assert made.note.startswith(f"reach: the {said} up to which accuracy stays above 0.9")
    assert "gap" not in made.title + made.note


def test_a_cell_without_slices_shows_its_status_in_the_reach():
    rows = scores(["fused", "lstm"], sizes=[32], widths=[32], seeds=[0])
    rows[1] |= {"accuracy": None, "slices": {}, "status": "diverged"}
    assert of(rows, "accuracy_gap").shown.values.tolist()[1][3:] == ["–", "–", "–", "diverged"]


def test_an_empty_slice_is_left_out():
    rows = scores(["fused"], sizes=[64], widths=[32], seeds=[0])
    rows[0]["slices"]["8"] = {"accuracy": None, "n": 0}
    assert "8" not in of(rows, "accuracy_gap").shown


def test_crossovers_are_sentences():
    T = (64, 128, 256, 512)
    rows = [timed("full", t, 64, 1e-8 * t**2 * 64) for t in T]
    rows += [timed("linear", t, 64, 1e-8 * t * 64 * 256) for t in T]
    rows += [timed("slow", t, 64, 1e-7 * t**2 * 64) for t in T]
    rows += [timed("once", 64, 64, 1)]
    assert of(rows, "crossovers_time", "full").shown.set_index("variant")["d = 64"].to_dict() == {
        "linear": "faster from T ≈ 256 [250, 263]",
        "slow": "no crossover in the measured range (slower, T = 64 to 512)",
        "once": "not enough sizes",
    }


def test_what_is_the_same_within_noise_has_no_crossover():
    rows = [timed("a", T, 8, 1, spread=0.3) for T in (64, 128)] + [timed("b", 64, 8, 1.1), timed("b", 128, 8, 0.9)]
    rows += [timed("c", 64, 8, 1.1), timed("c", 128, 8, 9)]
    assert of(rows, "crossovers_time", "a").shown["d = 8"].tolist() == [
        "ambiguous (T = 64 to 128)",
        "no crossover in the measured range (slower where they differ, T = 64 to 128)",
    ]


def test_ratios_come_with_their_verdicts_and_cells_without_one_with_their_status():
    rows = [timed("a", T, 8, 1, spread=0.001) for T in (64, 128, 256, 512)] + [failed("b", 512, 8, "oom")]
    rows += [timed("b", 64, 8, 0.5), timed("b", 128, 8, 1, spread=0.001), timed("b", 256, 8, 1.2, spread=0.4)]
    rows = [row | {"peak_bytes": {64: 8000, 128: 2000}.get(row["T"]) if row["label"] == "b" else 4000} for row in rows]
    made = of(rows, "ratios_time", "a")
    assert made.shown.values.tolist() == [[8, "b", "0.50 faster", "1.00 same", "1.2 ambiguous", "oom"]]
    assert made.data["verdict_corrected"].tolist()[:3] == ["faster", "same", "ambiguous"]
    assert made.data["verdict_corrected"].isna().tolist() == [False, False, False, True]
    assert made.note.endswith(
        "; different: off 1 by more than 3 %, after Holm's correction; same: surely within 3 %; else ambiguous"
    )
    memory = of(rows, "ratios_memory", "a").shown.values.tolist()[0]
    assert memory[2:] == ["2.0 heavier", "0.50 leaner", "not measured", "oom"]


def test_slopes_need_three_sizes_and_count_what_was_dropped():
    rows = [timed("a", T, 8, 1e-6 * T**2) for T in (64, 128, 256)] + [timed("b", T, 8, 1) for T in (64, 128)]
    rows += [failed("b", 256, 8, "oom")]
    assert of(rows, "slopes_time").shown.values.tolist() == [
        [8, "a", "2.00", "2.00", "2.00", "1.000", "–"],
        [8, "b", "–", "–", "–", "–", "not enough sizes; 1 without value"],
    ]


def test_a_missing_formula_is_not_available(made):
    cost = made["cost"].shown
    assert set(cost.loc[(cost["variant"] == "lstm") & (cost["level"] == "layer"), "flops_executed"]) == {
        "not available"
    }
    assert "not available" not in set(cost.loc[cost["variant"] == "fused", "flops"].iloc[:17])


def test_csv_holds_the_numbers_of_the_frame_and_of_every_point(made, tmp_path):
    write(made["time"], tmp_path)
    read = read_csv(tmp_path / "time.csv")
    assert len(read) == 90
    whole = run_frame().query("level == 'layer'")
    assert np.nansum(read["time_s"]) == pytest.approx(whole["time_s"].sum())
    assert read["status"].value_counts()["ok"] == 85


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)


@given(name=NAMES)
def test_a_name_cannot_break_out_of_its_markdown_cell(name):
    table = Table("t", "title", DataFrame({"variant": [name], "x": ["1"]}), DataFrame())
    rows = [line for line in markdown(table).split("\n") if line.startswith("| ")]
    assert [len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in rows] == [3, 3, 3]


def test_latex_escapes_what_latex_would_run():
    table = Table("t", "two\nlines", DataFrame({"variant": ["a_b&50%\\x{}$~^#"], "x": ["1 µs [1, 2]"]}), DataFrame())
    text = latex(table)
    assert (
        r"a\_b\&50\%\textbackslash{}x\{\}\$\textasciitilde{}\textasciicircum{}\# & 1 \textmu{}s {[}1, 2{]} \\" in text
    )
    assert text.startswith("% two lines\n")


@given(value=st.floats(1e-9, 1e4), digits=st.integers(1, 6))
def test_numbers_keep_their_significant_digits(value, digits):
    text = words.significant(value, digits)
    assert float(text) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
    assert "e" not in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.4321, "0.43"), (0.996, "1.00"), (1.0, "1.00"), (1.04, "1.04"), (1.1, "1.1"), (12.3, "12")]
)
def test_a_ratio_near_one_shows_on_which_side_it_is(value, text):
    assert words.ratio(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.9996e-3, "1000 µs"), (1e-3, "1.00 ms"), (59.99, "60.0 s"), (2.5e-7, "250 ns"), (1e-10, "0.100 ns")],
)
def test_times_come_in_a_fitting_unit(value, text):
    assert words.scaled(value, words.TIME_UNITS) == text


def test_tables_of_a_frame_without_cells_are_only_the_counts():
    (only,) = tables(frame([]), "fused")
    assert (only.name, only.note) == ("status", "0 of 0 cells ok")
    assert list(csv.reader(io.StringIO(only.data.to_csv(index=False)))) == [["variant", "cells"], ["all", "0"]]


def test_many_cells_make_tables_of_as_many_entries():
    whole = frame(costs(sizes=range(1, 41), widths=range(8, 80, 8)))
    shown = {table.name: table for table in tables(whole, "fused")}["time"].shown
    assert shown.shape == (5 * 9, 2 + 40)

"""Pictures and tables of any columns: every cell is drawn, merged or counted; a wrong request names the right one."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from frames import costs, failed, frame, run_frame, scores, timed
from hypothesis import given, settings
from hypothesis import strategies as st
from run_rows import cell, record, run_of
from run_rows import timed as timed_record
from test_plots import LONG_NAMES, MANY, NAN, assert_apart_and_inside, look_of, series

import attnbench
from attnbench import cli
from attnbench.errors import RequestError
from attnbench.report import chosen, plots, writers
from attnbench.report.looks import N_LOOKS


def notes(figure):
    return figure.texts[1].get_text().replace("\n", " ")


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def panels(figure):
    return [axes.get_title(loc="left") for axes in figure.axes]


# Pictures


def test_columns_say_what_stands_where():
    rows = [timed(label, T, d, T * d / 1e6) for label in ("a", "b") for T in (64, 128) for d in (8, 16)]
    figure = chosen.figure(frame(rows), x="T", y="time_s", facet="d_model")
    assert panels(figure) == ["d_model = 8", "d_model = 16"]
    assert series(figure)["a"] == [[64, 64 * 8 / 1e6], [128, 128 * 8 / 1e6]]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("T", "time_s")
    by_width = chosen.figure(frame(rows), x="T", y="time_s", hue="d_model", facet="label")
    assert legend(by_width) == ["d_model = 8", "d_model = 16"]
    assert panels(by_width) == ["label = a", "label = b"]


@given(
    values=st.lists(
        st.one_of(st.floats(1e-9, 1e9), st.sampled_from([NAN, 0.0, -1.0, float("inf")])), min_size=1, max_size=12
    ),
    sizes=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_every_cell_is_drawn_merged_or_counted(values, sizes):
    rows = [timed("a", 2 ** (5 + i % sizes), 8, value, seed=i) for i, value in enumerate(values)]
    figure = chosen.figure(frame(rows), x="T", y="time_s")
    good = pd.DataFrame(rows).query("0 < time_s < inf").groupby("T")["time_s"].median()
    assert dict(series(figure).get("a", [])) == pytest.approx(good.to_dict())
    n_bad = sum(not 0 < value < float("inf") for value in values)
    assert f"{n_bad} of {len(values)} cells missing" in notes(figure) or n_bad == 0
    assert ("median of up to" in notes(figure)) == (len(values) > sizes)


def test_a_median_of_several_cells_says_of_how_many_and_what_tells_them_apart():
    rows = [timed("a", T, d, value) for T in (64, 128) for d, value in ((8, 1.0), (16, 5.0), (32, 3.0))]
    figure = chosen.figure(frame(rows), x="T", y="time_s")
    assert series(figure) == {"a": [[64, 3], [128, 3]]}
    assert "Each value is the median of up to 3 cells, which differ in d_model" in notes(figure)
    alone = chosen.figure(frame(rows), x="T", y="time_s", where="d_model == 8")
    assert "median of up to" not in notes(alone)
    assert "Cells: d_model == 8" in notes(alone)


def test_no_line_joins_and_no_median_mixes_numbers_of_threads_or_devices():
    both = frame([timed("a", T, 8, T / n, threads=n) for n in (1, 2) for T in (64, 128)])
    one_each = frame([timed("a", T, 8, T / n, threads=n) for n, T in ((1, 64), (2, 128))])
    for cells in (both, one_each):
        with pytest.raises(RequestError, match=r"threads: cells of one line differ in it \(1, 2\); choose"):
            chosen.figure(cells, x="T", y="time_s")
        with pytest.raises(RequestError, match="threads: "):
            chosen.table(cells, rows="variant", columns="T", value="time_s")
    assert series(chosen.figure(both, x="T", y="time_s", where="threads == 2")) == {"a": [[64, 32], [128, 64]]}
    assert legend(chosen.figure(both, x="T", y="time_s", hue="threads")) == ["threads = 1", "threads = 2"]
    assert panels(chosen.figure(both, x="T", y="time_s", facet="threads")) == ["threads = 1", "threads = 2"]
    assert series(chosen.figure(both, x="threads", y="time_s", where="T == 64")) == {"a": [[1, 64], [2, 32]]}
    devices = frame([timed("a", 64, 8, 1.0, device=device) for device in ("cpu", "cuda")])
    with pytest.raises(RequestError, match=r"device: .* \(cpu, cuda\)"):
        chosen.figure(devices, x="T", y="time_s")


def test_options_of_a_variant_are_different_variants():
    rows = [timed(f"window[window={w}]", T, 8, w * T / 1e6) for w in (16, 64) for T in (64, 128)]
    assert legend(chosen.figure(frame(rows), x="T", y="time_s")) == ["window[window=16]", "window[window=64]"]


def test_failures_are_counted_by_reason_and_a_series_without_data_is_named():
    rows = [timed("a", 64, 8, 1.0), failed("a", 128, 8, "oom"), failed("dead", 64, 8, "timeout")]
    figure = chosen.figure(frame(rows), x="T", y="time_s")
    assert "2 of 3 cells missing: oom 1, timeout 1" in notes(figure)
    assert legend(figure) == ["a", "dead (no data)"]


@pytest.mark.parametrize("bad", [0.0, NAN])
def test_a_figure_without_any_value_is_drawn(bad, tmp_path):
    figure = chosen.figure(frame([timed("a", T, 8, bad) for T in (64, 128)]), x="T", y="time_s")
    plots.save_as(figure, tmp_path / "x.png")
    assert "2 of 2 cells missing: not measured 2" in notes(figure)


def test_cells_that_were_not_asked_for_a_measure_are_not_missing():
    figure = chosen.figure(run_frame(), x="T", y="accuracy")
    assert "1 of 72 cells missing: diverged 1" in notes(figure)
    assert "1 of 72" in notes(chosen.figure(run_frame(), x="T", y="accuracy", where="level == 'model'"))


def test_a_ratio_is_one_point_over_another_and_its_baseline_is_the_line_of_one():
    rows = [timed(label, T, d, k * T) for label, k in (("base", 2.0), ("a", 3.0)) for T in (64, 128) for d in (8, 16)]
    rows += [timed("a", 256, 8, 1.0)]
    figure = chosen.figure(frame(rows), x="T", y="time_s", facet="d_model", ratio_to="base")
    assert series(figure) == {"a": [[64, 1.5], [128, 1.5]]}
    assert legend(figure) == ["a", "base (1)"]
    assert "1 point without the baseline" in notes(figure)
    by_width = chosen.figure(frame(rows), x="T", y="time_s", hue="d_model", where="label == 'a'", ratio_to="8")
    assert series(by_width)["d_model = 16"] == [[64, 1], [128, 1]]


@pytest.mark.parametrize("several", ["a", "base"])
def test_a_ratio_to_or_of_a_median_of_several_cells_has_no_interval(several):
    rows = [timed(label, T, 8, float(T)) for label in ("a", "base") for T in (64, 128)]
    both = chosen.figure(frame(rows), x="T", y="time_s", ratio_to="base")
    assert len(both.axes[0].collections[0].get_segments()) == 2
    rows += [timed(several, 128, 8, 130.0, seed=1)]
    one = chosen.figure(frame(rows), x="T", y="time_s", ratio_to="base")
    assert len(one.axes[0].collections[0].get_segments()) == 1


def test_values_of_zero_and_less_are_drawn_on_a_linear_axis():
    rows = [timed("a", T, 8, 1.0, state_bytes=value) for T, value in ((64, 0), (128, 2048), (256, -1024))]
    figure = chosen.figure(frame(rows), x="T", y="state_bytes")
    assert series(figure) == {"a": [[64, 0], [128, 2048], [256, -1024]]}
    assert figure.axes[0].get_yscale() == "linear"
    assert {"0 B", "-1 KiB"} & {text.get_text() for text in figure.axes[0].get_yticklabels()}


def test_names_along_the_axis_are_spaced_evenly_in_their_order():
    rows = [timed(label, 64, 8, k) for label, k in (("slow", 3.0), ("fast", 1.0))]
    figure = chosen.figure(frame(rows), x="variant", y="time_s", hue="T")
    assert series(figure) == {"T = 64": [[1, 3], [2, 1]]}
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["slow", "fast"]
    seeds = chosen.figure(frame([timed("a", 64, 8, 1.0, seed=s) for s in (2, 0, 1)]), x="seed", y="time_s")
    assert [text.get_text() for text in seeds.axes[0].get_xticklabels()] == ["0", "1", "2"]


def test_a_cell_without_a_place_on_the_axis_is_counted():
    rows = [timed("a", 64, 8, 1.0, n_layers=2), timed("a", 128, 8, 1.0, n_layers=None)]
    assert "1 of 2 cells missing: no n_layers 1" in notes(chosen.figure(frame(rows), x="n_layers", y="time_s"))


def test_a_category_that_is_missing_has_a_line_of_its_own():
    rows = [timed("a", 64, 8, 1.0, task="distance"), timed("a", 64, 8, 2.0, task=None)]
    assert legend(chosen.figure(frame(rows), x="T", y="time_s", hue="task")) == ["distance", "–"]


def test_a_selection_without_any_value_of_the_hue_is_one_line_called_as_in_the_whole_run():
    assert legend(chosen.figure(run_frame(), x="T", y="time_s", hue="task", where="d_model == 64")) == ["–"]
    assert legend(chosen.figure(run_frame(), x="T", y="time_s", hue="n_layers")) == ["n_layers = –"]
    assert legend(chosen.figure(run_frame(), x="T", y="time_s", hue="backend")) == ["–"]


@given(
    hues=st.lists(st.sampled_from(["efficient", 1, 2.5, True, None]), min_size=1, max_size=6),
    kept=st.integers(1, 6),
)
@settings(max_examples=25, deadline=None)
def test_a_selection_changes_the_name_and_the_look_of_no_line(hues, kept):
    data = frame([timed("a", 64, 8, 1.0, seed=i, backend=hue) for i, hue in enumerate(hues)])
    whole = chosen.figure(data, x="T", y="time_s", hue="backend")
    part = chosen.figure(data, x="T", y="time_s", hue="backend", where=f"seed < {kept}")
    looks_of_all = {handle.get_label(): look_of(handle) for handle in whole.legends[0].legend_handles}
    looks_of_part = {handle.get_label(): look_of(handle) for handle in part.legends[0].legend_handles}
    assert looks_of_part.items() <= looks_of_all.items()


def test_a_variant_looks_as_it_does_in_the_report_also_when_another_is_left_out():
    from attnbench.report.figures import pictures

    data = frame(costs(MANY[:12]))
    reported = next(iter(pictures(data, "fused"))).figure
    one = chosen.figure(data, x="T", y="time_s", where="label != 'full' and label != 'variant_2'")
    known = {handle.get_label(): look_of(handle) for handle in reported.legends[0].legend_handles}
    assert all(known[handle.get_label()] == look_of(handle) for handle in one.legends[0].legend_handles)


@pytest.mark.parametrize("ratio_to", [None, "fused"])
@pytest.mark.parametrize("facet", [None, "d_model"])
def test_many_series_with_long_names_stay_readable(facet, ratio_to):
    names = [*MANY[:20], *LONG_NAMES]
    figure = chosen.figure(
        frame(costs(names)), x="T", y="time_s", facet=facet, ratio_to=ratio_to, where="T < 5000 and d_model > 0"
    )
    assert_apart_and_inside(figure)
    drawn = [look_of(handle) for legend in figure.legends for handle in legend.legend_handles]
    assert len(set(drawn)) == len(drawn) == 22


# Tables


def test_a_table_holds_values_intervals_statuses_and_what_nobody_asked_for():
    rows = [timed("b", 64, 8, 1e-3, spread=0.1), failed("b", 128, 8, "oom"), timed("a", 64, 8, 2e-3, spread=0)]
    made = chosen.table(frame(rows), rows="variant", columns="T", value="time_s")
    assert made.rows == [["variant", "64", "128"], ["b", "1.00 ms [0.900, 1.10]", "oom"], ["a", "2.00 ms", "–"]]
    assert made.data.to_numpy().tolist() == [["b", 1e-3, "oom"], ["a", 2e-3, "–"]]
    assert made.note == "1 of 3 cells missing: oom 1. Intervals hold the median with 95 %"
    assert "b,0.001,oom" in writers.csv(made)


def test_sizes_ascend_in_both_directions():
    rows = [timed("a", T, d, T * d) for d in (128, 8, 16) for T in (1024, 64, 256)]
    made = chosen.table(frame(rows), rows="d_model", columns="T", value="time_s")
    assert made.rows[0] == ["d_model", "64", "256", "1024"]
    assert [row[0] for row in made.rows[1:]] == ["8", "16", "128"]


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("peak_bytes", 3 * 2**20, "3.00 MiB"),
        ("flops_per_s", 2.5e9, "2.50 G/s"),
        ("n_params", 16384, "16.4 k"),
        ("seed", 3, "3"),
        ("accuracy", 0.98765, "0.988"),
    ],
)
def test_a_value_is_said_in_the_unit_of_its_column(column, value, text):
    row = timed("a", 64, 8, 1.0, measures=["time", "memory", "accuracy"]) | {column: value}
    assert chosen.table(frame([row]), rows="variant", columns="T", value=column).rows[1] == ["a", text]


# Wrong requests


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"x": "t"}, 'x: unknown column "t"; did you mean "T"?'),
        ({"y": "tme_s"}, 'y: unknown column "tme_s"; did you mean "time_s"?'),
        ({"hue": "varaint"}, 'hue: unknown column "varaint"; did you mean "variant"?'),
        ({"facet": "d_modl"}, 'facet: unknown column "d_modl"; did you mean "d_model"?'),
        ({"y": "status"}, 'column "status" holds no numbers'),
        ({"y": "accuracy"}, "none was asked for accuracy"),
        ({"x": "n_layers"}, "none has a n_layers"),
        ({"ratio_to": "fusde"}, 'ratio_to: no variant "fusde" among the cells; did you mean "fused"?'),
        ({"ratio_to": "fused", "where": "label == 'fused'"}, 'nothing but "fused" among the cells'),
        ({"where": "d_modl == 64"}, "name 'd_modl' is not defined; did you mean \"d_model\"?"),
        ({"where": "d_model = 64"}, "not a condition; expected one such as"),
        ({"where": "T"}, "not a condition; expected one such as"),
        ({"where": "T =="}, "invalid syntax"),
        ({"where": ""}, "where ''"),
        ({"where": "T > 'x'"}, "where \"T > 'x'\""),
        ({"where": "@os.getcwd() == T"}, "'os' is not defined"),
        ({"where": "T > 100000"}, "no cell to show"),
        ({"facet": "cell"}, "facet cell: 90 values, at most 60 fit one figure"),
    ],
)
def test_a_wrong_request_is_one_clear_line(asked, message):
    with pytest.raises(RequestError) as caught:
        chosen.figure(frame(costs()), **{"x": "T", "y": "time_s"} | asked)
    assert len(caught.value.mistakes) == 1
    assert "\n" not in str(caught.value)
    assert message in str(caught.value)


def test_all_unknown_columns_are_told_at_once():
    with pytest.raises(RequestError) as caught:
        chosen.table(frame(costs()), rows="varaint", columns="TT", value="time")
    assert len(caught.value.mistakes) == 3


def test_more_lines_than_there_are_looks_are_refused():
    rows = [timed("a", 64, 8, 1.0, seed=seed) for seed in range(N_LOOKS + 1)]
    with pytest.raises(RequestError, match=f"hue seed: {N_LOOKS + 1} values"):
        chosen.figure(frame(rows), x="T", y="time_s", hue="seed")


# From Python and from the command line


@pytest.fixture
def run(tmp_path):
    cells = [cell(f"{label}{T}", label=label, variant=label, T=T, S=T) for label in ("full", "odd") for T in (64, 128)]
    records = [timed_record("full64", 1e-3), timed_record("full128", 4e-3), timed_record("odd64", 2e-3)]
    return run_of(tmp_path / "run", cells, [*records, record("odd128", status="oom")])


def test_a_run_draws_itself(run):
    figure = attnbench.Run(run).plot(x="T", y="time_s", ratio_to="full")
    assert series(figure) == {"odd": [[64, 2]]}
    table = attnbench.Run(str(run)).table(rows="variant", columns="T", value="time_s")
    assert table.loc["full"].tolist() == [1e-3, 4e-3]
    assert np.isnan(table.loc["odd", "128"])
    assert table.attrs["note"] == "1 of 4 cells missing: oom 1. Intervals hold the median with 95 %"


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command line in this process; returns its exit status, what it printed and what it complained of."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["attnbench", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return call


def test_no_display_is_needed(run):
    words = [sys.executable, "-m", "attnbench", "plot", str(run), "--x", "T", "--y", "time_s", "-o", str(run / "x.svg")]
    without = os.environ | {"DISPLAY": "localhost:10.0", "MPLBACKEND": "TkAgg"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, env=without)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"plot: {run / 'x.svg'}\n")


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xm"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_the_suffix_of_a_picture_is_its_format(run, command, suffix, start):
    file = run / f"x.{suffix}"
    assert command("plot", run, "--x", "T", "--y", "time_s", "-o", file) == (0, f"plot: {file}\n", "")
    assert file.read_bytes().startswith(start)


def test_a_table_is_printed_whole_or_written_in_the_format_of_its_suffix(run, command):
    asked = ["table", run, "--rows", "variant", "--columns", "T", "--value", "time_s"]
    status, shown, _ = command(*asked)
    assert status == 0
    assert "1.00 ms" in shown
    assert "oom" in shown
    assert shown.endswith("1 of 4 cells missing: oom 1. Intervals hold the median with 95 %\n")
    for suffix, part in (
        ("csv", "odd,0.002,oom"),
        ("md", r"| odd | 2.00 ms \[1.89, 2.12\] | oom |"),
        ("tex", r"odd & 2.00 ms {[}1.89, 2.12{]} & oom \\"),
    ):
        file = run / f"x.{suffix}"
        assert command(*asked, "-o", file) == (0, f"table: {file}\n", "")
        assert part in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plot", "--x", "T", "--y", "tim_s", "-o", "x.svg"], 'did you mean "time_s"?'),
        (["plot", "--x", "T", "--y", "time_s", "-o", "x.gif"], "ends in .svg, .png, .pdf"),
        (["plot", "--x", "T", "--y", "time_s", "-o", "nowhere/x.svg"], "nowhere: no such folder"),
        (["table", "--rows", "variant", "--columns", "T", "--value", "time_s", "-o", "x.svg"], ".csv, .md, .tex"),
        (["table", "--rows", "variant", "--columns", "T", "--value", "time_s", "--where", "T <"], "invalid syntax"),
    ],
)
def test_a_wrong_command_is_one_line_and_exit_status_2(run, command, arguments, message):
    status, printed, complaint = command(arguments[0], run, *arguments[1:])
    assert (status, printed) == (2, "")
    assert len(complaint.splitlines()) == 1
    assert message in complaint


def test_accuracies_keep_their_scale():
    figure = chosen.figure(frame(scores()), x="T", y="accuracy", facet="d_model")
    assert figure.axes[0].get_ylim() == (-0.02, 1.04)

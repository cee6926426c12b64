"""Pictures: nothing overlaps or is cut off, bad data spoils nothing, and the caller's matplotlib is left alone."""

import subprocess
import sys
import threading
from itertools import combinations, pairwise

import matplotlib
import numpy as np
import pytest
from frames import costs, failed, frame, run_frame, scores, timed
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from attnbench.analyse.compare import verdicts
from attnbench.analyse.points import TIME, points
from attnbench.report import planes, plots, scales
from attnbench.report.figures import pictures
from attnbench.report.looks import BUILT_IN, looks

NAN = float("nan")
LONG_NAMES = ["x" * 60, "a_plugin_with_a_name_that_goes_on_" + "y" * 26]
MANY = [*BUILT_IN, *(f"variant_{i}" for i in range(17)), *LONG_NAMES]


def drawn(rows, name="time", baseline="fused"):
    return {picture.name: picture.figure for picture in pictures(frame(rows), baseline)}[name]


def series(figure):
    """The measured points of the first panel, by the label their look stands for."""
    by_look = {look_of(handle): handle.get_label() for handle in figure.legends[0].legend_handles}
    lines = [line for line in figure.axes[0].lines if line.get_marker() not in ("None", None, "")]
    return {by_look[look_of(line)]: line.get_xydata().tolist() for line in lines}


def look_of(line):
    return to_hex(line.get_color()), line.get_marker(), line.get_linestyle()


def boxes(figure):
    """What a reader reads, as boxes in pixels: texts, and the panels with their tick labels."""
    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    parts = [*figure.texts, *figure.legends]
    return [part.get_window_extent() for part in parts] + [axes.get_tightbbox() for axes in figure.axes]


def assert_apart_and_inside(figure):
    found, page = boxes(figure), figure.bbox
    for box in found:
        assert page.x0 <= box.x0 + 1 < box.x1 - 1 <= page.x1
        assert page.y0 <= box.y0 + 1 < box.y1 - 1 <= page.y1
    for one, other in combinations(found, 2):
        assert not (one.x0 + 1 < other.x1 and other.x0 + 1 < one.x1 and one.y0 + 1 < other.y1 and other.y0 + 1 < one.y1)


def test_every_variant_has_a_look_of_its_own():
    found = looks((name, name) for name in MANY)
    assert len(set(found.values())) == len(MANY) > 20


@given(names=st.lists(st.text("abcdef_[]=1", min_size=1, max_size=6), unique=True, max_size=40))
def test_looks_are_unique_and_do_not_depend_on_the_order(names):
    pairs = [(name, name.partition("[")[0]) for name in names]
    found = looks(pairs)
    assert len(set(found.values())) == len(names)
    assert looks(reversed(pairs)) == found


def test_a_built_in_has_the_same_look_in_every_run():
    alone = {name: looks([(name, name)])[name] for name in BUILT_IN}
    together = looks((name, name) for name in MANY)
    assert all(together[name] == alone[name] for name in BUILT_IN)


def test_options_of_one_variant_share_its_colour():
    found = looks([("window[window=16]", "window"), ("window[window=64]", "window"), ("fused", "fused")])
    assert found["window[window=16]"].colour == found["window[window=64]"].colour != found["fused"].colour


def test_a_variant_that_is_missing_from_one_figure_changes_no_look_in_it():
    rows = costs(["b_plugin", "fused"], sizes=[64, 128], widths=[8])
    rows += [row | {"threads": 2} for row in costs(["a_plugin", "b_plugin"], sizes=[64, 128], widths=[8])]
    figures = {picture.name: picture.figure for picture in pictures(frame(rows), "fused")}
    handles = [figures[f"time_threads-{n}"].legends[0].legend_handles for n in (1, 2)]
    one, two = ({handle.get_label(): look_of(handle) for handle in part} for part in handles)
    assert one["b_plugin"] == two["b_plugin"]


SIZES, WIDTHS = [64, 128, 256, 1024, 4096, 16384], [32, 64, 128, 256]


@pytest.mark.parametrize(
    ("labels", "sizes", "widths"),
    [
        *(
            (labels, SIZES, widths)
            for labels in (["fused"], ["fused", "linear", "window", "lstm"])
            for widths in ([64], WIDTHS)
        ),
        (MANY, [64, 1024, 16384], [64]),
        (MANY[-21:], SIZES[::2], WIDTHS),
    ],
)
def test_nothing_overlaps_and_nothing_is_cut_off(labels, sizes, widths):
    rows = costs(labels, sizes=sizes, widths=widths)
    for picture in pictures(frame(rows), labels[0]):
        assert_apart_and_inside(picture.figure)


@pytest.mark.parametrize("baseline", ["fused[n_kv_heads=None]", *LONG_NAMES])
def test_nothing_overlaps_when_the_baseline_has_a_long_name(baseline):
    rows = costs(["fused", baseline], sizes=[64, 128, 256], widths=[32, 64])
    for picture in pictures(frame(rows), baseline):
        assert_apart_and_inside(picture.figure)


def test_nothing_overlaps_in_pictures_of_accuracy():
    for picture in pictures(frame(scores(["fused", "window", *LONG_NAMES])), "fused"):
        assert_apart_and_inside(picture.figure)


@pytest.mark.parametrize("bad", [0.0, NAN, -1.0, float("inf")])
def test_a_bad_point_is_left_out_and_counted(bad):
    figure = drawn([timed("a", T, 8, value) for T, value in ((64, 1.0), (128, bad), (256, 4.0))])
    assert series(figure) == {"a": [[64, 1], [256, 4]]}
    assert "1 of 3 cells missing: not measured 1" in [text.get_text() for text in figure.texts]
    low, high = figure.axes[0].get_ylim()
    assert 0.2 < low < 1
    assert 4 < high < 20


@pytest.mark.parametrize("value", [0.0, NAN])
def test_a_series_without_data_is_in_the_legend(value):
    rows = [timed("a", T, 8, 1.0) for T in (64, 128)] + [timed("dead", T, 8, value, status="oom") for T in (64, 128)]
    figure = drawn(rows)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "dead (no data)"]
    assert list(series(figure)) == ["a"]


def test_a_figure_without_any_data_says_so(tmp_path):
    figure = drawn([failed("a", T, 8, "oom") for T in (64, 128)])
    assert [text.get_text() for text in figure.axes[0].texts] == ["no data"]
    plots.save(figure, tmp_path / "empty")
    assert (tmp_path / "empty.png").stat().st_size > 1000


def test_one_point_is_a_marker():
    figure = drawn([timed("a", 64, 8, 1.0)])
    (line,) = figure.axes[0].lines
    assert line.get_xydata().tolist() == [[64, 1]]
    assert line.get_marker() in "os^DvPX*"


def test_an_interval_that_reaches_below_zero_is_drawn_down_to_the_axis():
    figure = drawn([timed("a", 64, 8, 1.0, spread=2.0), timed("a", 128, 8, 1.0)])
    ends = figure.axes[0].collections[0].get_segments()[0][:, 1]
    assert 0 < ends[0] < figure.axes[0].get_ylim()[0]
    assert ends[1] == 3
    assert figure.axes[0].get_ylim()[1] > 3


def test_cells_with_different_settings_are_in_different_figures():
    rows = [timed("a", T, 8, 1.0, threads=n) for n in (1, 2) for T in (64, 128)]
    found = {picture.name: picture.figure for picture in pictures(frame(rows), "a")}
    assert {name for name in found if name.startswith("time")} == {"time_threads-1", "time_threads-2"}
    assert all(len(figure.axes[0].lines) == 1 for figure in found.values() if figure.axes[0].lines)
    assert [found[f"time_threads-{n}"].texts[0].get_text()[-9:].strip() for n in (1, 2)] == ["1 thread", "2 threads"]


def test_names_are_text_and_never_formulas(tmp_path):
    names = ["a$b$", "_hidden", "<b>&amp;", "漢字", r"\frac"]
    figure = drawn([timed(name, T, 8, 1.0) for name in names for T in (64, 128)])
    assert [text.get_text().replace("\\$", "$") for text in figure.legends[0].get_texts()] == [
        "a$b$", "_hidden", "<b>&amp;", "\u25a1\u25a1", r"\frac",
    ]  # fmt: skip
    plots.save(figure, tmp_path / "names")


def plane(ratio, T=(64, 128, 256, 512), d=(32, 64, 128)):
    rows = [timed("base", t, width, 1.0) for t in T for width in d]
    rows += [timed("x", t, width, ratio(t, width)) for t in T for width in d]
    found = verdicts(points(frame(rows), TIME), "base")
    return planes.ratio_planes(found, "base", "time", title="t").axes[0]


def contour(axes):
    """The contour's vertices as (T, d)."""
    lines = [part for part in axes.collections if hasattr(part, "levels")]
    return 2.0 ** np.concatenate([path.vertices for part in lines for path in part.get_paths()]) if lines else []


def test_the_measured_contour_lies_where_the_costs_are_equal():
    found = contour(plane(lambda T, d: (4 * d / T) ** 1.3))
    assert len(found) > 2
    assert found[:, 0] == pytest.approx(4 * found[:, 1])


def test_the_contour_stays_within_the_data():
    found = contour(plane(lambda T, d: NAN if d == 128 else 200 / T))
    assert found[:, 0] == pytest.approx(200)
    assert found[:, 1].max() == pytest.approx(64)


def test_without_a_crossing_there_is_no_contour_and_the_legend_says_so():
    axes = plane(lambda T, d: 2.0)
    assert len(contour(axes)) == 0
    texts = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert texts == ["T = d", "same time as base, interpolated (not met in the measured range)"]


def test_no_contour_is_drawn_through_noise():
    noise = np.random.default_rng(0)
    assert len(contour(plane(lambda T, d: noise.normal(1, 0.02)))) == 0
    found = contour(plane(lambda T, d: noise.normal(1, 0.01) if d == 32 else 200 / T))
    assert found[:, 0] == pytest.approx(200)
    assert found[:, 1].min() == pytest.approx(64)


def test_one_width_has_its_crossing_as_an_upright_line():
    axes = plane(lambda T, d: 200 / T, d=(64,))
    upright = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "-"]
    assert 2.0 ** np.array(upright) == pytest.approx([200])


def test_one_length_has_its_crossing_as_a_level_line():
    axes = plane(lambda T, d: d / 50, T=(64,))
    level = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == "-"]
    assert 2.0 ** np.array(level) == pytest.approx([50])
    assert legend_of(axes)[1] == "same time as base, interpolated"


def legend_of(axes):
    return [text.get_text() for text in axes.figure.legends[0].get_texts()]


@pytest.mark.parametrize("T", [(64, 128, 256), (64,)])
def test_the_legend_says_met_where_a_line_is_drawn_and_nowhere_else(T):
    """Widths that differ to both sides, with a row of no values between them in the plane."""
    axes = plane(lambda T, d: {32: 2.0, 64: NAN, 128: 0.5}[d], T=T)
    met = legend_of(axes)[1] == "same time as base, interpolated"
    lines = [line for line in axes.lines if line.get_linestyle() == "-"]
    assert met == (len(lines) + len(contour(axes)) > 0) == (T == (64,))


def test_the_line_of_equal_sizes_is_in_every_plane():
    axes = plane(lambda T, d: 2.0)
    (line,) = axes.lines
    (x0, y0), (x1, y1) = axes.transData.inverted().transform(line.get_transform().transform([(0, 0), (1, 1)]))
    assert (y1 - y0) / (x1 - x0) == pytest.approx(1)
    assert y0 == pytest.approx(x0)


def test_cells_are_numbered_or_hatched_with_their_status():
    rows = [timed("fused", T, 64, 1.0) for T in (64, 128, 256)] + [
        timed("x", 64, 64, 0.25),
        failed("x", 128, 64, "oom"),
    ]
    axes = drawn(rows, "time_ratio").axes[0]
    assert [text.get_text() for text in axes.texts] == ["0.25", "oom"]
    assert [patch.get_hatch() for patch in axes.patches] == ["////"]
    assert axes.collections[0].norm.vmin == -axes.collections[0].norm.vmax


def test_ratios_that_are_the_same_or_ambiguous_bear_a_mark_and_the_note_says_which():
    rows = [timed("fused", T, 64, 1.0, spread=0.001) for T in (64, 128, 256)]
    rows += [timed("x", 64, 64, 0.5), timed("x", 128, 64, 1.0, spread=0.001), timed("x", 256, 64, 1.1, spread=0.5)]
    axes = drawn(rows, "time_ratio").axes[0]
    assert [text.get_text() for text in axes.texts] == ["0.50", "≈1.00", "1.1?"]
    assert "≈ the same within 3 %, ? ambiguous; all 6 cells measured" in [text.get_text() for text in axes.figure.texts]


def test_a_dot_stands_for_a_mark_where_a_cell_has_no_room():
    sizes = range(16, 16 * 61, 16)
    rows = [timed(name, T, 64, 1.0, spread=0.001) for name in ("fused", "x") for T in sizes]
    axes = drawn([*rows, timed("fused", 16, 128, 1.0), timed("x", 16, 128, 3.0)], "time_ratio").axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "."]
    assert len(dots) + sum(text.get_text().startswith("≈") for text in axes.texts) == len(sizes)
    assert len(dots) > 30


def test_accuracy_planes_reach_from_the_floor_to_one():
    figures = {picture.name: picture.figure for picture in pictures(run_frame(), "fused")}
    norm = figures["accuracy_plane"].axes[0].collections[0].norm
    assert (norm.vmin, norm.vmax) == (0.125, 1)
    for name in ("accuracy", "accuracy_gap"):
        labels = [text.get_text() for text in figures[name].legends[0].get_texts()]
        assert labels[-2:] == ["chance", "floor"]
        levels = {float(line.get_ydata()[0]) for line in figures[name].axes[0].lines if line.get_marker() == "None"}
        assert levels == {1 / 12, 0.125}


@given(sizes=st.lists(st.integers(1, 10**5), min_size=1, max_size=9, unique=True), n=st.integers(1, 40))
def test_series_set_apart_stay_nearer_to_their_own_size_than_to_any_other(sizes, n):
    sizes = sorted(sizes)
    shift = np.log2(scales.dodge(sizes, n))
    assert len(set(shift)) == n
    assert shift + shift[::-1] == pytest.approx(0, abs=1e-9)
    if len(sizes) > 1:
        assert shift.max() <= np.diff(np.log2(sizes)).min() * 0.26
    assert shift.max() < np.log2(1.25)


def test_accuracies_that_are_equal_do_not_hide_each_other():
    rows = [row | {"accuracy": 1.0} for row in scores(["fused", "linear", "lstm"])]
    axes = drawn(rows, "accuracy").axes[0]
    starts = [line.get_xdata()[0] for line in axes.lines if line.get_marker() not in ("None", None, "")]
    assert starts == sorted(set(starts))
    assert len(starts) == 3
    assert np.prod(starts) ** (1 / 3) == pytest.approx(32)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["32", "64", "128"]


def test_slices_without_numbers_stand_in_the_order_of_the_task():
    rows = scores(["fused"], sizes=[32], widths=[32], seeds=[0])
    rows[0]["slices"] = {name: {"accuracy": 0.5, "n": 9} for name in ("near", "middle", "far")}
    rows[0]["slice_unit"] = "place"
    axes = drawn(rows, "accuracy_place").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["near", "middle", "far"]
    assert axes.get_xlabel() == "place"


@given(low=st.floats(1e-9, 1e3), factor=st.floats(4, 1e9), base=st.sampled_from([2, 10]))
def test_ticks_are_few_round_and_inside(low, factor, base):
    found = scales.round_ticks(low, low * factor, base)
    assert 1 <= len(found) <= 7
    assert all(low * (1 - 1e-9) <= tick <= low * factor * (1 + 1e-9) for tick in found)
    assert found == sorted(set(found))


@given(sizes=st.lists(st.integers(1, 10**5), min_size=1, max_size=30, unique=True), width=st.floats(1, 9))
def test_tick_labels_do_not_touch(sizes, width):
    ticks = {size: str(size) for size in sorted(sizes)}
    kept = list(scales.fitting(ticks, width, 0.3).items())
    inches = width / (np.log2(max(sizes) / min(sizes)) + 0.6)
    for (a, text_a), (b, text_b) in pairwise(kept):
        assert np.log2(b / a) * inches >= 0.95 * scales.CHARACTER * (len(text_a) + len(text_b)) / 2
    assert kept[0][0] == min(sizes)


def test_the_same_data_gives_the_same_files(tmp_path):
    for name in ("a", "b"):
        plots.save(drawn([timed("x", T, 8, T / 1e3) for T in (64, 128)]), tmp_path / name)
    for kind in ("svg", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_the_style_of_the_caller_is_neither_used_nor_changed(tmp_path):
    with matplotlib.rc_context({"font.size": 40, "axes.facecolor": "black", "svg.hashsalt": "mine"}):
        before = dict(matplotlib.rcParams)
        figure = drawn([timed("x", 64, 8, 1.0)])
        plots.save(figure, tmp_path / "x")
        assert dict(matplotlib.rcParams) == before
    assert to_hex(figure.axes[0].get_facecolor()) == "#ffffff"
    assert figure.axes[0].title.get_fontsize() < 12


def test_figures_can_be_made_in_threads(tmp_path):
    before = dict(matplotlib.rcParams)
    rows = [timed("x", T, 8, 1.0) for T in (64, 128)]
    threads = [threading.Thread(target=lambda i=i: plots.save(drawn(rows), tmp_path / str(i))) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({(tmp_path / f"{i}.png").read_bytes() for i in range(4)}) == 1
    assert dict(matplotlib.rcParams) == before


SCRIPT = """
import sys, pathlib, matplotlib
backend = matplotlib.rcParams._get("backend")
from attnbench.report import write
assert "torch" not in sys.modules
from frames import frame, timed
write(pathlib.Path(sys.argv[1]), frame([timed("x", 64, 8, 1.0)]), question="", baseline="x", environments={})
assert matplotlib.rcParams._get("backend") == backend, backend
assert not {"matplotlib.pyplot", "tkinter", "torch"} & set(sys.modules)
print(backend)
"""


def test_no_window_system_is_touched(tmp_path):
    env = {
        "MPLBACKEND": "TkAgg",
        "DISPLAY": "localhost:10.0",
        "PYTHONPATH": ":".join(sys.path),
        "MPLCONFIGDIR": str(tmp_path),
    }
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().lower() == "tkagg"
    assert (tmp_path / "plots" / "time.png").exists()

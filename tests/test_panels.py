"""Where series are many each can still be told: by its family's panel, its row, or its sentence."""

from collections import Counter

import pytest
from frames import costs, failed, frame, scores, timed
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from test_plots import LONG_NAMES, assert_apart_and_inside, look_of

from attnbench.report import panels
from attnbench.report.answer import answer
from attnbench.report.figures import pictures
from attnbench.report.looks import BUILT_IN, FAINT, FAMILIES, OTHERS, family, looks

PLUGINS = ["my_plugin", "window[window=4]", "another"]
MANY = [*BUILT_IN, *PLUGINS]
SIZES, WIDTHS = (64, 128, 256), (32, 64)
NAMES = st.sampled_from([*MANY, *(f"plugin_{i}" for i in range(30))])


def drawn(rows, name, baseline="fused"):
    """The first picture of this name; those that follow are not drawn."""
    return next(picture.figure for picture in pictures(frame(rows), baseline) if picture.name == name)


def in_colour(axes):
    """The looks of the series in a panel."""
    return [look_of(line) for line in axes.lines if line.get_marker() not in ("None", None, "")]


def legend(one):
    """The entries of a legend: names by look."""
    return {look_of(handle): handle.get_label() for handle in one.legend_handles}


@given(labels=st.lists(NAMES, unique=True), size=st.integers(1, 9), baseline=st.sampled_from(["", "fused"]))
def test_every_label_but_the_baseline_is_in_one_part_and_no_part_is_too_large(labels, size, baseline):
    parts = panels.by_family(labels, baseline, size)
    assert sorted(label for part in parts for label in part.labels) == sorted(set(labels) - {baseline})
    assert all(1 <= len(part.labels) <= size for part in parts)
    assert all(len({family(label) for label in part.labels}) == 1 for part in parts)
    assert len({part.name for part in parts}) == len(parts)


def test_every_built_in_has_a_family_and_no_variant_two():
    assert [name for name in BUILT_IN if family(name) == OTHERS] == []
    members = [variant for variants in FAMILIES.values() for variant in variants]
    assert len(members) == len(set(members))
    assert family("window[window=4]") == "sparse attention"
    assert family("windowed") == OTHERS


def test_a_built_in_has_the_colour_of_the_usual_baseline_in_no_panel_but_that_of_strided():
    found = looks((name, name) for name in BUILT_IN)
    assert {name for name, look in found.items() if look.colour == found["fused"].colour} == {"fused", "strided"}


@pytest.fixture(scope="module")
def time():
    return drawn(costs(MANY, SIZES, WIDTHS), "time")


def test_many_series_have_their_own_look_in_one_panel_of_each_width_and_the_baseline_in_all(time):
    style = looks((name, name.partition("[")[0]) for name in MANY)
    known = {(to_hex(look.colour), look.marker, look.line): name for name, look in style.items()}
    for column in range(len(WIDTHS)):
        shown = Counter(known[look] for axes in time.axes[column :: len(WIDTHS)] for look in in_colour(axes))
        n_parts = len(time.axes) // len(WIDTHS)
        assert shown == {name: n_parts if name == "fused" else 1 for name in MANY}


def test_the_legend_beside_a_panel_names_what_is_in_colour_there(time):
    rows = time.axes[:: len(WIDTHS)]
    assert len(time.legends) == len(rows)
    for one, axes in zip(time.legends, rows, strict=True):
        assert sorted(legend(one)) == sorted(in_colour(axes))
        at = one.get_window_extent()
        assert axes.get_window_extent().y0 < (at.y0 + at.y1) / 2 < axes.get_window_extent().y1
    titles = [one.get_title().get_text().replace("\n", " ") for one in time.legends]
    assert titles == [*FAMILIES, OTHERS]


def test_all_other_series_are_pale_behind(time):
    for axes in time.axes:
        (pale,) = [part for part in axes.collections if to_hex(part.get_color()[0]) == FAINT]
        assert len(pale.get_segments()) + len(in_colour(axes)) == len(MANY)
        assert all(line.get_zorder() > pale.get_zorder() for line in axes.lines)


def test_a_legend_lists_its_series_as_their_lines_end():
    plugins = [f"p{i}" for i in range(13)]
    rows = [timed("fused", T, 8, 1.0) for T in SIZES]
    rows += [timed(name, T, 8, (i * 5 % 13 + 1) * T) for i, name in enumerate(plugins) for T in SIZES]
    ends = {name: i * 5 % 13 for i, name in enumerate(plugins)}
    for one in drawn(rows, "time").legends:
        named = [text.get_text() for text in one.get_texts()]
        assert named == [*sorted(named[:-1], key=lambda name: -ends[name]), "fused"]


def test_as_many_series_as_one_panel_holds_share_it():
    most = drawn(costs(MANY[: panels.MOST], SIZES, WIDTHS), "time")
    assert len(most.axes) == len(WIDTHS)
    assert len(in_colour(most.axes[0])) == len(most.legends[0].get_texts()) == panels.MOST
    assert len(drawn(costs(MANY[: panels.MOST + 1], SIZES, WIDTHS), "time").axes) > len(WIDTHS)


@pytest.mark.parametrize("widths", [(32,), (8, 16, 32, 64, 128)])
def test_nothing_overlaps_in_panels_of_families(widths):
    rows = costs([*MANY[:11], *PLUGINS, *LONG_NAMES], SIZES, widths)
    for picture in pictures(frame(row | {"measures": ["time"]} for row in rows), "fused"):
        assert_apart_and_inside(picture.figure)


def test_nothing_overlaps_where_accuracies_are_many():
    for picture in pictures(frame(scores(MANY[:13], sizes=[32, 64], seeds=[0])), "fused"):
        assert_apart_and_inside(picture.figure)


def test_an_overview_has_a_row_for_each_variant_and_its_ratios_in_it():
    rows = [timed(name, T, 8, i + 1.0, spread=0.001) for i, name in enumerate(MANY) for T in SIZES]
    rows[-1] = failed(MANY[-1], SIZES[-1], 8, "oom")
    axes = drawn(rows, "time_overview", baseline=MANY[0]).axes[0]
    named = {round(at, 6): text.get_text() for at, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)}
    assert sorted(named.values()) == sorted(MANY[1:])
    cells = [text for text in axes.texts if text.get_ha() == "center"]
    last = {named[round(text.get_position()[1], 6)]: text.get_text() for text in cells if text.get_position()[0] == 2}
    assert last["full"] == "2.0"
    assert last["linear"] == "3.0"
    assert last[MANY[-1]] == "oom"
    assert len(cells) == len(SIZES) * (len(MANY) - 1)
    assert [patch.get_hatch() for patch in axes.patches].count("////") == 1
    families = [text.get_text() for text in axes.texts if text.get_ha() != "center"]
    assert families == [*FAMILIES, OTHERS]


def test_few_variants_have_planes_alone():
    found = [picture.name for picture in pictures(frame(costs(MANY[: panels.MOST], SIZES, WIDTHS)), "fused")]
    assert "time_ratio" in found
    assert "time_overview" not in found


def test_many_crossovers_are_named_by_their_panels():
    plugins = [f"p{i}" for i in range(panels.MOST + 1)]
    rows = [timed("fused", T, d, 1e-6 * T**2, spread=0.001) for T in SIZES for d in WIDTHS]
    rows += [timed(name, T, d, 1e-4 * T, spread=0.001) for name in plugins for T in SIZES for d in WIDTHS]
    figure = drawn(rows, "time_crossover_d")
    assert [axes.get_title(loc="left") for axes in figure.axes] == plugins
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["T = d"]
    assert_apart_and_inside(figure)


def test_variants_of_which_the_same_is_true_share_a_sentence():
    slow = ["p1", "p2", "p3", "p4", "p5"]
    laws = {"fused": lambda T: 1e-6 * T**2, "quick": lambda T: 1e-4 * T} | {
        name: lambda T: 2e-6 * T**2 for name in slow
    }
    rows = [timed(name, T, 8, law(T), spread=0.001) for name, law in laws.items() for T in SIZES]
    (told,) = [one.text for one in answer(frame(rows), "fused") if one.about == "Time"]
    assert told.startswith("quick is faster than fused from T ≈ 100 (d = 8).")
    assert told.endswith("p1, p2, p3, p4 and p5: each is slower than fused at every measured T (d = 8).")
    (told,) = [one.text for one in answer(frame(rows[:-3]), "fused") if one.about == "Time"]
    assert "p4 is slower than fused at every measured T (d = 8)." in told

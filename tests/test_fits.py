"""What a report says of fitted terms: every variant has its terms or a reason, in table, head and picture."""

import re

import numpy as np
import pytest
from frames import costs, failed, frame, timed
from matplotlib.colors import to_hex

from attnbench.report import fits
from attnbench.report.answer import answer
from attnbench.report.figures import pictures
from attnbench.report.looks import TERM_COLOURS, looks

ALL = ("fused", "full", "linear", "window", "lstm")


@pytest.fixture(scope="module")
def whole():
    """Five variants over six T and three d, times with 3 % noise."""
    return frame(costs(ALL))


@pytest.fixture(scope="module")
def made(whole):
    return {table.name: table for table in fits.tables(whole)}


def entry(table, variant, head):
    (text,) = table.shown.loc[table.shown["variant"] == variant, head]
    return text


def test_each_measure_has_a_table_of_variants_and_terms(made):
    assert list(made) == ["fits_time", "fits_memory", "fits_operations"]
    for name, table in made.items():
        terms = ["1", "d²", "T", "T d", "T d²", "H T²", "T² d"]
        terms = terms if name == "fits_memory" else [term for term in terms if term != "d²"]
        assert list(table.shown.columns) == ["variant", *terms, "R²", "largest T predicted", "note"]
        assert tuple(table.shown["variant"]) == ALL
        assert all(cell.strip() and cell != "nan" for row in table.rows for cell in row)
        assert table.note.startswith("all 90 cells measured; share of each term at T = 2048, d = 256")


def test_terms_that_bytes_have_are_told_exactly(made):
    table = made["fits_memory"]
    assert entry(table, "full", "H T²") == "88 % · 8.00 B [8.00, 8.00]"
    assert entry(table, "full", "T d") == "12 % · 36.0 B [36.0, 36.0]"
    assert entry(table, "full", "T² d") == "≤ 0 %"
    assert entry(table, "full", "R²") == "1.000"
    assert entry(table, "full", "largest T predicted") == "+0 % [+0, +0]"


def test_terms_of_times_have_a_share_a_coefficient_and_an_interval(made):
    text = entry(made["fits_time"], "lstm", "T d²")
    share, _, rest = text.partition(" % · ")
    assert 90 <= int(share) <= 99
    assert rest.startswith("2.")
    assert " ns [" in rest
    assert entry(made["fits_time"], "lstm", "T² d").startswith("≤ ")


def test_the_file_holds_bare_numbers_of_each_term(made):
    data = made["fits_time"].data
    assert len(data) == len(ALL) * 6
    assert data.groupby("variant")["share"].sum().to_numpy() == pytest.approx(1)
    assert ((data["low"] <= data["coefficient"] * 1.001) & (data["coefficient"] <= data["high"] * 1.001)).all()
    assert set(data["seen"]) <= {"resolved", "small", "unresolved"}
    assert set(data["level"]) == {"layer"}
    assert (data["held_out_T"] == 2048).all()


def test_the_head_names_the_largest_term_of_each_variant(whole):
    by_about = {one.about: one.text for one in answer(whole, "fused")}
    assert by_about["Memory by term"] == (
        "Largest at T = 2048, d = 256: "
        "fused T d 100 %, full H T² 88 %, linear T d 100 %, window T d 88 %, lstm T d 100 %."
    )
    assert by_about["Time by term"].startswith("Largest at T = 2048, d = 256: fused T")


def test_the_head_says_where_a_fit_is_poor():
    rows = [timed("a", T, 64, T * (1 + (T == 256))) for T in (64, 128, 256, 512, 1024)]
    (one, *_) = fits.fitted(frame(rows))
    assert re.fullmatch(r"Largest at T = 1024, d = 64: a .+ \(residuals of \d\d %\)\.", fits.sentence(one))


def test_other_largest_sizes_are_told_apart():
    rows = [row for row in costs(("fused", "linear")) if row["label"] == "fused" or row["T"] < 2048]
    (one, _) = fits.fitted(frame(rows))
    head, _, tail = fits.sentence(one).partition("; ")
    assert head.startswith("Largest at T = 2048, d = 256: fused")
    assert tail.startswith("at T = 1024, d = 256: linear")
    assert one.shares_title == "share of each term at the largest T and d of each variant"
    (table, _) = fits.tables(frame(rows))
    assert "shares at T = 1024, d = 256" in entry(table, "linear", "note")


def test_too_few_sizes_make_no_table_no_picture_and_no_sentence():
    few = frame(costs(("fused", "linear"), sizes=(64, 128)))
    assert fits.tables(few) == []
    assert [one.about for one in answer(few, "fused") if "term" in one.about] == []
    assert [picture.name for picture in pictures(few, "fused") if picture.name.startswith("fits")] == []


def test_a_variant_with_too_few_sizes_keeps_its_row():
    rows = costs(("fused",)) + costs(("linear",), sizes=(64, 128))
    for table in fits.tables(frame(rows)):
        assert table.rows[-1] == ["linear", *["–"] * 8, "not enough sizes"]
    named = {picture.name: picture.figure for picture in pictures(frame(rows), "fused")}
    bars = named["fits_time"].axes[-1]
    assert [text.get_text() for text in bars.get_yticklabels()] == ["fused"]


def test_dropped_points_are_counted():
    rows = [failed("a", T, 64, "oom") if T == 2048 else timed("a", T, 64, T / 1e3) for T in (64, 128, 256, 512, 2048)]
    rows += [timed("b", T, 64, T / 1e3) for T in (64, 128, 256, 512, 2048)]
    (table,) = fits.tables(frame(row | {"measures": ["time"]} for row in rows))
    assert entry(table, "a", "note") == "shares at T = 512, d = 64; 1 of 5 points without value"
    assert "T, T d and T d² are one term with these sizes" in table.note
    assert list(table.shown.columns)[1:4] == ["1", "T", "T²"]


def test_a_step_of_decoding_is_not_fitted():
    assert fits.tables(frame(row | {"phase": "decode"} for row in costs(("fused",)))) == []


def test_the_picture_shows_points_curves_and_shares(whole):
    style = looks((label, label) for label in ALL)
    figure = {picture.name: picture.figure for picture in pictures(whole, "fused")}["fits_time"]
    *panels, bars = figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == ["d = 64", "d = 128", "d = 256"]
    for axes in panels:
        points = {to_hex(line.get_color()): line for line in axes.lines if line.get_marker() != "None"}
        fitted = {to_hex(line.get_color()): line for line in axes.lines if line.get_marker() == "None"}
        assert set(points) == set(fitted) == {look.colour for look in style.values()}
        for colour, line in points.items():
            curve = np.interp(line.get_xdata(), *fitted[colour].get_data())
            assert np.abs(curve / line.get_ydata() - 1).max() < 0.15
    widths = [bar.get_width() for bar in bars.patches]
    assert np.reshape(widths, (len(ALL), 6)).sum(axis=1) == pytest.approx(1)
    assert [text.get_text() for text in bars.get_yticklabels()] == list(ALL)
    assert bars.get_title(loc="left") == "share of each term at T = 2048, d = 256"


def test_what_is_not_resolved_is_hatched_and_every_term_is_in_the_legend(whole):
    (one, _) = fits.fitted(whole)
    figure = {picture.name: picture.figure for picture in pictures(whole, "fused")}["fits_time"]
    hatched = [bool(bar.get_hatch()) for bar in figure.axes[-1].patches]
    assert hatched == (fits.shares(one)["seen"] == "unresolved").tolist()
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == [*ALL, *(f"term {name}" for name in one.terms)]


def test_every_term_has_a_colour_of_its_own():
    assert len({*TERM_COLOURS.values()}) == len(TERM_COLOURS)

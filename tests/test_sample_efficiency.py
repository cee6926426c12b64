"""Sample efficiency: the smallest N at which a variant has learnt, over seeds, and how a report tells it."""

import math

import pytest
from frames import frame
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.analyse.points import ACCURACY, asked, groups
from attnbench.analyse.sample_efficiency import needed, off_curves, over_n
from attnbench.protocol import LEARNED
from attnbench.report import sample_efficiency
from attnbench.report.answer import answer
from attnbench.report.figures import pictures
from attnbench.report.tables import tables

SIZES = (64, 256, 1024)


def trained(n, accuracy, label="fused", seed=0, **more):
    """A cell; accuracy None is one without a score."""
    cell = {"label": label, "T": 32, "d_model": 16, "level": "model", "phase": None, "measures": ["accuracy"], "B": 32}
    cell |= {"task": "mqar", "chance": 0.05, "floor": 0.125, "n_scored": 512, "n_test": 512}
    return cell | {"n_training": n, "accuracy": accuracy, "seed": seed} | more


def curve(scores, **more):
    return [trained(n, accuracy, **more) for n, accuracy in zip(SIZES, scores, strict=True)]


def seeds(*curves, **more):
    return [row for seed, scores in enumerate(curves) for row in curve(scores, seed=seed, **more)]


def found(rows):
    (group,) = over_n(frame(rows))
    return needed(group.frame)


def text_of(row):
    return sample_efficiency.needed_text(row)


LOW, HIGH = 0.2, 0.95


@pytest.mark.parametrize(
    ("curves", "n", "text"),
    [
        ([(LOW, HIGH, HIGH)], 256, "256"),
        ([(LOW, LOW, LOW)], math.inf, "> 1024"),
        ([(LOW, LEARNED, HIGH)], 256, "256"),
        ([(HIGH, HIGH, HIGH), (LOW, HIGH, HIGH), (LOW, LOW, LOW)], 256, "256 [64, > 1024]"),
        ([(HIGH, HIGH, HIGH), (LOW, LOW, LOW)], math.inf, "> 1024 [64, > 1024]"),
        ([(LOW, LOW, HIGH), (LOW, LOW, LOW), (LOW, LOW, LOW)], math.inf, "> 1024 [1024, > 1024]"),
        ([(LOW, None, HIGH)], 1024, "1024"),
        ([(LOW, HIGH, HIGH), (None, None, None)], 256, "256"),
    ],
)
def test_it_is_the_median_over_seeds_of_the_smallest_n_that_has_learnt(curves, n, text):
    (row,) = found(seeds(*curves)).itertuples()
    assert (row.n, text_of(row)) == (n, text)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.sampled_from([LOW, HIGH]), min_size=3, max_size=3), min_size=1, max_size=5))
def test_it_is_one_of_the_n_that_were_tried_or_beyond_all_and_seeds_are_counted(curves):
    (row,) = found(seeds(*curves)).itertuples()
    assert row.n in (*SIZES, math.inf)
    assert row.low <= row.n <= row.high
    assert (row.n_learnt, row.n_seeds) == (sum(HIGH in scores for scores in curves), len(curves))
    assert row.largest == SIZES[-1]


def test_variants_tasks_and_pretrainings_are_judged_apart():
    rows = curve((LOW, LOW, LOW)) + curve((LOW, HIGH, HIGH), pretrain="induction") + curve((HIGH,) * 3, label="lstm")
    rows += curve((LOW, LOW, HIGH), task="ngram_lookup")
    first, second = (needed(group.frame) for group in over_n(frame(rows)))
    told = {(row.label, row.pretrain): row.n for row in first.itertuples()}
    assert told == {("fused", "none"): math.inf, ("fused", "induction"): 256, ("lstm", "none"): 64}
    assert list(second["n"]) == [1024]


def test_cells_of_different_n_or_pretraining_are_never_averaged_together():
    rows = curve((LOW, HIGH, HIGH)) + curve((HIGH, HIGH, HIGH), pretrain="induction")
    apart = groups(asked(frame(rows), ACCURACY))
    assert [len(group.frame) for group in apart] == [1] * 6


FRESH = [trained(None, HIGH), trained(None, HIGH, label="lstm")]


@pytest.mark.parametrize("more", [[], [trained(64, HIGH)], [trained(64, HIGH), trained(256, HIGH, task="copy")]])
def test_fresh_sequences_and_a_single_n_of_a_task_are_on_no_curve(more):
    whole = frame(FRESH + more)
    assert not over_n(whole)
    assert len(off_curves(whole)) == len(whole)
    told = [table.data for table in tables(whole, "fused") if table.name.startswith("accuracy")]
    assert sum(len(data) - data["variant"].isin(["chance", "floor"]).sum() for data in told) == len(whole)


def test_every_cell_is_on_a_curve_or_off_all():
    whole = frame(FRESH + curve((LOW, HIGH, HIGH)))
    (group,) = over_n(whole)
    assert set(off_curves(whole)["cell"]) == set(whole["cell"]) - set(group.frame["cell"])
    assert len(off_curves(whole)) == len(FRESH)


WHOLE = [
    *seeds((LOW, LOW, HIGH), (LOW, HIGH, HIGH), (LOW, LOW, LOW)),
    *seeds((HIGH, HIGH, HIGH), (LOW, HIGH, HIGH), pretrain="induction"),
    *seeds((LOW, 0.13, 0.13), (LOW, 0.13, None), label="lstm"),
]


def test_a_table_has_each_accuracy_by_n_and_how_many_it_takes():
    (table,) = sample_efficiency.made(frame(WHOLE))
    shown = table.shown.set_index(["variant", "pretrain"])
    assert list(shown.columns) == ["d_model", "T", "N = 64", "N = 256", "N = 1024", "N for 90 %"]
    assert list(shown["N for 90 %"]) == ["1024 [256, > 1024]", "256 [64, 256]", "> 1024"]
    assert shown.loc[("fused", "none"), "N = 64"] == "0.200 [0.200, 0.200]"
    assert shown.loc[("lstm", "none"), "N = 1024"].endswith("(1 of 2 seeds), not above chance")
    assert {"n", "n_low", "n_high", "n_learnt", "n_training", "accuracy"} <= set(table.data.columns)


def test_without_pretraining_the_table_does_not_speak_of_it():
    (table,) = sample_efficiency.made(frame(curve((LOW, HIGH, HIGH))))
    assert "pretrain" not in table.shown.columns


def test_the_report_tells_a_curve_once_and_not_n_by_n():
    whole = frame(WHOLE)
    assert not [table.name for table in tables(whole, "fused") if "accuracy" in table.name]
    (picture,) = pictures(whole, "fused")
    assert picture.name == "accuracy_sample_efficiency"
    said = [finding.text for finding in answer(whole, "fused") if "needed" in finding.text]
    assert said == [
        "Sequences needed for 90 %: from scratch: T = 32, d = 16: fused 1024, lstm > 1024; "
        "after induction: T = 32, d = 16: fused 256."
    ]


def test_a_picture_has_a_panel_for_each_pretraining_a_line_for_each_variant_and_both_references():
    ((_, caption, figure),) = sample_efficiency.pictures(*drawn(WHOLE))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["from scratch", "after induction"]
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == ["fused", "lstm", "floor", "90 %"]
    assert all(axes.get_xscale() == "log" for axes in figure.axes)
    assert "against the number N" in caption


def drawn(rows):
    from attnbench.report.looks import looks

    whole = frame(rows)
    return whole, looks(zip(whole["label"], whole["variant"], strict=True)), "fused"

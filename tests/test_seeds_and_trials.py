"""What learning took, over seeds and trials: intervals, steps with censored seeds, rates, ranks and their refusal."""

import math
import re
import statistics

import numpy as np
import pytest
from frames import frame, scores
from hypothesis import given, settings
from hypothesis import strategies as st

from attnbench.analyse.learning import best_by_n, chosen, curves, learning, ranks, rates, steps, unranked
from attnbench.analyse.seeds import interval
from attnbench.report.answer import answer
from attnbench.report.figures import pictures
from attnbench.report.learning import tables

EVERY = 50


def trial(*accuracies, lr=1e-3, diverged=False):
    """A trial that was looked at every 50 steps."""
    curve = [[EVERY * i, accuracy, 1 - accuracy] for i, accuracy in enumerate(accuracies, start=1)]
    ends = (None, None) if diverged else (accuracies[-1], 1 - accuracies[-1])
    facts = {"lr": lr, "weight_decay": 0.1, "diverged": diverged, "steps": EVERY * len(accuracies), "curve": curve}
    return facts | dict(zip(("validation_accuracy", "validation_loss"), ends, strict=True))


def cells(label, *accuracies, trials=None, **more):
    """A cell per seed at T = 64, d = 32; an accuracy of None has diverged. trials: of each seed."""
    (row,) = scores([label], sizes=[64], widths=[32], seeds=[0])
    known = {"chance": 0.1, "floor": 0.25, "ceiling": 1.0, "n_scored": 400, "n_test": 400, "rule": "as told"} | more
    return [
        row
        | known
        | {"seed": seed, "accuracy": accuracy, "status": "diverged" if accuracy is None else "ok"}
        | {"trials": None if trials is None else trials[seed]}
        for seed, accuracy in enumerate(accuracies)
    ]


def rows_of(*parts, control="fused"):
    """The table's rows by label, and its note."""
    table = tables(frame(row for part in parts for row in part), control)[0]
    return {row["variant"]: row for row in table.shown.to_dict("records")}, table.note


# Seeds


def test_a_seed_whose_pretraining_diverged_has_no_trial_and_is_one_that_never_learnt():
    trials = [[trial(0.95), trial(0.5, lr=1e-2)], None, [trial(0.95), trial(0.4, lr=1e-2)]]
    made = cells("fused", 0.98, None, 0.99, trials=trials)
    row = rows_of(made)[0]["fused"]
    assert (row["solved"], row["steps to 0.9"], row["trials per seed"]) == ("2 of 3", "50 (1 of 3 never)", "2")
    assert set(best_by_n(frame(made))["n_seeds"]) == {2}


@settings(max_examples=15)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_the_interval_of_a_row_is_students_cut_to_shares(accuracies):
    (row,) = learning(frame(cells("a", *accuracies)), "a").to_dict("records")
    known = interval(accuracies)
    assert row["accuracy"] == pytest.approx(statistics.fmean(accuracies))
    assert row["accuracy_low"] == pytest.approx(max(known.low, 0))
    assert row["accuracy_high"] == pytest.approx(min(known.high, 1))


def test_one_seed_has_no_interval_and_no_rank():
    shown, _ = rows_of(cells("fused", 0.98), cells("linear", 0.5))
    assert (shown["fused"]["accuracy"], shown["fused"]["rank"]) == ("0.980", "–")


def test_a_diverged_seed_has_not_solved_the_task_and_is_in_no_mean():
    lost = [trial(0.2, diverged=True)]
    shown, _ = rows_of(cells("fused", 0.98, None, 0.99, trials=[[trial(0.95)], lost, [trial(0.95)]]))
    row = shown["fused"]
    assert row["accuracy"].endswith("(2 of 3 seeds)")
    assert (row["solved"], row["steps to 0.9"], row["diverged"]) == ("2 of 3", "50 (1 of 3 never)", "1 of 3")


def test_solving_is_measured_by_the_ceiling():
    shown, _ = rows_of(cells("fused", 0.75, 0.71, ceiling=0.8))
    assert shown["fused"]["solved"] == "1 of 2"


# Steps


@given(st.lists(st.integers(1, 40) | st.none(), min_size=1, max_size=7))
def test_the_median_of_steps_is_bounded_by_those_of_censored_seeds(learnt):
    n_looks = 40
    seeds = [[trial(*(0.95 if at and i >= at else 0.3 for i in range(1, n_looks + 1)))] for at in learnt]
    found = steps(seeds)
    censored = [math.inf if at is None else EVERY * at for at in learnt]
    assert found.n_censored == learnt.count(None)
    assert found.more == math.isinf(statistics.median(censored))
    assert found.median == statistics.median(min(at, EVERY * n_looks) for at in censored)


def test_when_most_seeds_never_learn_the_median_is_more_than_the_steps_given():
    never = [trial(*[0.3] * 20)]
    shown, _ = rows_of(cells("fused", 0.95, 0.3, 0.3, trials=[[trial(0.5, 0.95)], never, never]))
    assert shown["fused"]["steps to 0.9"] == "> 1000 (2 of 3 never)"


def test_steps_are_those_of_the_chosen_trial_and_ties_go_to_the_lower_loss():
    slow, fast = trial(0.1, 0.2, 0.97), trial(0.95, 0.95, 0.96)
    assert chosen([fast, slow, trial(1.0, diverged=True)]) is slow
    assert steps([[fast, slow]]).median == 150
    assert chosen([fast | {"validation_loss": 0.5}, fast]) is fast


# Trials


def test_the_rates_that_work_are_those_of_most_seeds_with_their_span_of_the_tried():
    good, bad = (0.3, 0.97), (0.3, 0.4)
    first = [trial(*good, lr=1e-3), trial(*good, lr=1e-2), trial(0.1, lr=1e-1, diverged=True)]
    second = [trial(*good, lr=1e-3), trial(*good, lr=1e-2), trial(*bad, lr=1e-1)]
    found = rates([first, second])
    assert (found.low, found.high, found.tried) == (1e-3, 1e-2, (1e-3, 1e-2, 1e-1))
    shown, _ = rows_of(cells("fused", 0.97, 0.97, trials=[first, second]))
    assert shown["fused"]["learning rates that work"] == "0.001 to 0.01 (1.0 of 2.0 decades)"
    assert (shown["fused"]["trials per seed"], shown["fused"]["diverged"]) == ("3", "1 of 6")


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        ([trial(0.97, lr=3e-3)], "0.003, the one tried"),
        ([trial(0.97, lr=3e-3), trial(0.2, lr=1e-2)], "0.003 alone (of 2)"),
        ([trial(0.2, lr=3e-3), trial(0.2, lr=1e-2)], "none of 2"),
    ],
)
def test_a_range_of_one_rate_or_none_is_no_range(trials, said):
    shown, _ = rows_of(cells("fused", 0.97, trials=[trials]))
    assert shown["fused"]["learning rates that work"] == said


def test_a_quick_row_says_so():
    shown, note = rows_of(cells("fused", 0.97, trials=[[trial(0.97)]], quick=True))
    assert shown["fused"]["trials per seed"] == "1 (quick)"
    assert note.endswith("chosen by: as told")


def test_the_best_of_n_is_averaged_over_seeds_and_grows_with_n():
    seeds = [[trial(a), trial(b, lr=1e-2), trial(0.1, lr=1.0, diverged=True)] for a, b in ((0.2, 0.8), (0.4, 0.6))]
    found = best_by_n(frame(cells("fused", 0.8, 0.6, trials=seeds)))
    assert found["n"].tolist() == [1, 2, 3]
    assert found["accuracy"].tolist() == pytest.approx([1 / 3, (0.6 + 1.6 / 3) / 2, 0.7])
    assert (found["accuracy_low"].iloc[-1], found["accuracy_high"].iloc[-1]) == (0.6, 0.8)
    made = tables(frame(cells("linear", 0.8, 0.6, trials=seeds) + cells("fused", 0.8, 0.6, trials=seeds)), "fused")
    assert [table.name for table in made] == ["learning", "learning_best_of_n"]
    assert made[1].shown["variant"].tolist() == ["fused", "linear"]


def test_one_trial_has_no_best_of_n():
    assert best_by_n(frame(cells("fused", 0.8, trials=[[trial(0.8)]]))).empty


def test_a_curve_that_ended_early_keeps_its_last_accuracy():
    trials = [[trial(0.5, 0.99)], [trial(0.1, 0.2, 0.3)]]
    found = curves(frame(cells("fused", 0.99, 0.3, trials=trials))).set_index(["seed", "x"])["value"]
    assert found[0].to_dict() == {50: 0.5, 100: 0.99, 150: 0.99}
    assert found[1].to_dict() == {50: 0.1, 100: 0.2, 150: 0.3}


# Ranks


def test_ranks_tell_apart_only_what_is_surely_different():
    found = ranks(
        frame(
            cells("fused", 0.99, 0.98, 0.97)
            + cells("linear", 1.0, 1.0, 1.0)
            + cells("lstm", 0.7, 0.71, 0.7)
            + cells("gru", 0.5, 0.72, 0.9)
            + cells("none", 0.25, 0.24, 0.25)
        ),
        "fused",
    )
    assert {label: rank for (label, *_), rank in found.items()} == {
        "fused": (1, 2),
        "linear": (1, 2),
        "lstm": (3, 4),
        "gru": (1, 4),
    }


BAD = (0.26, 0.25, 0.26)
GOOD = (0.99, 0.98, 0.99)


@pytest.mark.parametrize(
    ("control", "why", "said"),
    [
        (cells("fused", *BAD), "at floor", "fused, the control, has learned nothing"),
        (cells("fused", None, None, None), "no score", "fused, the control, has no score"),
        (cells("full", *GOOD), "no control", "fused, the control, is not among the cells"),
        (cells("fused", *GOOD, ceiling=0.25), "no room", "the exact solver does no better than guessing"),
    ],
)
def test_nothing_is_ranked_where_the_control_or_the_solver_fails_and_the_reason_is_said(control, why, said):
    rows = cells("linear", *GOOD) + control
    assert unranked(frame(rows), "fused") == {(32, 64): why}
    assert ranks(frame(rows), "fused") == {}
    shown, note = rows_of(rows)
    assert {row["rank"] for row in shown.values()} == {"not ranked"}
    assert note.startswith(f"not ranked at T = 64, d = 32: {said}; ")


def test_the_answer_ranks_nothing_beside_a_control_without_a_score():
    rows = cells("linear", *GOOD, slices=None) + cells("fused", None, None, slices=None)
    (finding,) = answer(frame(rows), "fused")
    assert finding.text.endswith("where fused, the control, has learned nothing: d = 32: diverged.")


def test_the_control_comes_first_and_others_keep_their_order():
    rows = cells("lstm", *GOOD) + cells("linear", *GOOD) + cells("fused", *GOOD)
    assert list(rows_of(rows)[0]) == ["fused", "lstm", "linear"]


# Older runs, and the page


def test_rows_of_older_runs_have_what_they_tell_and_no_blank():
    known = [row | {"ceiling": None, "rule": None, "slices": None} for row in cells("fused", *GOOD)]
    shown, note = rows_of(known)
    assert shown["fused"]["solved"] == "3 of 3"
    assert {shown["fused"][name] for name in ("steps to 0.9", "trials per seed", "diverged")} == {"–"}
    assert "chosen by" not in note


@pytest.mark.parametrize("n_trials", [1, 2])
def test_there_is_a_picture_of_curves_and_one_of_several_trials(n_trials):
    seeds = [[trial(0.2, 0.5, lr=10.0**-i) for i in range(1, n_trials + 1)]] * 2
    rows = cells("linear", 0.5, 0.5, trials=seeds) + cells("fused", 0.5, 0.6, trials=seeds)
    made = {picture.name: picture for picture in pictures(frame(rows), "fused")}
    assert ("learning_best_of_n" in made) == (n_trials > 1)
    legend = [text.get_text() for text in made["learning_curves"].figure.legends[0].get_texts()]
    assert legend == ["fused", "linear", "chance", "floor", "90 %"]
    (axes,) = made["learning_curves"].figure.axes
    assert sum(len(lines.get_paths()) for lines in axes.collections) == 4  # a thin line for each seed of each variant
    assert re.match(
        "Model learning curves on distance, .* thin: each seed's chosen trial", made["learning_curves"].caption
    )


def test_no_number_of_seeds_breaks_a_row():
    pending = [row | {"status": "pending", "accuracy": np.nan} for row in cells("fused", 0.5, 0.5)]
    shown, _ = rows_of(pending)
    assert (shown["fused"]["accuracy"], shown["fused"]["solved"], shown["fused"]["rank"]) == (
        "pending",
        "–",
        "not ranked",
    )

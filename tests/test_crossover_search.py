"""A search that has a run measure for it: the run is made up here, with costs of which the truth is known."""

import itertools
import tomllib
from contextlib import nullcontext

import pytest
from frames import frame, timed

from attnbench import crossover_search
from attnbench.analyse.bisection import FIRST
from attnbench.crossover_search import MOST_VISITS, Answer, Place, Question, Search
from attnbench.execute.listener import Listener
from attnbench.execute.tables import toml
from attnbench.report import crossing

QUESTION = Question("fused", "linear", widths=(64, 128))


def fused(T, d):
    return 1e-8 * T**2 * d


def linear(T, d):
    return 1e-8 * T * d * 4 * d  # overtakes fused at T = 4 d


class MadeUp:
    """Stands for `run_tables`: cells of the grids that it is given, their times by two laws of T and d."""

    def __init__(self, laws=None, spread=0.01):
        self.laws, self.spread = laws or {"fused": fused, "linear": linear}, spread
        self.requests = []

    def __call__(self, tables, folder, *, out, plugins, resume, listener):
        self.requests.append(tomllib.loads(toml(tables)))
        rows = {}
        for grid in self.requests[-1]["grid"]:
            for label, T, level in itertools.product(grid["variant"], grid["T"], grid["level"]):
                row = rows.setdefault((label, T, grid["d_model"], grid["B"], level), {"measures": []})
                row["measures"] += grid["measure"]
        self.frame = frame(self._cell(*key, **row) for key, row in rows.items())
        return self

    def _cell(self, label, T, d, B, level, measures):
        more = {"B": B, "level": level, "phase": "forward", "measures": measures, "n_layers": 2}
        scale = {"core": 0.5, "block": 2, "model": 5}.get(level, 1)
        memory = {"peak_bytes": 1000.0 * T * d * (T if label == "fused" else 300)}
        return timed(label, T, d, scale * self.laws[label](T, d), spread=self.spread, **more, **memory)


@pytest.fixture
def made_up(monkeypatch):
    def put(**more):
        runs = MadeUp(**more)
        monkeypatch.setattr(crossover_search, "run_tables", runs)
        return runs

    return put


def search(question=QUESTION, budget_s=1e6, clock=None):
    told = []
    more = {"clock": clock} if clock else {}
    made = Search(question, "run", budget_s=budget_s, shown=lambda: nullcontext(Listener()), say=told.append, **more)
    return made, made.run(), told


def test_each_width_is_searched_by_itself_in_time_and_in_memory(made_up):
    made_up()
    _, answer, _ = search()
    for (measure, d, _), one in answer.crossovers.items():
        (at,) = one.crossings
        truth = 4 * d if measure == "time" else 300
        assert pytest.approx(truth, rel=0.02) == at.T
        assert at.low <= truth <= at.high <= 1.15 * at.low
    assert len(answer.crossovers) == 4
    assert answer.spent == frozenset()


def test_the_last_request_holds_everything_that_was_asked_for(made_up):
    runs = made_up()
    made, _, told = search()
    last = runs.requests[-1]
    grids = [grid for grid in last["grid"] if grid["level"] == ["layer"]]
    asked_for = {(*grid["measure"], grid["d_model"]): set(grid["T"]) for grid in grids}
    assert asked_for == {(place.measure, place.d_model): sizes for place, sizes in made.sizes.items()}
    assert last["baseline"] == "fused"
    assert told[0].startswith("time, d = 64: T = 64, 256, 1024")


def test_levels_are_timed_at_the_measured_size_nearest_to_the_crossover(made_up):
    runs = made_up()
    _, answer, told = search()
    split = [grid for grid in runs.requests[-1]["grid"] if len(grid["level"]) > 1]
    assert [(grid["d_model"], grid["T"], grid["level"]) for grid in split] == [
        (64, [256], ["core", "layer", "block", "model"]),
        (128, [pytest.approx(512, rel=0.25)], ["core", "layer", "block", "model"]),
    ]
    assert told[-1].startswith("what a block is made of, d = 64: T = 256")
    assert set(answer.split["level"]) == {"core", "layer", "block", "model"}


def test_wide_intervals_are_visited_more_often_but_not_for_ever(made_up):
    runs = made_up(spread=0.1)
    search()
    visits = [request["timing"]["visits"] for request in runs.requests]
    assert max(visits) == MOST_VISITS
    assert visits[-1] == 3
    assert len(runs.requests) < 40


def test_costs_that_never_cross_are_split_at_the_largest_size_and_told_as_none(made_up):
    made_up(laws={"fused": fused, "linear": lambda T, d: 2 * fused(T, d)})
    question = Question("fused", "linear", widths=(64,), T_max=2000)
    made, answer, _ = search(question)
    assert made.split_at == {Place("time", 64, 1): 2000}
    told = crossing.table(answer.crossovers, "fused", "linear").rows
    assert told[1][:2] == ["64", "no crossover in the measured range (slower, T = 1 to 2000)"]
    assert told[1][2].startswith("leaner from T ≈ 300 [")


def test_when_the_time_is_spent_it_says_so_and_asks_no_more(made_up):
    runs = made_up()
    ticks = itertools.count(step=100.0)
    _, answer, _ = search(budget_s=120, clock=lambda: next(ticks))
    assert answer.spent
    assert {T for grid in runs.requests[0]["grid"] for T in grid["T"]} == set(FIRST)
    told = crossing.table(answer.crossovers, "fused", "linear", answer.spent).rows
    assert any("the time was spent" in text for row in told for text in row)


def test_a_size_that_would_take_too_long_is_not_begun(made_up):
    runs = made_up(laws={"fused": lambda T, d: 1e-3 * T**2, "linear": lambda T, d: 2e-3 * T**2})
    _, answer, _ = search(Question("fused", "linear", widths=(64,)), budget_s=600, clock=lambda: 0.0)
    assert max(T for request in runs.requests for grid in request["grid"] for T in grid["T"]) == 1024
    assert Place("time", 64, 1) in answer.spent


def test_batches_are_searched_apart(made_up):
    made_up()
    _, answer, _ = search(Question("fused", "linear", widths=(64,), batches=(1, 16)))
    rows = crossing.table(answer.crossovers, "fused", "linear").rows
    assert [row[:2] for row in rows] == [["d_model", "B"], ["64", "1"], ["64", "16"]]


def test_a_train_step_is_not_taken_apart(made_up):
    runs = made_up()
    Search(
        Question("fused", "linear", widths=(64,), phase="train_step", level="model"),
        "run",
        budget_s=0.0,
        shown=lambda: nullcontext(Listener()),
        say=print,
    ).run()
    assert [grid for request in runs.requests for grid in request["grid"] if len(grid["level"]) > 1] == []


def test_what_failed_is_no_answer_and_what_is_unsupported_is_one():
    def answer(status):
        rows = [timed("fused", 64, 64, 1.0), timed("linear", 64, 64, float("nan"), status=status, reason="why")]
        return Answer(QUESTION, frame(rows), {}, frozenset())

    assert answer("unsupported").is_one
    assert not answer("failed").is_one

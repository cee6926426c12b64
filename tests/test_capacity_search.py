"""Up to which load a variant learns: a bisection over trainings, whose truth is known here."""

import json
import tomllib
from contextlib import nullcontext

import pytest
from frames import frame
from hypothesis import given
from hypothesis import strategies as st
from test_cli import attnbench

from attnbench import capacity_search
from attnbench.analyse.capacity import FACTOR, Found, next_loads
from attnbench.capacity_search import Question, Search
from attnbench.errors import RequestError
from attnbench.execute.listener import Listener
from attnbench.execute.tables import toml
from attnbench.records import read_records
from attnbench.report import capacity

TINY = ("train.steps=2", "train.batch_size=4", "train.n_test=8", "train.n_validation=8", "tasks.mqar.vocab_size=32")


def accuracy(load, capacity):
    return 0.95 if load <= capacity else 0.5


@given(st.integers(1, 40), st.integers(1, 400), st.integers(0, 600))
def test_the_capacity_lies_between_what_was_learnt_and_what_was_not(low, more, truth):
    scores, high = {}, low + more
    while loads := next_loads(scores, low, high):
        assert not set(loads) & set(scores)
        assert all(low <= load <= high for load in loads)
        scores |= {load: accuracy(load, truth) for load in loads}
    found = Found("one", scores)
    assert len(scores) <= 12
    if truth < low:
        assert (found.learnt, found.too_many) == (None, low)
    elif truth >= high:
        assert (found.learnt, found.too_many) == (high, None)
    else:
        assert low <= found.learnt <= truth < found.too_many <= high
        assert found.too_many <= max(found.learnt + 1, FACTOR * found.learnt)


def test_accuracy_that_does_not_fall_steadily_ends_at_the_largest_load_learnt():
    scores = {2: 0.5, 4: 0.95, 8: 0.3, 16: 0.92, 32: 0.1, 17: 0.2}
    found = Found("one", scores)
    assert (found.learnt, found.too_many, next_loads(scores, 2, 32)) == (16, 17, [])


class MadeUp:
    """Stands for `run_tables`: a cell per variant, load and seed; by_seed is added to the seed's accuracy."""

    def __init__(self, capacities, by_seed=(0.0,), **status):
        self.capacities, self.by_seed, self.status, self.requests = capacities, by_seed, status, []

    def __call__(self, tables, folder, *, out, overrides, plugins, resume, listener):
        assert resume
        self.requests.append(tomllib.loads(toml(tables)))
        self.frame = frame(
            self._cell(variant, task["n_pairs"], seed)
            for grid in self.requests[-1]["grid"]
            for task in grid["task"]
            for variant in grid["variant"]
            for seed in range(len(self.by_seed))
        )
        return self

    def _cell(self, variant, load, seed):
        status = self.status.get(variant, "ok")
        scored = {"accuracy": accuracy(load, self.capacities.get(variant, 0)) + self.by_seed[seed]}
        options = json.dumps({"n_pairs": load, "vocab_size": 128})
        cell = {"label": variant, "T": 128, "d_model": 32, "measures": ["accuracy"], "seed": seed, "status": status}
        return cell | {"task_options": options, "reason": "made so"} | (scored if status == "ok" else {})


@pytest.fixture
def made_up(monkeypatch):
    def put(*arguments, **more):
        runs = MadeUp(*arguments, **more)
        monkeypatch.setattr(capacity_search, "run_tables", runs)
        return runs

    return put


def search(*variants, **more):
    told = []
    asked = Question(variants, **more)
    return Search(asked, "run", shown=lambda: nullcontext(Listener()), say=told.append).run(), told


def rows(found, low=2, high=32):
    return capacity.table(found, "Up to which?", low, high).rows[1:]


def test_variants_are_searched_side_by_side_and_each_only_as_far_as_it_needs(made_up):
    runs = made_up({"fused": 100, "mamba2": 11, "window": 1})
    found, told = search("fused", "mamba2", "window")
    assert rows(found) == [
        ["fused", "at least 32", "0.950", "–", "–", "2"],
        ["mamba2", "11", "0.950", "12", "0.500", "7"],
        ["window", "less than 2", "–", "2", "0.500", "2"],
    ]
    assert told[0] == "n_pairs of fused: 2, 32; mamba2: 2, 32; window: 2, 32"
    assert all(line.startswith("n_pairs of mamba2: ") for line in told[1:])
    last = {grid["task"][0]["n_pairs"]: grid["variant"] for grid in runs.requests[-1]["grid"]}
    assert last[2] == last[32] == ["fused", "mamba2", "window"]
    assert set(map(tuple, last.values())) == {("fused", "mamba2", "window"), ("mamba2",)}


def test_the_mean_over_seeds_decides(made_up):
    made_up({"fused": 100}, by_seed=(0.0, 0.0, -0.5))
    found, _ = search("fused", overrides=("seed=[0,1,2]",))
    assert rows(found)[0][1:4] == ["less than 2", "–", "2"]


def test_a_training_that_diverged_has_learnt_nothing(made_up):
    made_up({}, rnn="diverged")
    found, _ = search("rnn")
    assert rows(found) == [["rnn", "less than 2", "–", "2", "0.000", "2"]]
    assert found[0].is_one


@pytest.mark.parametrize(("status", "is_one"), [("unsupported", True), ("failed", False), ("timeout", False)])
def test_a_variant_that_cannot_be_trained_says_why_and_holds_up_no_other(made_up, status, is_one):
    runs = made_up({"fused": 3}, fnet=status)
    found, _ = search("fnet", "fused")
    assert rows(found)[0] == ["fnet", f"{status}: made so", "–", "–", "–", "0"]
    assert rows(found)[1][1] == "3"
    assert found[0].is_one == is_one
    assert {len(grid["variant"]) for grid in runs.requests[-1]["grid"]} == {1, 2}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"low": 8, "high": 8}, "--low 8 --high 8: expected 1 <= LOW < HIGH"),
        ({"low": 0}, "--low 0 --high 32: expected 1 <= LOW < HIGH"),
        (
            {"overrides": ("train.steps=5", "variant = gru")},
            "--set variant=gru: variant is what the search itself decides; see --help",
        ),
        (
            {"overrides": ("task=parity",)},
            "--set task=parity: task is what the search itself decides; see --help",
        ),
        ({"overrides": ("T=[64, 128]",)}, "--set T=[64, 128]: expected one value; only seed may be a list here"),
    ],
)
def test_what_is_asked_wrongly_is_told_before_anything_runs(more, told):
    with pytest.raises(RequestError) as caught:
        Question(("fused",), **more)
    assert caught.value.mistakes == [told]


def test_lists_that_make_no_further_cells_are_welcome():
    assert Question(("fused",), overrides=("seed=[0,1]", "train.lr=[1e-3,3e-3]")).overrides


def test_the_same_question_asked_again_trains_nothing(tmp_path):
    out = tmp_path / "run"
    asked = ["capacity", "none", "--d", "8", "--T", "8", "--low", "1", "--high", "2", "--out", out]
    first = attnbench(*asked, *(part for override in TINY for part in ("--set", override)))
    assert first.returncode == 0, first.stderr
    records = read_records(out)[0]
    assert len(records) == 2
    question = Question(("none",), d_model=8, T=8, low=1, high=2, overrides=TINY)
    (again,) = Search(question, out, shown=lambda: nullcontext(Listener()), say=print).run()
    assert read_records(out)[0] == records
    assert capacity.table([again], "", 1, 2).rows[1][1:] == [
        part.strip() for part in next(line for line in first.stdout.splitlines() if "│ none" in line).split("│")[2:-1]
    ]

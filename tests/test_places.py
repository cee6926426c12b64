"""Places of `test_at`: the trained model scored once more, at other lengths and with other options."""

import json
from dataclasses import asdict
from functools import partial

import pytest
import torch
from catalogues import catalogue
from hypothesis import given, settings
from hypothesis import strategies as st
from run_rows import cell, record, run_of
from runs import write_sweep
from torch import nn

import attnbench
from attnbench.catalogue import Catalogue, Described, variant_key
from attnbench.cells import expand
from attnbench.elsewhere import Elsewhere, prepared
from attnbench.errors import RequestError
from attnbench.mixer import Mixer
from attnbench.places import Trained, mistakes, places_of
from attnbench.settings import TrainSettings
from attnbench.splits import held_out, in_split
from attnbench.sweep import validate
from attnbench.tasks.distance import Distance
from attnbench.tasks.mqar import MQAR
from attnbench.tasks.parity import Parity
from attnbench.train import train
from attnbench.transformer import LanguageModel

QUICK = TrainSettings(steps=4, batch_size=8, lr=[1e-3], n_validation=16, n_test=24, eval_every=2)
GRID = {"variant": "full", "T": 16, "d_model": 8, "measure": "accuracy", "task": "distance"}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Summing(Mixer):
    """Running means; up to `longest` positions, and NaN from `sound` on."""

    positions = "none"
    longest, sound = 10_000, 10_000

    def __init__(self, spec):
        super().__init__(spec)
        self.map = nn.Linear(spec.d_model, spec.d_model)

    def forward(self, x, *, context=None, key_mask=None):
        if x.shape[1] > self.longest:
            raise ValueError(f"at most {self.longest} positions")
        y = self.map(x).cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        return y * torch.nan if x.shape[1] > self.sound else y


class Short(Summing):
    longest = 20


class Unsound(Summing):
    sound = 20


def model(task, mixer=Summing, max_T=256):
    return LanguageModel(vocab_size=task.vocab_size, d_model=8, n_heads=2, n_layers=1, max_T=max_T, mixer=mixer)


def trained(task, places, mixer=Summing, plan=QUICK):
    return train(partial(model, task, mixer), task, plan, seed=1, places=places)


def cells(test_at, **grid):
    tables = {"grid": [GRID | grid], "train": {"test_at": test_at}}
    described = catalogue(tables)
    return expand(validate(tables, "s.toml", described), described, "torch 2")


def refused(test_at, **grid):
    with pytest.raises(RequestError) as caught:
        cells(test_at, **grid)
    return [line.removeprefix("s.toml: train.test_at") for line in caught.value.mistakes]


# What a sweep may ask


@pytest.mark.parametrize(
    ("test_at", "grid", "told"),
    [
        ([{"T": 32}, {}], {}, "[1]: expected a table such as { T = 128 } or { n_pairs = 16 }, got {}"),
        ([3], {}, "[0]: expected a table such as { T = 128 } or { n_pairs = 16 }, got 3"),
        ([{"T": 0}], {}, "[0]: expected a T of at least 1, got { T = 0 }"),
        ([{"T": "8"}], {}, '[0]: expected a T of at least 1, got { T = "8" }'),
        ([{"n_slot": 8}], {}, '[0].n_slot: no task here takes it; did you mean "n_slots"?'),
        ([{"n_slots": 0}], {}, "[0].n_slots: expected at least 1, got 0"),
        ([{"T": 7}], {}, "[0]: T = 7 is too short for distance; its smallest T is 8"),
        ([{"n_slots": 9}], {}, "[0]: T = 16 is too short for distance with n_slots = 9; its smallest T is 18"),
        ([{"T": 32}, {"T": 64}], {"max_T": 32}, "[1].T: 64 is beyond max_T = 32"),
    ],
)
def test_a_place_that_cannot_be_is_one_line_before_anything_runs(test_at, grid, told):
    assert refused(test_at, **grid) == [told]


def test_a_mistake_of_many_points_is_told_once():
    assert len(refused([{"T": 4}], T=[16, 32], d_model=[8, 16], seed=[0, 1])) == 1


def test_options_that_change_the_tokens_are_refused():
    described = {variant_key("recall", {"n": n}): Described({"n": n}, vocab_size=n) for n in (4, 8)}
    found = Catalogue({}, {}, tasks=described)
    (line,) = mistakes([{"n": 8}], [Trained("recall", {"n": 4}, 16)], found)
    assert line == "train.test_at[0]: recall has 8 tokens there, and 4 where the model is trained"


def test_a_place_counts_for_the_tasks_that_take_its_options():
    test_at = [{"T": 32}, {"n_pairs": 4}, {"T": 64, "n_pairs": 8}]
    assert [place.T for place in places_of(test_at, 16, {"n_slots": 2})] == [32]
    found = places_of(test_at, 16, {"n_pairs": 2, "slots": "power"})
    assert [(place.T, place.options["n_pairs"]) for place in found] == [(32, 2), (16, 4), (64, 8)]
    assert [dict(place.changed) for place in found] == [{}, {"n_pairs": 4}, {"n_pairs": 8}]
    assert {place.options["slots"] for place in found} == {"power"}


# What follows for a cell


def test_a_model_has_room_for_the_longest_place():
    (plain,), (far,), (given,) = cells([]), cells([{"T": 64}, {"T": 32}]), cells([{"T": 64}], max_T=128)
    assert (plain.max_T, far.max_T, given.max_T) == (16, 64, 128)
    assert (plain.T, far.T, far.S) == (16, 16, 16)


def test_places_are_part_of_what_a_cell_is():
    found = [cells(test_at)[0].id for test_at in ([], [{"T": 16}], [{"T": 8}], [{"n_slots": 2}])]
    assert len(set(found)) == 4


def test_places_mean_nothing_to_what_is_timed():
    tables = {"grid": [{"variant": "full", "T": 16, "d_model": 8}], "train": {"test_at": [{"T": 64}]}}
    described = catalogue(tables)
    (timed,) = expand(validate(tables, "s.toml", described), described, "torch 2")
    (other,) = expand(validate(tables | {"train": {}}, "s.toml", described), described, "torch 2")
    assert (timed.max_T, timed.id) == (16, other.id)


# What is scored


@settings(max_examples=5, deadline=None)
@given(st.integers(16, 40), st.integers(1, 3))
def test_where_it_was_trained_a_place_gives_the_score_itself(T, n_slots):
    task = Distance(T, n_slots=n_slots)
    result = trained(task, [Elsewhere(Distance(T, n_slots=n_slots), ("n_slots",))])
    (place,) = result.tested
    own = asdict(result)
    same = ("accuracy", "sequence_accuracy", "chance", "floor", "slices", "slice_unit")
    assert {name: place[name] for name in same} == {name: own[name] for name in same}
    assert place["slices"]
    assert (place["T"], place["options"], place["n"]) == (T, {"n_slots": n_slots}, result.n_scored)


def test_places_change_nothing_else_of_a_result():
    task = MQAR(16, n_pairs=2, vocab_size=16)
    places = [Elsewhere(MQAR(T, n_pairs=4, vocab_size=16), ("n_pairs",)) for T in (16, 64)]
    plain, more = asdict(trained(task, [])), asdict(trained(task, places))
    assert plain.pop("tested") == []
    assert [(place["T"], place["options"], place["floor"]) for place in more.pop("tested")] == [
        (16, {"n_pairs": 4}, 0.25),
        (64, {"n_pairs": 4}, 0.25),
    ]
    assert plain == more


def test_a_place_has_test_sequences_alone_and_the_same_for_every_model():
    place = Elsewhere(Distance(32))
    (one,), (other,) = (prepared(Distance(16), [place], n_test=40, seed=3) for _ in range(2))
    assert in_split(one.test.inputs, "test").all()
    assert torch.equal(one.test.tokens, held_out(Distance(32), "test", 40, 3).tokens)
    assert torch.equal(one.test.tokens, other.test.tokens)
    printed = [at.row(None, "")["fingerprint"] for at in (one, other)]
    (elsewhere,) = prepared(Distance(16), [place], n_test=40, seed=4)
    assert printed[0] == printed[1] != elsewhere.row(None, "")["fingerprint"]


@pytest.mark.parametrize(
    ("mixer", "why"), [(Short, "ValueError: at most 20 positions"), (Unsound, "its outputs are not finite there")]
)
def test_a_model_that_cannot_run_at_a_place_loses_that_place_alone(mixer, why):
    result = trained(Distance(16), [Elsewhere(Distance(32)), Elsewhere(Distance(20))], mixer)
    assert (result.tested[0]["accuracy"], result.tested[0]["reason"]) == (None, why)
    assert (result.tested[1]["reason"], result.status) == (None, "ok")
    assert result.tested[1]["accuracy"] is not None


def test_without_a_model_no_place_has_an_accuracy():
    result = trained(Distance(16), [Elsewhere(Distance(32))], plan=QUICK.model_copy(update={"lr": [1e30]}))
    assert (result.status, result.tested[0]["accuracy"]) == ("diverged", None)
    assert result.tested[0]["reason"] == "no learning rate kept a finite loss"
    assert json.loads(json.dumps(result.tested, allow_nan=False)) == result.tested


def never_built():
    raise AssertionError("a model was built")


def test_a_place_of_other_tokens_fails_before_anything_is_trained():
    with pytest.raises(ValueError, match=r"test_at: at T = 16 with .* the task has \d+ tokens, the model .* on \d+"):
        train(never_built, Distance(16), QUICK, 0, places=[Elsewhere(Distance(16, n_values=3))])


def test_a_place_with_too_few_sequences_fails_before_anything_is_trained():
    with pytest.raises(ValueError, match=r"parity at T = 5 .* is too small"):
        train(never_built, Parity(16), QUICK, 0, places=[Elsewhere(Parity(5))])


# What a record holds


def test_a_run_keeps_what_was_tested_elsewhere(tmp_path):
    grid = '[[grid]]\nmeasure = "accuracy"\nT = 8\nvariant = "fused"\ntask = ["parity", "mqar"]\nn_layers = 1\n'
    grid += "[tasks.mqar]\nn_pairs = 2\n"
    grid += "[train]\nsteps = 2\nbatch_size = 8\nlr = 1e-3\nn_validation = 8\nn_test = 16\neval_every = 2\n"
    grid += "test_at = [{ T = 32 }, { T = 16, n_pairs = 3 }]\n"
    made = attnbench.run(write_sweep(tmp_path, grid), out=tmp_path / "run", workers=2)
    assert made.counts == {"ok": 2}, list(made.frame["reason"])
    frame = made.frame.set_index("task")
    assert [place["T"] for place in frame["tested"]["parity"]] == [32]
    assert [(place["T"], place["options"]) for place in frame["tested"]["mqar"]] == [(32, {}), (16, {"n_pairs": 3})]
    assert set(frame["max_T"]) == {32}
    assert set(frame["positions"]) == {"learned"}


def test_a_record_from_before_has_no_places(tmp_path):
    old = cell("a", measures=["accuracy"])
    run = run_of(tmp_path / "run", [old], [record("a", "accuracy", accuracy=0.5)])
    assert attnbench.read(run)["tested"].isna().all()


@pytest.mark.parametrize("tested", [[3], {"T": 3}, [{"T": "8", "options": {}}], [{"T": 8}]])
def test_places_that_are_none_are_not_trusted(tmp_path, tested, capsys):
    run = run_of(tmp_path / "run", [cell("a", measures=["accuracy"])], [record("a", "accuracy", tested=tested)])
    assert list(attnbench.read(run)["status"]) == ["pending"]
    assert "tested is not a list of places" in capsys.readouterr().err

"""Weights to start from: the same result whether they were read or just trained, and no damaged file believed."""

from dataclasses import replace
from multiprocessing.dummy import Pool

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attnbench.mixer import Mixer
from attnbench.settings import TrainSettings
from attnbench.start import Start, read, start_from, write
from attnbench.tasks.distance import Distance
from attnbench.tasks.mqar import MQAR
from attnbench.train import train
from attnbench.transformer import LanguageModel

QUICK = TrainSettings(steps=4, batch_size=4, lr=[3e-3, 1e-3], n_validation=8, n_test=8, eval_every=2, n_training=4)
BEFORE, AFTER = Distance(16, n_slots=2), MQAR(16, n_pairs=2, vocab_size=16)
VOCAB = max(BEFORE.vocab_size, AFTER.vocab_size)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Recurrent(Mixer):
    def __init__(self, spec):
        super().__init__(spec)
        self.rnn = nn.RNN(spec.d_model, spec.d_model, batch_first=True)

    def forward(self, x, *, context=None, key_mask=None):
        return self.rnn(x)[0]


def build(vocab_size=VOCAB):
    sizes = {"d_model": 8, "n_heads": 2, "n_layers": 1, "max_T": 16, "role": "causal"}
    return LanguageModel(vocab_size=vocab_size, mixer=Recurrent, **sizes)


def begun(file=None, seed=0, options=QUICK):
    found = start_from(build, BEFORE, options, seed, device="cpu", file=file)
    assert found is not None
    return found


def after(start):
    return train(lambda: start.given_to(build()), AFTER, QUICK, 0)


def same(one, other):
    weights = one.weights.keys() == other.weights.keys() and all(
        torch.equal(one.weights[name], other.weights[name]) for name in one.weights
    )
    return weights and replace(one, weights={}) == replace(other, weights={})


def test_a_result_is_the_same_bit_for_bit_from_weights_just_trained_and_from_those_of_a_file(tmp_path):
    file = tmp_path / "weights" / "w.pt"
    trained = begun(file)
    loaded = begun(file)
    assert same(trained, loaded)
    assert after(trained) == after(loaded)


def test_a_whole_file_is_believed_and_nothing_is_trained_again(tmp_path):
    file = tmp_path / "w.pt"
    write(Start({"a": torch.ones(2)}, 0.5, 7, "print"), file)
    assert begun(file).steps == 7


@settings(max_examples=30, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), change=st.sampled_from(["flipped", "cut", "more"]))
def test_a_damaged_file_counts_as_none(tmp_path_factory, place, change):
    file = tmp_path_factory.mktemp("damaged") / "w.pt"
    write(Start({"a": torch.arange(9.0)}, 0.5, 7, "print"), file)
    content = bytearray(file.read_bytes())
    at = int(place * len(content))
    content[at] ^= 1
    damaged = {"flipped": content, "cut": content[:at], "more": content + b"x"}
    file.write_bytes(damaged[change])
    assert read(file) is None


def test_what_a_damaged_file_held_is_trained_anew_and_kept(tmp_path):
    file = tmp_path / "w.pt"
    first = begun(file)
    file.write_bytes(b"no weights")
    assert same(begun(file), first)
    kept = read(file)
    assert kept is not None
    assert same(kept, first)


def test_several_that_write_at_once_leave_one_whole_file(tmp_path):
    file, start = tmp_path / "w.pt", Start({"a": torch.arange(10_000.0)}, 0.5, 7, "print")
    with Pool(4) as pool:
        pool.map(lambda _: write(start, file), range(12))
    kept = read(file)
    assert kept is not None
    assert same(kept, start)
    assert list(tmp_path.iterdir()) == [file]


def test_pretraining_is_one_trial_on_fresh_sequences_with_the_first_setting():
    alone = QUICK.model_copy(update={"lr": [3e-3], "n_training": None})
    assert same(begun(options=alone), begun())
    other = QUICK.model_copy(update={"lr": [1e-3, 3e-3]})
    assert not same(begun(options=other), begun())


def test_each_seed_has_weights_of_its_own():
    assert not same(begun(seed=0), begun(seed=1))


def test_every_trial_starts_from_the_weights():
    start, seen = begun(), []

    def watched():
        model = start.given_to(build())
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return model

    train(watched, AFTER, QUICK, 0)
    assert len(seen) == 2
    for weights in seen:
        assert all(torch.equal(weights[name], start.weights[name]) for name in weights)


def test_training_leaves_the_weights_that_it_started_from_as_they_were():
    start = begun()
    before = {name: tensor.clone() for name, tensor in start.weights.items()}
    after(start)
    assert all(torch.equal(start.weights[name], before[name]) for name in before)


def test_the_fingerprint_covers_the_data_of_both_tasks():
    start = begun()
    own = after(start).fingerprint
    told = {start.with_data(own), start.with_data("other"), replace(start, fingerprint="other").with_data(own), own}
    assert len(told) == 4


def test_weights_of_another_vocabulary_are_refused():
    with pytest.raises(RuntimeError, match="size mismatch"):
        begun().given_to(build(vocab_size=200))


def test_without_a_finite_loss_there_is_nothing_to_start_from(tmp_path):
    wild = QUICK.model_copy(update={"lr": [1e30], "clip": 1e30})
    assert start_from(build, BEFORE, wild, 0, device="cpu", file=tmp_path / "w.pt") is None
    assert not list(tmp_path.iterdir())

"""What the tasks measure: attention learns each of them at a tiny size, and what mixes nothing does not."""

from functools import partial

import pytest
import torch
from torch import nn

from attnbench import registry
from attnbench.mixer import Mixer
from attnbench.settings import TrainSettings
from attnbench.tasks.copy import Copy
from attnbench.tasks.distance import Distance
from attnbench.tasks.local import Local
from attnbench.tasks.mqar import MQAR
from attnbench.tasks.reverse import Reverse
from attnbench.train import TrainResult, train
from attnbench.transformer import EncoderDecoder, LanguageModel

TINY = TrainSettings(steps=300, batch_size=32, lr=[3e-3], n_validation=100, n_test=200, eval_every=50, stop_at=0.97)
TASKS = {
    "distance": Distance(16, n_slots=2, n_values=4, n_noise=4),
    "mqar": MQAR(16, n_pairs=2, vocab_size=32),
    "copy": Copy(12, min_length=4, n_symbols=8),
}
LOCAL = Local(12, n_values=4)
REVERSE = Reverse(8, min_length=4, n_symbols=6)


class Nothing(Mixer):
    """Each position by itself."""

    def __init__(self, spec):
        super().__init__(spec)
        self.map = nn.Linear(spec.d_model, spec.d_model)

    def forward(self, x, *, context=None, key_mask=None):
        return self.map(x)


def variant(name: str) -> type[Mixer]:
    return registry.load(registry.installed(registry.VARIANTS)[name])


def learn(task, mixer, d_ff=0, positions="learned") -> TrainResult:
    build = partial(
        LanguageModel,
        vocab_size=task.vocab_size,
        d_model=64,
        n_heads=1,
        n_layers=2,
        max_T=task.T,
        mixer=mixer,
        d_ff=d_ff,
        positions=positions,
    )
    return train(build, task, TINY, seed=0)


def reverse(mixer, positions, n_layers=1) -> TrainResult:
    build = partial(
        EncoderDecoder,
        vocab_size=REVERSE.vocab_size,
        d_model=64,
        n_heads=2,
        n_layers=n_layers,
        max_T=REVERSE.T,
        mixer=mixer,
        cross=variant("fused"),
        d_ff=0,
        positions=positions,
    )
    return train(build, REVERSE, TINY, seed=0)


@pytest.mark.parametrize("name", TASKS)
def test_attention_learns_and_what_mixes_nothing_stays_at_the_floor(name):
    task = TASKS[name]
    attention, nothing = learn(task, variant("fused")), learn(task, Nothing)
    assert attention.accuracy > 0.9
    assert attention.sequence_accuracy > 0.8
    assert nothing.accuracy < task.floor + 0.08
    assert attention.fingerprint == nothing.fingerprint


def test_whatever_sees_two_tokens_back_adds_them_and_what_sees_one_token_does_not():
    for name, positions in (("fused", "learned"), ("tcn", "none"), ("lstm", "none")):
        assert learn(LOCAL, variant(name), 64, positions).accuracy > 0.9
    assert learn(LOCAL, Nothing, 64).accuracy < LOCAL.floor + 0.08


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
def test_recurrences_take_time_for_time_and_learn_what_was_some_steps_ago(name):
    assert learn(TASKS["distance"], variant(name)).accuracy > 0.9


def test_attention_and_lstm_reverse_strings_by_cross_attention():
    assert reverse(variant("fused"), "learned").accuracy > 0.9
    assert reverse(variant("lstm"), "none").accuracy > 0.9


def test_without_order_from_positions_or_mixer_no_string_is_reversed():
    nothing = reverse(Nothing, "none")
    assert nothing.accuracy < 0.5  # more than the floor: cross-attention still sees which symbols there are
    assert nothing.sequence_accuracy < 0.05


def test_padded_sources_change_no_score():
    made, batch = (
        EncoderDecoder(
            vocab_size=REVERSE.vocab_size,
            d_model=16,
            n_heads=2,
            n_layers=2,
            max_T=8,
            mixer=variant("fused"),
            cross=variant("fused"),
        ),
        REVERSE.sample(6, torch.Generator().manual_seed(0)),
    )
    source = batch.source
    assert source is not None
    noise = torch.where(source.mask, source.tokens, torch.randint(6, source.tokens.shape))
    assert not torch.equal(noise, source.tokens)
    whole, changed = (made.hidden(tokens, batch.tokens, source.mask) for tokens in (source.tokens, noise))
    torch.testing.assert_close(whole, changed)
    assert not torch.allclose(whole, made.hidden(noise, batch.tokens))

"""Which settings are tried, which trial counts, and what it is scored on."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_train import QUICK, Copy, scripted
from torch import nn
from torch.nn import functional as F

from attnbench.protocol import LEARNED, Setting, best_of, rule, settings_of, steps_to_learn, working_range
from attnbench.settings import TrainSettings
from attnbench.splits import in_split
from attnbench.train import train

rates = st.lists(st.floats(1e-5, 1.0), min_size=1, max_size=4)


@given(rates, st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3))
def test_every_rate_is_tried_with_every_decay(lr, weight_decay):
    tried = settings_of(TrainSettings(lr=lr, weight_decay=weight_decay))
    assert tried == [Setting(one, other) for one in lr for other in weight_decay]


@given(rates, st.lists(st.floats(0.0, 1.0), min_size=1, max_size=3), st.integers(1, 9))
def test_settings_drawn_at_random_lie_between_those_given_and_are_the_same_each_time(lr, weight_decay, n):
    drawn = settings_of(TrainSettings(lr=lr, weight_decay=weight_decay, n_random=n))
    assert drawn == settings_of(TrainSettings(lr=lr, weight_decay=weight_decay, n_random=n))
    assert len(drawn) == n
    for setting in drawn:
        assert min(lr) * (1 - 1e-9) <= setting.lr <= max(lr) * (1 + 1e-9)
        assert min(weight_decay) - 1e-9 <= setting.weight_decay <= max(weight_decay) + 1e-9


def test_random_rates_are_log_uniform():
    drawn = settings_of(TrainSettings(lr=[1e-4, 1e-2], n_random=4000))
    assert sum(setting.lr < 1e-3 for setting in drawn) / 4000 == pytest.approx(0.5, abs=0.03)


def test_a_quick_run_has_the_first_setting_alone():
    assert settings_of(TrainSettings(lr=[3e-3, 1e-3], weight_decay=[0.1, 0.0], quick=True)) == [Setting(3e-3, 0.1)]
    assert settings_of(TrainSettings(lr=[3e-3, 1e-3], n_random=8, quick=True)) == [Setting(3e-3, 0.1)]


@given(st.lists(st.one_of(st.none(), st.floats(0.0, 1.0)), min_size=1, max_size=6), st.data())
def test_the_best_of_n_is_the_mean_over_all_ways_to_choose_them(accuracies, data):
    n = data.draw(st.integers(1, len(accuracies)))
    ways = [max(accuracy or 0.0 for accuracy in chosen) for chosen in combinations(accuracies, n)]
    assert best_of(accuracies, n) == pytest.approx(sum(ways) / len(ways))


@pytest.mark.parametrize("n", [0, 3])
def test_more_trials_than_there_are_have_no_best(n):
    with pytest.raises(ValueError, match="n must be 1 to 2"):
        best_of([0.5, None], n)


def test_the_steps_to_learn_are_those_of_the_first_look_that_was_good_enough():
    assert steps_to_learn([[50, 0.2, 1.0], [100, LEARNED, 0.5], [150, 0.99, 0.1]]) == 100
    assert steps_to_learn([[50, 0.2, 1.0], [100, 0.89, 0.5]]) is None
    assert steps_to_learn([]) is None


def test_the_working_range_spans_the_rates_that_learnt():
    trials = [{"lr": lr, "validation_accuracy": accuracy} for lr, accuracy in ((1e-4, 0.5), (1e-3, 0.95), (1e-2, 0.9))]
    diverged = {"lr": 1e-1, "validation_accuracy": None}
    assert working_range([*trials, diverged]) == (1e-3, 1e-2)
    assert working_range([trials[0], diverged]) is None


class Rising(nn.Module):
    """Answers `Copy` right on a share of validation and of test sequences that its own number of steps decides."""

    def __init__(self, shares):
        super().__init__()
        self.shares, self.weight, self.head = shares, nn.Parameter(torch.zeros(1)), nn.Identity()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def hidden(self, tokens):
        self.steps += self.training
        validation, test = self.shares[int(self.steps - 1) // QUICK.eval_every]
        luck = (tokens[:, 1:4] * torch.tensor([64, 8, 1])).sum(1) / 512
        right = in_split(tokens, "validation") & (luck < validation) | in_split(tokens, "test") & (luck < test)
        logits = 9.0 * F.one_hot((tokens[:, 0] + (~right).long()) % 8, 8) + self.weight
        return logits[:, None].expand(-1, tokens.shape[1], -1)


@pytest.mark.parametrize(("judged_at", "validation", "test"), [("last", 0.17, 0.21), ("best", 0.34, 0.30)])
def test_a_trial_is_scored_with_the_weights_of_the_step_that_it_is_judged_at(judged_at, validation, test):
    choice = QUICK.model_copy(update={"steps": 9, "judged_at": judged_at, "n_validation": 500, "n_test": 500})
    result = train(lambda: Rising([(0.20, 0.36), (0.34, 0.30), (0.17, 0.21)]), Copy(8), choice, seed=0)
    (trial,) = result.trials
    assert trial["best_step"] == 6
    assert trial["validation_accuracy"] == pytest.approx(validation, abs=0.05)
    assert result.accuracy == pytest.approx(test, abs=0.05)
    assert result.rule == rule(choice)


def test_a_row_tells_its_rule_its_trials_and_what_was_left_out():
    build, built = scripted((0.3, 0.3), (0.95, 0.9))
    update = {"lr": [1e-4, 1e-3], "weight_decay": [0.2], "n_validation": 200}
    result = train(build, Copy(8), QUICK.model_copy(update=update), seed=0)
    assert result.rule == (
        "the best of 2 trials on validation data, with the weights of its last step, scored once on test data"
    )
    assert (result.lr, result.weight_decay, result.steps_to_learn, result.quick) == (1e-3, 0.2, 3, False)
    build, built = scripted((0.3, 0.3), (0.95, 0.9))
    quick = train(build, Copy(8), QUICK.model_copy(update=update | {"quick": True}), seed=0)
    assert (quick.quick, len(quick.trials), len(built), quick.steps_to_learn) == (True, 1, 1, None)


def test_a_row_tells_what_guesses_score_on_its_own_test_data():
    result = train(scripted((0.5, 0.5))[0], Copy(8), QUICK.model_copy(update={"n_test": 500}), seed=0)
    assert result.baselines["first_token"] == 1.0  # the answer of this task is its first token
    assert result.baselines["majority"] == pytest.approx(1 / 8, abs=0.06)


def test_overlap_is_measured_and_nothing_by_construction():
    for n_training in (None, 50):
        choice = QUICK.model_copy(update={"n_training": n_training})
        assert train(scripted((0.5, 0.5))[0], Copy(8), choice, seed=0).overlap == 0.0

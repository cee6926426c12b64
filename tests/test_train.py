"""Training: the same data for everyone, the choice on validation data, one score on test data."""

import json
import math
from dataclasses import asdict
from functools import partial
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from attnbench.mixer import Attention, Mixer, Spec
from attnbench.optimise import lr_factor, parameter_groups
from attnbench.scoring import evaluate
from attnbench.settings import TrainSettings
from attnbench.splits import held_out, in_split, training_batches
from attnbench.tasks import IGNORE, Batch, Task
from attnbench.tasks.distance import Distance
from attnbench.train import train
from attnbench.transformer import LanguageModel

QUICK = TrainSettings(steps=6, batch_size=8, lr=[1e-3], n_validation=20, n_test=30, eval_every=3)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Softmax(Attention):
    def attend(self, q, k, v, *extra, key_mask=None):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Nothing(Mixer):
    """Each position by itself."""

    def __init__(self, spec):
        super().__init__(spec)
        self.map = nn.Linear(spec.d_model, spec.d_model)

    def forward(self, x, *, context=None, key_mask=None):
        return self.map(x)


class Recurrent(Mixer):
    positions = "none"

    def __init__(self, spec):
        super().__init__(spec)
        self.lstm = nn.LSTM(spec.d_model, spec.d_model, batch_first=True)

    def forward(self, x, *, context=None, key_mask=None):
        return self.lstm(x)[0]


def model(task: Task, mixer=Softmax, d_model=16) -> LanguageModel:
    return LanguageModel(vocab_size=task.vocab_size, d_model=d_model, n_heads=2, n_layers=1, max_T=task.T, mixer=mixer)


class Copy(Task):
    """The last position asks for the first token, out of eight."""

    vocab_size, chance, floor, slice_names, title = 8, 1 / 8, 1 / 8, ("all",), "copy"

    def sample(self, n, generator):
        tokens = torch.randint(8, (n, self.T), generator=generator)
        labels, slices = torch.full_like(tokens, IGNORE), torch.full_like(tokens, -1)
        labels[:, -1], slices[:, -1] = tokens[:, 0], 0
        return Batch(tokens, labels, slices)

    @classmethod
    def min_T(cls):
        return 1


class Scripted(nn.Module):
    """Answers `Copy` right on a given share of the sequences of each split, whatever it learns."""

    def __init__(self, shares):
        super().__init__()
        self.shares, self.weight, self.seen, self.head = shares, nn.Parameter(torch.zeros(1)), [], nn.Identity()

    def hidden(self, tokens):
        self.seen.append(tokens)
        luck = (tokens[:, 1:4] * torch.tensor([64, 8, 1])).sum(1) / 512
        right = torch.stack([in_split(tokens, split) & (luck < share) for split, share in self.shares.items()]).any(0)
        answer = (tokens[:, 0] + (~right).long()) % 8
        logits = 9.0 * F.one_hot(answer, 8) + self.weight
        return logits[:, None].expand(-1, tokens.shape[1], -1)


def scripted(*accuracies):
    """A build function for one trial after the other, by (validation, test) accuracy, and the models it built."""
    built = []

    def build():
        validation, test = accuracies[len(built)]
        built.append(Scripted({"validation": validation, "test": test}))
        return built[-1]

    return build, built


def test_training_repeats_itself_bit_for_bit_and_leaves_the_global_random_state():
    task = Distance(16)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = train(partial(model, task), task, QUICK, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert train(partial(model, task), task, QUICK, seed=3) == one
    assert train(partial(model, task), task, QUICK, seed=4).loss != one.loss


def test_training_is_the_plain_loop_over_whole_logits():
    task = Distance(16)
    plan = QUICK.model_copy(update={"lr": [1e-2], "clip": 0.5, "weight_decay": [0.5], "steps": 8, "eval_every": 8})
    torch.manual_seed(5)
    made, stream = model(task), training_batches(task, plan.batch_size, seed=5)
    skipped = {p for part in (made.embedding, made.stack.norm) for p in part.parameters()}
    skipped |= {p for p in made.parameters() if p.ndim == 1}
    matrices = [p for p in made.parameters() if p not in skipped]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.5}, {"params": [*skipped], "weight_decay": 0.0}], lr=1e-2
    )
    for factor in [1.0, *(0.1 + 0.45 * (1 + math.cos(math.pi * i / 7)) for i in range(1, 8))]:
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * factor
        batch = next(stream)
        optimizer.zero_grad()
        F.cross_entropy(made(batch.tokens).flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE).backward()
        nn.utils.clip_grad_norm_(made.parameters(), 0.5)
        optimizer.step()
    test = held_out(task, "test", plan.n_test, 5)
    expected = F.cross_entropy(made(test.tokens).flatten(0, 1), test.labels.flatten(), ignore_index=IGNORE).item()
    assert train(partial(model, task), task, plan, seed=5).loss == pytest.approx(expected, rel=1e-5)


def test_training_on_few_sequences_repeats_them_and_scores_on_others():
    build, built = scripted((0.5, 0.5))
    train(build, Copy(6), QUICK.model_copy(update={"n_training": 5}), seed=0)
    training = torch.cat([tokens for tokens in built[0].seen if len(tokens) == QUICK.batch_size][: QUICK.eval_every])
    assert len(training.unique(dim=0)) == 5
    assert in_split(training, "training").all()


def test_trials_start_from_the_same_weights_and_see_the_same_batches():
    task, built = Copy(6), []

    def build():
        built.append(Scripted({"validation": 0.5, "test": 0.5}))
        built[-1].start = torch.rand(3)
        return built[-1]

    train(build, task, QUICK.model_copy(update={"lr": [1e-3, 1e-2]}), seed=0)
    first, second = built
    assert torch.equal(first.start, second.start)
    n_common = min(len(first.seen), len(second.seen))
    assert n_common > QUICK.steps
    assert all(torch.equal(a, b) for a, b in zip(first.seen[:n_common], second.seen[:n_common], strict=True))


def test_every_variant_meets_the_same_data():
    task, seen = Distance(16), {}

    def build(mixer):
        made = model(task, mixer)
        seen[mixer] = []
        made.embedding.register_forward_pre_hook(lambda _, inputs: seen[mixer].append(inputs[0]))
        return made

    results = [train(partial(build, mixer), task, QUICK, seed=0) for mixer in (Softmax, Recurrent)]
    assert results[0].fingerprint == results[1].fingerprint
    assert results[0].fingerprint != train(partial(model, task), task, QUICK, seed=1).fingerprint
    assert len(seen[Softmax]) == len(seen[Recurrent])
    assert all(torch.equal(a, b) for a, b in zip(seen[Softmax], seen[Recurrent], strict=True))


def test_a_model_never_trains_on_what_it_is_scored_on():
    build, built = scripted((0.5, 0.5))
    train(build, Copy(6), QUICK, seed=0)
    training = [tokens for tokens in built[0].seen if len(tokens) == QUICK.batch_size][: QUICK.eval_every]
    assert in_split(torch.cat(training), "training").all()
    assert all(tokens.shape[1] == 6 for tokens in built[0].seen)


def test_the_learning_rate_is_chosen_on_validation_and_never_on_test():
    build, built = scripted((0.20, 0.36), (0.34, 0.30), (0.17, 0.21))
    choice = QUICK.model_copy(update={"lr": [1e-4, 1e-3, 1e-2], "n_validation": 500, "n_test": 500})
    result = train(build, Copy(8), choice, seed=0)
    assert result.lr == 1e-3
    assert result.accuracy == pytest.approx(0.30, abs=0.05)
    assert [trial["validation_accuracy"] for trial in result.trials] == pytest.approx([0.20, 0.34, 0.17], abs=0.05)
    n_test_rows = [sum(int(in_split(tokens, "test").sum()) for tokens in made.seen) for made in built]
    assert n_test_rows == [0, choice.n_test, 0]


def test_equal_accuracy_is_settled_by_validation_loss():
    built = iter([1.0, 9.0, 4.0])  # how sure the model is of its answers, right ones all

    def build():
        sure = Scripted({"validation": 1.0, "test": 1.0})
        sure.head = nn.Linear(8, 8, bias=False).requires_grad_(False)
        sure.head.weight.copy_(torch.eye(8) * next(built))
        return sure

    choice = QUICK.model_copy(update={"lr": [1e-4, 1e-3, 1e-2], "stop_at": None})
    assert train(build, Copy(8), choice, seed=0).lr == 1e-3


def test_reaching_the_goal_ends_the_trial_but_spares_no_other():
    build, built = scripted((0.3, 0.3), (1.0, 1.0), (1.0, 1.0))
    result = train(build, Copy(8), QUICK.model_copy(update={"lr": [1e-4, 1e-3, 1e-2], "stop_at": 0.9}), seed=0)
    assert [trial["steps"] for trial in result.trials] == [QUICK.steps, QUICK.eval_every, QUICK.eval_every]
    assert len(built) == 3
    assert result.lr == 1e-3


def test_without_a_goal_every_trial_runs_to_its_end():
    build, _ = scripted((1.0, 1.0), (1.0, 1.0))
    result = train(build, Copy(8), QUICK.model_copy(update={"lr": [1e-3, 1e-2], "stop_at": None}), seed=0)
    assert [trial["steps"] for trial in result.trials] == [QUICK.steps] * 2


@pytest.mark.parametrize(("steps", "looks"), [(6, [3, 6]), (7, [3, 6, 7]), (2, [2]), (1, [1])])
def test_validation_is_looked_at_every_so_often_and_at_the_end(steps, looks):
    build, _ = scripted((0.5, 0.5))
    (trial,) = train(build, Copy(8), QUICK.model_copy(update={"steps": steps}), seed=0).trials
    assert [point[0] for point in trial["curve"]] == looks
    assert trial["steps"] == steps
    assert trial["best_step"] == looks[0]


def test_a_trial_that_diverged_is_a_failed_trial():
    task = Distance(16)
    result = train(partial(model, task), task, QUICK.model_copy(update={"lr": [1e30, 1e-3]}), seed=0)
    assert result.status == "ok"
    assert result.lr == 1e-3
    assert [trial["diverged"] for trial in result.trials] == [True, False]
    assert result.trials[0]["validation_accuracy"] is None


def test_all_trials_diverged_is_diverged_and_not_a_score():
    task = Distance(16)
    result = train(partial(model, task), task, QUICK.model_copy(update={"lr": [1e30, 1e32]}), seed=0)
    assert result.status == "diverged"
    assert (result.accuracy, result.loss, result.lr, result.slices) == (None, None, None, {})
    assert [trial["steps"] for trial in result.trials] == [QUICK.eval_every] * 2


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 3), st.integers(0, 20), st.integers(2, 5), st.integers(1, 9))
def test_slices_add_up_to_the_whole(n_slots, extra, n_values, batch_size):
    task = Distance(2 * n_slots + 4 + extra, n_slots=n_slots, n_values=n_values)
    quick = QUICK.model_copy(update={"steps": 1, "batch_size": batch_size})
    result = train(partial(model, task, d_model=8), task, quick, seed=0)
    assert tuple(result.slices) == task.slice_names
    assert sum(part["n"] for part in result.slices.values()) == result.n_scored == n_slots * quick.n_test
    n_right = sum(part["n"] * part["accuracy"] for part in result.slices.values() if part["n"])
    assert n_right / result.n_scored == pytest.approx(result.accuracy)
    assert (result.chance, result.floor) == (1 / n_values, 1 / n_values)
    built = model(task, d_model=8)
    assert result.n_params == sum(p.numel() for p in built.parameters())
    assert result.n_params_body == sum(p.numel() for p in built.stack.parameters())
    assert (result.n_test, result.slice_unit) == (quick.n_test, "gap")


def test_a_result_is_a_plain_record():
    task = Distance(16)
    record = asdict(train(partial(model, task), task, QUICK.model_copy(update={"lr": [1e30, 1e-3]}), seed=0))
    assert json.loads(json.dumps(record, allow_nan=False)) == record


def always(answers, vocab_size=10):
    """A stand-in for a model that gives these answers, (N, T), to whatever rows come."""
    rows = iter(answers)

    def hidden(tokens):
        return torch.stack([F.one_hot(torch.tensor(next(rows)), vocab_size).float() for _ in tokens])

    weight = nn.Parameter(torch.zeros(1))

    def nothing():
        return None

    return SimpleNamespace(
        hidden=hidden, head=nn.Identity(), eval=nothing, train=nothing, parameters=lambda: iter([weight])
    )


def batch_of(labels) -> Batch:
    labels = torch.tensor(labels)
    return Batch(torch.zeros_like(labels), labels, torch.where(labels == IGNORE, -1, 0))


def test_positions_without_a_label_are_neither_right_nor_wrong():
    score = evaluate(always([[5, 9, 0, 0]]), batch_of([[5, 6, IGNORE, IGNORE]]), ("all",), 1)
    assert (score.accuracy, score.n_scored) == (0.5, 2)


def test_a_row_without_labels_adds_nothing():
    labels = [[IGNORE, IGNORE], [3, IGNORE], [4, 4]]
    score = evaluate(always([[0, 0], [3, 0], [4, 0]]), batch_of(labels), ("all", "none"), 1)
    assert (score.accuracy, score.n_scored) == (2 / 3, 3)
    assert score.slices == {"all": {"accuracy": 2 / 3, "n": 3}, "none": {"accuracy": None, "n": 0}}
    with pytest.raises(ValueError, match="nothing to score"):
        evaluate(always([[0, 0]]), batch_of([[IGNORE, IGNORE]]), ("all",), 1)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_whole_sequences_are_counted_apart_from_tokens(batch_size):
    labels = [[1, 2, IGNORE], [3, IGNORE, 4], [IGNORE] * 3, [5, 5, 5]]
    score = evaluate(always([[1, 2, 0], [3, 0, 9], [0] * 3, [5, 5, 5]]), batch_of(labels), ("all",), batch_size)
    assert (score.accuracy, score.sequence_accuracy) == (6 / 7, 2 / 3)


def test_totals_are_summed_over_tokens_and_not_averaged_over_batches():
    labels = [[1] + [IGNORE] * 98, [2] * 99]
    score = evaluate(always([[1] * 99, [3] * 99]), batch_of(labels), ("all",), 1)
    assert (score.accuracy, score.n_scored) == (0.01, 100)


@pytest.mark.parametrize("mixer", [Softmax, Recurrent])
def test_a_score_does_not_depend_on_which_rows_share_a_batch(mixer):
    task = Distance(12)
    made, test = model(task, mixer), held_out(Distance(12), "test", 12, 0)
    whole = evaluate(made, test, task.slice_names, 12)
    for batch_size in (1, 5):
        parts = evaluate(made, test, task.slice_names, batch_size)
        assert parts.loss == pytest.approx(whole.loss, abs=1e-6)
        assert parts.slices == whole.slices


def test_scoring_is_done_without_dropout_and_training_with_it():
    class Dropping(Nothing):
        def forward(self, x, *, context=None, key_mask=None):
            modes.append(self.training)
            return F.dropout(super().forward(x), 0.5, self.training)

    task, modes = Distance(16), []
    train(partial(model, task, Dropping), task, QUICK, seed=0)
    validation, test = (-(-n // QUICK.batch_size) for n in (QUICK.n_validation, QUICK.n_test))
    look = [True] * QUICK.eval_every + [False] * validation
    assert modes == look * 2 + [False] * test


def test_the_head_meets_scored_positions_alone():
    task, shapes = Distance(20), []

    def build():
        made = model(task)
        made.head.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
        return made

    train(build, task, QUICK, seed=0)
    assert {shape[0] for shape in shapes} <= {4 * n for n in range(1, QUICK.batch_size + 1)}
    assert (4 * QUICK.batch_size, 16) in shapes


class Special(Mixer):
    no_decay = ("decay_rate",)
    lr_scale = MappingProxyType({"decay_rate": 0.1, "map.weight": 2.0})

    def __init__(self, spec):
        super().__init__(spec)
        self.decay_rate = nn.Parameter(torch.ones(spec.d_model, 2))
        self.map = nn.Linear(spec.d_model, spec.d_model)

    def forward(self, x, *, context=None, key_mask=None):
        return self.map(x) * self.decay_rate.sum(1)


def test_matrices_decay_and_nothing_else_and_mixers_have_their_say():
    made = model(Copy(4), Special)
    groups = parameter_groups(made, 1e-3, 0.1)
    found = {id(p): (group["weight_decay"], group["lr"]) for group in groups for p in group["params"]}
    assert len(found) == sum(len(group["params"]) for group in groups) == len(list(made.parameters()))
    treated = {name: found[id(p)] for name, p in made.named_parameters()}
    plain, matrix = (0.0, 1e-3), (0.1, 1e-3)
    expected = {
        "embedding.tokens.weight": plain,
        "embedding.positions.table": plain,
        "stack.norm.weight": plain,
        "head.weight": matrix,
        "stack.blocks.0.norm_ff.bias": plain,
        "stack.blocks.0.feed_forward.up.weight": matrix,
        "stack.blocks.0.feed_forward.up.bias": plain,
        "stack.blocks.0.mixer.decay_rate": (0.0, 1e-4),
        "stack.blocks.0.mixer.map.weight": (0.1, 2e-3),
        "stack.blocks.0.mixer.map.bias": plain,
    }
    assert {name: treated[name] for name in expected} == expected


def test_a_treatment_for_a_parameter_that_is_not_there_is_an_error():
    class Misspelt(Special):
        no_decay = ("decayrate",)

    with pytest.raises(ValueError, match="Misspelt has no parameter decayrate"):
        train(partial(model, Copy(8), Misspelt), Copy(8), QUICK, seed=0)


@given(st.integers(1, 500), st.floats(0, 1))
def test_the_learning_rate_warms_up_and_ends_at_a_tenth(steps, warmup):
    plan = TrainSettings(steps=steps, warmup=warmup)
    factors = [lr_factor(step, plan) for step in range(steps)]
    n_warmup = round(warmup * steps)
    assert all(0.1 - 1e-9 <= factor <= 1 for factor in factors[n_warmup:])
    assert factors[n_warmup:] == sorted(factors[n_warmup:], reverse=True)
    assert factors[:n_warmup] == pytest.approx([(i + 1) / max(1, n_warmup) for i in range(n_warmup)])
    if steps - n_warmup > 1:
        assert factors[-1] == pytest.approx(0.1)


def test_a_task_too_small_for_its_test_set_is_refused():
    with pytest.raises(ValueError, match="too small"):
        train(partial(model, Copy(2)), Copy(2), QUICK, seed=0)


TINY = TrainSettings(steps=300, batch_size=32, lr=[1e-2], n_validation=100, n_test=200, eval_every=50, stop_at=0.98)


@pytest.mark.parametrize("mixer", [Softmax, Recurrent])
def test_a_mixer_that_mixes_learns_a_tiny_task(mixer):
    task = Distance(16, n_slots=2, n_values=4, n_noise=4)
    result = train(partial(model, task, mixer, d_model=32), task, TINY, seed=0)
    assert result.accuracy > 0.9


def test_a_mixer_that_mixes_nothing_stays_at_chance():
    task = Distance(16, n_slots=2, n_values=4, n_noise=4)
    result = train(partial(model, task, Nothing, d_model=32), task, TINY, seed=0)
    assert result.accuracy == pytest.approx(task.chance, abs=0.08)


def test_a_spec_reaches_the_mixer_untouched():
    specs = []

    def factory(spec: Spec) -> Mixer:
        specs.append(spec)
        return Softmax(spec)

    task = Distance(16)
    train(lambda: model(task, factory), task, QUICK, seed=0)
    assert specs == [Spec(16, 2, 16)]

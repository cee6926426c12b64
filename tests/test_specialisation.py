"""Heads: weights are those that attention uses, scores are read in the right place, an ablated head comes back."""

import pytest
import torch
from torch import Generator

from attnbench.tasks.mqar import MQAR
from attnbench.theory import specialisation
from attnbench.theory.specialisation import Part

TASK = MQAR(16, n_pairs=2, vocab_size=16)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return specialisation.model(TASK, d_model=16)


def batch(n=6):
    return TASK.sample(n, Generator().manual_seed(0))


@torch.no_grad()
def test_weights_are_those_that_the_layer_mixes_by(model):
    tokens = batch().tokens
    maps = specialisation.weights(model, tokens)
    x = model.embedding(tokens)
    for layer, block in enumerate(model.stack.layers):
        normed = block.norm_mixer(x)
        v = block.mixer.project(normed, normed)[2]
        torch.testing.assert_close(block.mixer.merge(maps[layer] @ v), block.mixer(normed))
        torch.testing.assert_close(maps[layer].sum(-1), torch.ones(6, 2, 16))
        x = block(x)


def test_scores_are_read_at_values_and_at_queries():
    drawn = batch()
    binds, finds = torch.zeros(6, 2, 16, 16), torch.zeros(6, 2, 16, 16)
    for position in (1, 3):
        binds[:, 0, position, position - 1] = 1.0
    for row in range(6):
        tokens = drawn.tokens[row].tolist()
        for query, label in enumerate(drawn.labels[row].tolist()):
            if label >= 0:
                finds[row, 1, query, tokens.index(label)] = 1.0
    found = specialisation.parts([binds, finds], drawn, TASK.n_pairs)
    assert {head: (part.previous, part.target) for head, part in found.items()} == {
        (0, 0): (1.0, 0.0),
        (0, 1): (0.0, 0.0),
        (1, 0): (0.0, 0.0),
        (1, 1): (0.0, 1.0),
    }


def test_uniform_rows_have_the_entropy_of_uniform_rows():
    uniform = torch.ones(16, 16).tril()
    uniform = (uniform / uniform.sum(-1, keepdim=True)).expand(6, 2, -1, -1)
    found = specialisation.parts([uniform], batch(), TASK.n_pairs)
    assert found[0, 0].entropy == pytest.approx(0, abs=1e-6)
    assert found[0, 0].previous == pytest.approx((1 / 2 + 1 / 4) / 2)


@torch.no_grad()
def test_a_head_is_gone_inside_and_back_behind(model):
    tokens = batch().tokens
    x = model.embedding(tokens)
    mixer = specialisation.attention(1, model)
    before, kept = mixer(x), mixer.W_o.weight.clone()
    y = mixer.attend(*mixer.project(x, x))
    y[:, 0] = 0.0
    with specialisation.without(model, 1, 0):
        torch.testing.assert_close(mixer(x), mixer.merge(y))
    assert torch.equal(mixer.W_o.weight, kept)
    assert torch.equal(mixer(x), before)


def test_without_all_of_a_layers_heads_the_layer_adds_nothing_and_all_come_back(model):
    drawn = batch(20)
    torch.nn.init.normal_(model.stack.layers[0].mixer.W_o.weight, std=9.0)
    loud = specialisation.accuracy(model, TASK, drawn)
    lacking = specialisation.accuracy(model, TASK, drawn, *specialisation.heads(model, 0))
    assert specialisation.accuracy(model, TASK, drawn) == loud
    torch.nn.init.zeros_(model.stack.layers[0].mixer.W_o.weight)
    assert specialisation.accuracy(model, TASK, drawn) == lacking


def test_before_training_no_head_has_a_part():
    assert all(finding.ok for finding in specialisation.at_start())


def test_a_model_whose_parts_are_known_is_judged_by_them():
    found = {(0, 0): Part(0.2, 0.1, -0.1), (0, 1): Part(0.9, 0.1, -2.0), (1, 0): Part(0.1, 0.9, -1.0)}
    found[1, 1] = Part(0.1, 0.92, -1.0)
    lost = {(0, 0): 0.1, (0, 1): 0.7, (1, 0): 0.02, (1, 1): 0.3}
    assert all(finding.ok for finding in specialisation.judged(0.99, found, lost, 0.9))
    lost[0, 1] = 0.1
    assert [f.what for f in specialisation.judged(0.99, found, lost, 0.9) if not f.ok] == [
        "accuracy lost without that head"
    ]

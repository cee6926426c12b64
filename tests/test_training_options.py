"""How a step of training is made: one kernel for the optimiser, mixed precision, compiled parts."""

from dataclasses import asdict
from functools import partial

import pytest
import torch
from test_train import QUICK, Softmax, model

from attnbench.optimise import adamw, autocast, hidden_of, parameter_groups
from attnbench.settings import TrainSettings
from attnbench.tasks.distance import Distance
from attnbench.train import train

TASK = Distance(16)


def result(**changes):
    return train(partial(model, TASK), TASK, TrainSettings(**QUICK.model_dump() | changes), seed=0)


def one_update(optimizer, made):
    torch.manual_seed(0)
    for p in made.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    return torch.cat([p.detach().flatten() for p in made.parameters()])


def test_one_kernel_updates_as_the_plain_loop_does():
    torch.manual_seed(0)
    made = model(TASK)
    torch.manual_seed(0)
    other = model(TASK)
    plain = torch.optim.AdamW(parameter_groups(other, 1e-2, 0.1), foreach=False, fused=False)
    ours = adamw(made, 1e-2, 0.1)
    assert all(group["fused"] for group in ours.param_groups)
    assert torch.allclose(one_update(ours, made), one_update(plain, other), atol=1e-7)


@pytest.mark.parametrize("amp", [None, "bfloat16"])
def test_training_repeats_bit_for_bit_and_says_how_it_was_done(amp):
    once = result(amp=amp)
    assert asdict(once) == asdict(result(amp=amp))
    assert (once.amp, once.compile) == (amp, False)


def test_mixed_precision_changes_training_and_not_the_dtype_of_parameters():
    assert result(amp="bfloat16").loss != result().loss
    made = model(TASK)
    with autocast(torch.device("cpu"), "bfloat16"):
        assert made.head(torch.randn(2, 16)).dtype == torch.bfloat16
    with autocast(torch.device("cpu"), None):
        assert made.head(torch.randn(2, 16)).dtype == torch.float32
    assert {p.dtype for p in made.parameters()} == {torch.float32}


def test_compilation_is_of_the_part_before_the_head(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append((function, options)) or function)
    made = model(TASK, Softmax)
    assert hidden_of(made, False) == made.hidden
    assert asked == []
    assert hidden_of(made, True) == made.hidden
    assert asked == [(made.hidden, {"dynamic": False})]


def test_a_compiled_trial_reports_so(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    compiled = result(compile=True)
    assert compiled.compile
    assert compiled.loss == result().loss

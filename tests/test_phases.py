"""Phases: what one call of each does, and that each call is like the one before."""

import pytest
import torch
from run_rows import tiny_cell as cell
from test_cost import Dense

from attnbench.execute.build import build_module, build_workload
from attnbench.execute.phases import phase_call, state_bytes

LEVELS = {
    "layer": {"level": "layer"},
    "block": {"level": "block", "d_ff": 16},
    "model": {"level": "model", "d_ff": 16, "n_layers": 2, "positions": "learned", "embedding_std": 0.02},
    "cross": {"level": "layer", "role": "cross", "S": 7},
}


def made(phase, level="layer"):
    asked = cell(phase=phase, max_T=13, **LEVELS[level])
    torch.manual_seed(0)
    return build_workload(asked, build_module(asked, Dense))


def tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors(part)]


@pytest.mark.parametrize("phase", ["forward", "backward", "forward_backward", "prefill", "decode"])
@pytest.mark.parametrize("level", LEVELS)
def test_every_call_is_like_the_one_before(phase, level):
    with torch.set_grad_enabled("backward" in phase):
        call = phase_call(made(phase, level), phase)
        first = [tensor.clone() for tensor in tensors(call())]
        assert first
        for a, b in zip(first, tensors(call()), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("level", ["layer", "block", "model"])
def test_backward_alone_gives_the_gradients_of_both(level):
    work = made("backward", level)
    torch.manual_seed(1)
    alone = phase_call(work, "backward")()
    torch.manual_seed(1)
    both = phase_call(work, "forward_backward")()
    for a, b in zip(alone, both, strict=True):
        torch.testing.assert_close(a, b)


def test_train_step_lowers_the_loss_and_leaves_no_gradient():
    work = made("train_step", "model")
    before = [parameter.clone() for parameter in work.module.parameters()]
    call = phase_call(work, "train_step")
    losses = [call().item() for _ in range(20)]
    assert losses[-1] < losses[0]
    assert all(parameter.grad is None for parameter in work.module.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, work.module.parameters(), strict=True))


@pytest.mark.parametrize("level", ["layer", "block", "model", "cross"])
@torch.no_grad()
def test_decode_is_the_token_after_the_context(level):
    work = made("decode", level)
    y = tensors(phase_call(work, "decode")())[0]
    x, *context = work.inputs
    longer = torch.cat((x, x[:, -1:]), dim=1)
    whole = work.module(longer, **({"context": context[0]} if context else {}))
    torch.testing.assert_close(y, whole[:, -1])


@torch.no_grad()
def test_state_bytes_of_a_cache_are_its_preallocated_size():
    work = made("decode")
    _, state = work.prefill()
    length = 8  # one int64
    assert state_bytes(state) == 2 * 3 * 13 * 8 * 4 + length


def test_a_core_does_not_decode():
    asked = cell(phase="decode", level="core")
    with pytest.raises(TypeError, match="does not decode"):
        phase_call(build_workload(asked, build_module(asked, Dense)), "decode")

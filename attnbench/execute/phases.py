"""One call of each phase over a workload, made ready outside the clock. Each call is like the one before.

forward            a forward pass, as in use
backward           the gradients alone, over one graph that is kept
forward_backward   both, as in the middle of a training step
train_step         forward, loss, backward and an AdamW update of a language model
prefill            read a prompt of T tokens into a decoding state
decode             one more token after T others
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnbench.execute.build import Workload
from attnbench.settings import Phase

Call = Callable[[], object]


def phase_call(work: Workload, phase: Phase) -> Call:
    """What a visit times and weighs. Raises what the mixer raises where it has no decoding form."""
    makers: Mapping[Phase, Callable[[Workload], Call]] = {
        "forward": lambda work: work.forward,
        "backward": _backward,
        "forward_backward": _forward_backward,
        "train_step": _train_step,
        "prefill": lambda work: work.prefill,
        "decode": _decode,
    }
    return makers[phase](work)


def state_bytes(state: Any) -> int:
    """Bytes of all tensors of a decoding state, however nested."""
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return sum(state_bytes(part) for part in parts)


def _forward_backward(work: Workload) -> Call:
    seed, wanted = _seed(work), _wanted(work)
    return lambda: _gradients(work.forward(), wanted, seed)


def _backward(work: Workload) -> Call:
    seed, wanted = _seed(work), _wanted(work)
    y = work.forward()
    return lambda: _gradients(y, wanted, seed, retain_graph=True)


def _gradients(y: Tensor, wanted: list[Tensor], seed: Tensor, retain_graph: bool = False) -> tuple[Tensor | None, ...]:
    """Gradients are returned and not accumulated, so that nothing has to be set to None between calls."""
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        y, wanted, seed, allow_unused=True, materialize_grads=False, retain_graph=retain_graph
    )
    return found


def optimizer_bytes(call: Call) -> int | None:
    """Bytes of the optimiser's state that a train_step keeps from call to call; None for other phases."""
    optimizer = next(iter(call.args), None) if isinstance(call, partial) and call.func is _update else None
    return None if optimizer is None else state_bytes(dict(optimizer.state))


def _train_step(work: Workload) -> Call:
    optimizer = torch.optim.AdamW(work.module.parameters())
    labels = torch.randint(work.output_shape[-1], work.output_shape[:-1], device=work.inputs[0].device).flatten()
    return partial(_update, optimizer, lambda: F.cross_entropy(work.forward().flatten(0, -2), labels))


def _update(optimizer: torch.optim.Optimizer, forward: Callable[[], Tensor]) -> Tensor:
    loss = forward()
    torch.autograd.backward(loss)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def _decode(work: Workload) -> Call:
    """A step from one and the same state: the next token after T others, again and again."""
    with torch.no_grad():
        _, state = work.prefill()
    return lambda: work.step(state)


def _seed(work: Workload) -> Tensor:
    return torch.randn(work.output_shape, dtype=work.dtype, device=work.inputs[0].device)


def _wanted(work: Workload) -> list[Tensor]:
    """Everything that a training step wants gradients of; what a core uses of its mixer's parameters too."""
    parts = (*work.inputs, *work.parameters)
    return [tensor for tensor in dict.fromkeys(parts) if tensor.requires_grad]

"""What a variant claims, and what can be seen of its paths and steps without a clock. Runs in a fresh process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attnbench import options, registry
from attnbench.execute import stages
from attnbench.execute.abilities import abilities_of, reason_for
from attnbench.mixer import Attention, Mixer, Role
from attnbench.registry import PluginError, Source
from attnbench.settings import ROLES
from attnbench.subject import Inputs, Subject, gradients, run

AT_ONCE = 32  # outputs of one sequence whose gradients are taken in one batch
IDLE = 4  # a stack may mix in every other layer alone
N_SEQUENCES = 2  # a ReLU can hide a path in one of them
PHASES = ("forward_backward", "forward")  # in which its costs are read, the first that it has


def claimed(source: Source) -> dict[str, Any]:
    """What an audit has to know of a variant: its claim, options' names, role and phase, whether it has a core.

    role: causal unless the variant only serves both directions. phase: `forward_backward` where it has one, else
    `forward`. Raises PluginError when it does not load.
    """
    stages.importing(source)
    cls = registry.load(source)
    if not issubclass(cls, Mixer):
        raise PluginError([f"{source.origin}: {cls.__name__} is no subclass of attnbench.Mixer"])
    served = abilities_of(cls)["roles"]
    role: Role = next((role for role in ROLES if role != "cross" and served[role] is None), "causal")
    return {
        "claim": asdict(cls.claim) if cls.claim else None,
        "options": list(options.listing(cls)),
        "role": role,
        "phase": next((phase for phase in PHASES if reason_for(cls, role, phase=phase) is None), PHASES[0]),
        "core": issubclass(cls, Attention),
    }


def probed(source: Source, role: Role, lengths: Sequence[int]) -> dict[str, list[int | None]]:
    """At each length T: `layers`, which it takes until each position has seen all it may, and `calls`.

    layers: of what each layer sees by gradient, followed from position to position; None where no number of them does.
    calls: how many operators torch dispatches in one forward pass. A fused kernel counts once, whatever it does inside,
    so that they bound the steps that follow each other from below. Lengths that the variant refuses are None.
    """
    torch.set_num_threads(1)
    stages.importing(source)
    subject = Subject(registry.load(source), {}, role)
    stages.at(f"probing {source.name}")
    taken = [T if subject.reason(T) is None else None for T in lengths]
    return {
        "layers": [T and n_layers(_each_sees(subject, T), role) for T in taken],
        "calls": [T and n_calls(subject, T) for T in taken],
    }


def sees(subject: Subject, T: int) -> Tensor:
    """(T, T) of bool: whether output i of one layer depends on input j, by gradients that are not 0, in float64."""
    mixer, x = subject.build(max_T=T), subject.inputs(N_SEQUENCES, T).x
    return torch.stack([_seen_in(subject, mixer, x[i : i + 1]) for i in range(N_SEQUENCES)]).any(0)


def _seen_in(subject: Subject, mixer: Mixer, x: Tensor) -> Tensor:
    """`sees` in one sequence x (1, T, d_model)."""
    T, found = x.shape[1], []
    for start in range(0, T, AT_ONCE):
        rows = torch.arange(start, min(T, start + AT_ONCE))
        copies = Inputs(x.expand(len(rows), -1, -1)).leaves()
        y = run(mixer, copies)  # (rows, T, d_model)
        picked = (y * subject.noise(*y.shape, seed=3))[torch.arange(len(rows)), rows]  # (rows, d_model)
        found.append(gradients(picked.sum(), copies)[0].ne(0).any(-1))
    return torch.cat(found)


def _each_sees(subject: Subject, T: int) -> Callable[[int], Tensor]:
    """What each layer of a stack sees. A variant of which the second layer sees what the first does has all alike."""
    each = cache(lambda layer: sees(replace(subject, layer=layer), T))
    return (lambda layer: each(0)) if torch.equal(each(0), each(1)) else each


def n_layers(seen: Callable[[int], Tensor], role: Role) -> int | None:
    """The layers until each position has seen all that its role lets it, when layer i sees seen(i), (T, T).

    None once IDLE layers, one after the other, add nothing to those below them.
    """
    reached = torch.eye(len(seen(0)))
    wanted = torch.ones_like(reached).tril() if role == "causal" else torch.ones_like(reached)
    n = n_idle = 0
    while not bool(reached[wanted > 0].all()):
        further = (reached + seen(n).float() @ reached > 0).float()
        n_idle = n_idle + 1 if torch.equal(further, reached) else 0
        if n_idle == IDLE:
            return None
        reached, n = further, n + 1
    return n


def n_calls(subject: Subject, T: int) -> int:
    """The operators that torch dispatches in one forward pass over T positions, without gradients."""
    mixer, inputs = subject.build(max_T=T), subject.inputs(1, T)
    counter = _Counter()  # type: ignore[no-untyped-call]  # torch leaves its base untyped
    with torch.no_grad(), counter:
        run(mixer, inputs)
    return counter.n


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts dispatched operators."""

    n: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.n += 1
        return func(*args, **(kwargs or {}))

"""Promises that show in long sequences alone: rounding, sums that stall, positions past 65,536, memory.

These take seconds, so they are tried for a certificate, and not before every run.
"""

from __future__ import annotations

import inspect
from dataclasses import replace

import torch
from torch import Tensor

from attnbench.analyse.claims import amount, highest
from attnbench.measure.memory import saved_bytes
from attnbench.mixer import Mixer
from attnbench.subject import (
    MAX_T,
    BrokenError,
    Inputs,
    NotApplicableError,
    Subject,
    check_finite,
    needs_gradients,
    run,
)

GROWING = (256, 1024, 2048, 4096, 16384)
SQUARE_MAX_T = 2048  # of variants that claim T^2, or nothing
ROUNDING = 1e-5  # of float32 against float64: the error of 9 of 10 positions by a typical output, at any length
LONG_T = 65537
STALL_T = 512  # tokens of each of two kinds; in bfloat16 a sum of equal parts stops at 256 of them
STALLED = 0.05  # of the largest output
MEMORY_T, MEMORY_D = (256, 4096), (16, 256)
MEMORY_GROWTH = 3.0
MEMORY_SHARE = 45.0  # numbers kept for each that is claimed, in a wide head; sound variants stay below 39


def error_growth(subject: Subject) -> None:
    """Rounding does not pile up: float32 stays near float64 up to T = 16384, or 2048 where T^2 or nothing is claimed.

    At 9 of 10 positions: a variant that chooses keys may choose another at a few.
    """
    if not subject.variant.continuous:
        raise NotApplicableError("says continuous = False: where scores nearly tie, rounding decides which keys count")
    longest = GROWING[-1] if _power(subject) < 2 else SQUARE_MAX_T
    lengths = [T for T in GROWING if longest >= T]
    single, exact = replace(subject, dtype="float32"), replace(subject, dtype="float64")
    lengths = [T for T in lengths if single.reason(T) is None and exact.reason(T) is None]
    if not lengths:
        raise NotApplicableError(single.reason(GROWING[0]) or exact.reason(GROWING[0]))
    for T in lengths:
        fast, slow = _alike(single, exact, T)
        inputs = single.inputs(1, T)
        with torch.no_grad(), single.at(inputs):
            expected = run(slow, inputs.map(Tensor.double))
            errors = (run(fast, inputs).double() - expected).norm(dim=-1)  # (1, T)
            share = (errors.quantile(0.9) / expected.square().sum(-1).mean().sqrt()).item()
            if not share <= ROUNDING:
                raise BrokenError(f"float32 is off from float64 by {share:.2g} of the outputs, bound {ROUNDING:g}")


def long_sequence(subject: Subject) -> None:
    """Where no more than linear time is claimed: T = 65537 in float32 is finite, and so is its last output right.

    It is that of one step behind the others, or of float64 where the variant does not decode.
    """
    if _power(subject) > 1 or subject.variant.claim is None:
        raise NotApplicableError("claims no time that is linear in T")
    single = replace(subject, dtype="float32")
    if reason := single.reason(LONG_T):
        raise NotApplicableError(reason)
    mixer, inputs = single.build(max_T=LONG_T), single.inputs(1, LONG_T)
    with torch.no_grad(), single.at(inputs):
        y = run(mixer, inputs)
        check_finite({"output": y})
        last, told = _last(single, mixer, inputs)
        single.same(y[:, -1], last, f"the last output differs from that of {told}")


def sums_in_float32(subject: Subject) -> None:
    """In bfloat16 a token still counts after hundreds of others: sums and states are wider than what they add up.

    Tokens of one kind and then as many of another, by a whole pass and by steps, against a pass in float64.
    """
    half = replace(subject, dtype="bfloat16")
    exact = replace(subject, dtype="float64")
    T = 2 * STALL_T
    if reason := half.reason(T) or exact.reason(T):
        raise NotApplicableError(reason)
    fast, slow = _alike(half, exact, T)
    kinds = half.inputs(1, 2, 2).map(lambda x: x.repeat_interleave(STALL_T, dim=1))
    decodes = all(half.reason(T, phase=phase) is None for phase in ("prefill", "decode"))
    with torch.no_grad(), half.at(kinds, "two kinds of tokens"):
        expected = run(slow, kinds.map(Tensor.double))[:, -1]
        _near(run(fast, kinds)[:, -1], expected, "of the whole pass")
        if decodes:
            _near(_stepped(fast, kinds), expected, f"after {T} steps")


def memory_as_claimed(subject: Subject) -> None:
    """What a training step keeps grows no faster than the claim's terms: no T x T map, and no d x d state per step.

    The numbers kept, by those of the claim with every constant 1, grow by less than a factor of 3 from small to large,
    and are less than 45 in a wide head.
    """
    claim = subject.variant.claim
    if claim is None:
        raise NotApplicableError("makes no claim")
    needs_gradients(subject)
    (short, long), (narrow, wide) = MEMORY_T, MEMORY_D
    found = {size: _kept(subject, *size) for size in ((short, narrow), (long, narrow), (short, wide))}
    if reason := next((kept for kept in found.values() if isinstance(kept, str)), None):
        raise NotApplicableError(reason)
    base = found[short, narrow]
    for size, axis in (((long, narrow), "T"), ((short, wide), "d")):
        growth = float(found[size]) / float(base or 1)  # a mixer without parameters may keep nothing at all
        if growth > MEMORY_GROWTH:
            T, d = size
            told = f"keeps {growth:.3g} times as much of its claim {claim.memory} as at T = {short}, d = {narrow}"
            raise BrokenError(f"T = {T}, d = {d}, 1 head: {told}: grows faster in {axis}, bound {MEMORY_GROWTH:g}")
    share = float(found[short, wide])
    if share > MEMORY_SHARE:
        told = f"keeps {share:.3g} numbers for each of its claim {claim.memory}, bound {MEMORY_SHARE:g}"
        raise BrokenError(f"T = {short}, d = {wide}, 1 head: {told}")


def _power(subject: Subject) -> float:
    """The highest power of T in the claimed time; 2 without a claim."""
    claim = subject.variant.claim
    return 2.0 if claim is None else highest(claim.time, "T", _option_names(subject))


def _option_names(subject: Subject) -> set[str]:
    """Of its constructor and those of its bases."""
    made = [vars(cls)["__init__"] for cls in subject.variant.__mro__ if "__init__" in vars(cls)]
    return {name for one in made for name in inspect.signature(one).parameters}


def _alike(single: Subject, exact: Subject, T: int) -> tuple[Mixer, Mixer]:
    """A mixer for T positions, and the same in float64."""
    fast, slow = single.build(max_T=max(T, MAX_T)), exact.build(max_T=max(T, MAX_T))
    slow.load_state_dict(fast.state_dict())
    return fast, slow


def _last(subject: Subject, mixer: Mixer, inputs: Inputs) -> tuple[Tensor, str]:
    """The last output (1, d_model) by another way, and what that is: one step behind the rest, else float64."""
    if all(subject.reason(LONG_T, phase=phase) is None for phase in ("prefill", "decode")):
        _, state = mixer.prefill(inputs.x[:, :-1], context=inputs.context)
        return mixer.step(inputs.x[:, -1], state)[0], "a step behind the others"
    exact = replace(subject, dtype="float64")
    if reason := exact.reason(LONG_T):
        raise NotApplicableError(reason)
    _, slow = _alike(subject, exact, LONG_T)
    return run(slow, inputs.map(Tensor.double))[:, -1], "float64"


def _stepped(mixer: Mixer, inputs: Inputs) -> Tensor:
    """The output (1, d_model) of the last of T steps from nothing."""
    y, state = mixer.prefill(inputs.x[:, :0], context=inputs.context)
    for t in range(inputs.x.shape[1]):
        y, state = mixer.step(inputs.x[:, t], state)
    return y


def _near(actual: Tensor, expected: Tensor, which: str) -> None:
    share = ((actual.double() - expected).abs().max() / expected.abs().max()).item()
    if not share <= STALLED:
        raise BrokenError(f"the last output {which} is off by {share:.2g} of the largest, bound {STALLED:g}")


def _kept(subject: Subject, T: int, d_head: int) -> float | str:
    """Numbers that a forward pass keeps by those claimed, or why there are none."""
    single = replace(subject, dtype="float32", n_heads=1, d_head=d_head, thorough=False)
    S = T if subject.role == "cross" else None
    if reason := single.reason(T, S):
        return reason
    mixer, inputs = single.build(max_T=T), single.inputs(1, T, S)
    claim, sizes = single.variant.claim, {"T": T, "S": T, "d": d_head, "H": 1, "d_model": d_head, "d_head": d_head}
    assert claim is not None
    options = {name: getattr(mixer, name, None) for name in _option_names(subject)}
    numbers = {name: float(value) for name, value in options.items() if isinstance(value, int | float)}
    with single.at(inputs):
        kept = saved_bytes(lambda: run(mixer, inputs.leaves()), [*mixer.parameters(), *mixer.buffers()])
    return kept / 4 / amount(claim.memory, numbers | sizes)

"""Promises about the mathematics: the fast form is the slow one, gradients are derivatives, order plays its part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from attnbench import blame
from attnbench.mixer import Attention, Mixer
from attnbench.subject import (
    LENGTHS,
    MAX_T,
    BrokenError,
    Inputs,
    NotApplicableError,
    Subject,
    any_mask,
    check_finite,
    check_shape,
    gradients,
    masked_sizes,
    needs_gradients,
    real_queries,
    right_mask,
    run,
)

CHECKED_T = 5
QUICK = (3, 70)  # lengths of a slow form where time is short
FAR_T, FAR_S = 257, 300  # past two blocks of 128 and one of 256, the largest that a variant here has
LONG_T = 1025  # for forms that are others beyond a length


def equals_slow_form(subject: Subject) -> None:
    """Outputs and all gradients are those of `slow_forward`, with each kind of key mask; `attend` also where T != S.

    Thorough: at every length and S that is tried, once past the largest block, and outputs at 1025; else at a short
    length and a longer one.
    A lower dtype is compared with the slow form in float64, of the same weights and inputs.
    """
    pair = _Pair.of(subject)
    _same_forms(subject, pair, _cases(subject))
    _same_core(subject, pair, [(1, 7), (2, 70), (66, MAX_T), (7, 2)] if subject.thorough else [(2, 70)])
    if subject.thorough:
        _same_past_blocks(subject)


def gradcheck(subject: Subject) -> None:
    """Gradients of inputs and parameters are the derivatives, by differences in float64 (torch.autograd.gradcheck)."""
    needs_gradients(subject)
    subject = replace(subject, dtype="float64")
    mixer, inputs = subject.build(), subject.inputs(2, subject.lengths(CHECKED_T, *LENGTHS)[0], CHECKED_T)
    state = {name: value.detach() for name, value in mixer.state_dict(keep_vars=True).items()}
    with subject.at(inputs):
        for at, name in enumerate(("x", "context")[: len(inputs.tensors)]):
            _differentiate(name, inputs.tensors[at], lambda x, at=at: run(mixer, _replaced(inputs, at, x)))  # type: ignore[misc]  # mypy knows no default of a lambda
        for name, parameter in mixer.named_parameters():
            if parameter.requires_grad:
                _differentiate(name, parameter, lambda p, name=name: _with(mixer, state | {name: p}, inputs))  # type: ignore[misc]


def permutation_equivariance(subject: Subject) -> None:
    """Where the variant says `equivariant`: permuted positions give the same outputs, permuted."""
    if subject.role != "bidirectional":
        raise NotApplicableError("the role is not bidirectional")
    mixer = subject.build()
    if not mixer.equivariant:
        raise NotApplicableError("says equivariant = False")
    for T in subject.lengths(2, 16, 65, MAX_T):
        inputs, order = subject.inputs(2, T), torch.arange(T, device=subject.device).roll(T // 3 + 1).flip(0)
        with torch.no_grad(), subject.at(inputs):
            moved = run(mixer, Inputs(inputs.x[:, order]))
            subject.same(moved, run(mixer, inputs)[:, order], "permuted positions change more than the order")


def sizes_of_one(subject: Subject) -> None:
    """One row, with n_heads, d_head or both of 1, at T = 1 and an ordinary T, over one key where there is a context.

    Finite, with finite gradients, and the last position is the same by a step.
    """
    heads, widths = {(1, 1), (1, subject.d_head), (subject.n_heads, 1)}, list[Subject]()
    for n_heads, d_head in sorted(heads):
        small = replace(subject, n_heads=n_heads, d_head=d_head)
        widths += [small] if small.taken(*LENGTHS) else []
    if not widths:
        raise NotApplicableError(replace(subject, n_heads=1, d_head=1).reason(subject.free(1)))
    for small in widths:
        for T in dict.fromkeys((small.lengths(1, *LENGTHS)[0], small.T)):
            _small(small, small.build(), small.inputs(1, T, small.free(1)))


def _small(subject: Subject, mixer: Mixer, inputs: Inputs) -> None:
    inputs = inputs.leaves()
    with subject.at(inputs, f"n_heads {subject.n_heads}, d_head {subject.d_head}"):
        y = run(mixer, inputs)
        slopes = [] if subject.no_gradients else gradients(y.sum(), inputs)
        check_finite({"output": y} | {f"gradient {n} of the inputs": slope for n, slope in enumerate(slopes)})
        T = inputs.x.shape[1]
        if all(subject.reason(T, phase=phase) is None for phase in ("prefill", "decode")):
            with torch.no_grad():
                _, state = mixer.prefill(inputs.x[:, :-1], context=inputs.context)
                stepped, _ = mixer.step(inputs.x[:, -1], state)
            subject.same(stepped, y[:, -1].detach(), f"a step behind {T - 1} tokens differs from the whole pass")


@dataclass(frozen=True)
class _Pair:
    """One mixer, and the one whose slow form it is held to: itself in float64, else its like there."""

    fast: Mixer
    slow: Mixer
    exact: Subject

    @staticmethod
    def of(subject: Subject, max_T: int | None = None) -> _Pair:
        fast = subject.build(max_T=max_T)
        if not _has_slow_form(fast):
            raise NotApplicableError("gives no slow form")
        _check_slow_attend(subject, fast)
        if subject.dtype == "float64":
            return _Pair(fast, fast, subject)
        exact = replace(subject, dtype="float64")
        slow = exact.build(max_T=max_T)
        slow.load_state_dict(fast.state_dict())
        return _Pair(fast, slow, exact)


def _has_slow_form(mixer: Mixer) -> bool:
    if isinstance(mixer, Attention) and type(mixer).slow_forward is Attention.slow_forward:
        return type(mixer).slow_attend is not Attention.slow_attend
    return type(mixer).slow_forward is not Mixer.slow_forward


def _check_slow_attend(subject: Subject, mixer: Mixer) -> None:
    """Raises BrokenError where a slow form of the core returns another kind of thing; told here, it has a name."""
    if isinstance(mixer, Attention) and type(mixer).slow_attend is not Attention.slow_attend:
        inputs = subject.inputs(1, subject.T)
        q, *others = mixer.project(inputs.x, inputs.keys)
        y, expected = mixer.slow_attend(q, *others), (*q.shape[:3], mixer.d_v)
        if told := blame.wrong(f"{blame.who(type(mixer))}.slow_attend", y, expected, "(B, H, T, d_v)"):
            raise BrokenError(told)


def _cases(subject: Subject) -> Iterator[tuple[Inputs, Tensor | None, str]]:
    """Inputs with a key mask or None: lengths, S of a context, kinds of mask; few of each where time is short."""
    lengths = LENGTHS if subject.thorough else QUICK
    for T in subject.lengths(*lengths):
        yield subject.inputs(2, T), None, ""
    if subject.role == "cross":
        T = subject.lengths(7, *reversed(LENGTHS))[0]
        for S in (S for S in dict.fromkeys(map(subject.free, lengths)) if subject.reason(T, S) is None):
            yield subject.inputs(2, T, S), None, ""
    for mask, made in (("right", right_mask), ("any", any_mask)):
        sizes = masked_sizes(subject, mask)  # type: ignore[arg-type]  # a str is no Literal to mypy
        for T, S in sizes if subject.thorough else sizes[:1]:
            yield subject.inputs(4, T, S), made(subject, S), f"key_mask {mask}"


def _same_past_blocks(subject: Subject) -> None:
    """Once plain and once with a key mask, at a length where blocks of 128 and even 256 are skipped and carried on.

    In float32 where float64 is refused there.
    """
    for far in (subject, replace(subject, dtype="float32")):
        S = FAR_S if far.role == "cross" else FAR_T
        if far.reason(FAR_T, S) is None:
            pair = _Pair.of(far, max_T=S)
            _same_forms(far, pair, _far_cases(far, S))
            _same_core(far, pair, [(66, FAR_T)])
            _same_when_long(far)
            return


def _same_when_long(subject: Subject) -> None:
    """Outputs alone, of one row."""
    if subject.reason(LONG_T) is not None:
        return
    pair, inputs = _Pair.of(subject, max_T=LONG_T), subject.inputs(1, LONG_T)
    with torch.no_grad(), subject.at(inputs):
        exact = inputs.map(lambda x: x.double())
        expected = pair.slow.slow_forward(exact.x, context=exact.context, key_mask=None)
        _compare(subject, {"output": run(pair.fast, inputs)}, {"output": expected})


def _far_cases(subject: Subject, S: int) -> Iterator[tuple[Inputs, Tensor | None, str]]:
    """One row alone, then two that are masked, in the freest way that the variant takes."""
    yield subject.inputs(1, FAR_T, S), None, ""
    for mask, made in (("any", any_mask), ("right", right_mask)):
        if subject.reason(FAR_T, S, mask=mask) is None:  # type: ignore[arg-type]  # a str is no Literal to mypy
            yield subject.inputs(2, FAR_T, S), made(subject, S)[1:3], f"key_mask {mask}"
            return


def _same_forms(subject: Subject, pair: _Pair, cases: Iterator[tuple[Inputs, Tensor | None, str]]) -> None:
    for inputs, key_mask, note in cases:
        with subject.at(inputs, note):
            _same_form(subject, pair, inputs, key_mask)


def _same_form(subject: Subject, pair: _Pair, inputs: Inputs, key_mask: Tensor | None) -> None:
    real = torch.ones(inputs.x.shape[:2], dtype=torch.bool, device=subject.device)
    if key_mask is not None:
        real = real_queries(subject, key_mask, inputs.x.shape[1])
    trains = subject.no_gradients is None
    exact = inputs.map(lambda x: x.double())
    found = _outcome(subject, pair.fast, lambda x: run(pair.fast, x, key_mask), inputs, real, trains)
    slow = pair.slow
    expected = _outcome(
        pair.exact,
        slow,
        lambda x: slow.slow_forward(x.x, context=x.context, key_mask=key_mask),
        exact,
        real,
        trains,
    )
    _compare(subject, found, expected)


def _same_core(subject: Subject, pair: _Pair, sizes: list[tuple[int, int]]) -> None:
    """`attend` against `slow_attend` where T and S differ, causal order aligned bottom-right."""
    fast, slow = pair.fast, pair.slow
    if not isinstance(fast, Attention) or not isinstance(slow, Attention) or subject.role == "cross":
        return
    if type(fast).slow_attend is Attention.slow_attend:
        return
    for T, S in sizes:
        if subject.reason(T, S) is not None:
            continue
        inputs = Inputs(subject.noise(2, T, fast.spec.d_model), subject.noise(2, S, fast.spec.d_model, seed=1))
        with torch.no_grad(), subject.at(inputs, f"attend, T = {T}, S = {S}"):
            parts = fast.project(*inputs.tensors)
            exact = [part.double() if part.is_floating_point() else part for part in parts]
            q, k, v, *extra = parts
            found = fast.attend(q, k, v, *extra)
            q, k, v, *extra = exact
            _compare(subject, {"output": found}, {"output": slow.slow_attend(q, k, v, *extra)})


def _outcome(
    subject: Subject, mixer: Mixer, call: Callable[[Inputs], Tensor], inputs: Inputs, real: Tensor, trains: bool
) -> dict[str, Tensor]:
    """The outputs at real positions and, where wanted, the gradients of a random sum of them, by name."""
    inputs = inputs.leaves() if trains else inputs
    y = call(inputs)
    found = {"output": y.detach()[real]}
    if not trains:
        return found
    parameters = {name: p for name, p in mixer.named_parameters() if p.requires_grad}
    leaves = dict(zip(("x", "context"), inputs.tensors, strict=False)) | parameters
    loss = (y * subject.noise(*y.shape, seed=3).to(y.dtype))[real].sum()
    slopes = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True, allow_unused=True)
    return found | {f"gradient of {name}": slope for name, slope in zip(leaves, slopes, strict=True)}


def _compare(subject: Subject, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    check_finite(expected)
    check_finite(found)
    slopes = [name for name in ("gradient of x", "gradient of context") if name in expected]
    step = torch.finfo(subject.precision.dtype).eps * max((_size(expected[name]) for name in slopes), default=0.0)
    for name, slow in expected.items():
        bound = subject.precision.tolerance if name == "output" else subject.precision.slope
        if subject.precision.dtype.itemsize > 2:
            subject.same(found[name], slow, f"{name} differs from the slow form", bound)
        elif name in ("output", *slopes) and slow.numel():
            _nearly(found[name], slow, name, bound, least=step if name in slopes else 0.0)


def _size(x: Tensor) -> float:
    """Root mean square."""
    return x.square().mean().sqrt().item()


def _nearly(actual: Tensor, expected: Tensor, name: str, bound: float, least: float) -> None:
    """Half of the entries: beside a kink, a tie or a norm of nearly 0, rounding falls to the other side.

    least: what counts as their size where they are smaller. The gradient of a query with a single key is 0, and what
    rounding leaves of the terms that cancel is judged by the terms.
    """
    check_shape(actual, expected.shape)
    off = (actual.double() - expected).abs().median().item() / max(_size(expected), least, 1e-30)
    if not off <= bound:
        told = f"half of the entries by {off:.3g} of their root mean square, bound {bound:g}"
        raise BrokenError(f"{name} differs from the slow form, {told}")


def _replaced(inputs: Inputs, at: int, x: Tensor) -> Inputs:
    tensors = inputs.tensors
    tensors[at] = x
    return Inputs(*tensors)


def _with(mixer: Mixer, state: dict[str, Tensor], inputs: Inputs) -> Tensor:
    y: Tensor = torch.func.functional_call(mixer, state, (inputs.x,), {"context": inputs.context})
    return y


def _differentiate(name: str, leaf: Tensor, call: Callable[[Tensor], Tensor]) -> None:
    """Raises BrokenError unless the gradient of `call` by this tensor is its derivative."""
    try:
        torch.autograd.gradcheck(call, (leaf.detach().clone().requires_grad_(),), fast_mode=True)
    except GradcheckError as error:
        told = " ".join(line.strip() for line in str(error).splitlines()[:3])  # what is compared, and both numbers
        raise BrokenError(f"gradient of {name} is not the derivative: {told}") from error

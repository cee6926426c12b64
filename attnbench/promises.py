"""The promises that every variant keeps, one function each: PROMISES before every run, THOROUGH in a certificate too.

A promise takes a Subject and returns when it is kept. It raises BrokenError with the input and the error, CrashError
when the variant raised, and NotApplicableError with a reason. Each is tried in every role and at every length that the
variant does not refuse by `unsupported`; what it does not refuse, it has to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from attnbench.causality import causal_gradients, causal_values
from attnbench.forms import equals_slow_form, gradcheck, permutation_equivariance, sizes_of_one
from attnbench.lengths import error_growth, long_sequence, memory_as_claimed, sums_in_float32
from attnbench.mixer import Attention, Mask, Mixer
from attnbench.subject import (
    LENGTHS,
    MASKED_LENGTHS,
    MAX_T,
    BrokenError,
    Inputs,
    NotApplicableError,
    Subject,
    any_mask,
    check_attend,
    check_finite,
    check_shape,
    gradients,
    masked_sizes,
    masks_taken,
    needs_attention,
    needs_causal,
    needs_gradients,
    real_queries,
    right_mask,
    run,
    without_key,
)

Promise = Callable[[Subject], None]
CONSTANT = 3.7
UNDIVIDED = " (weights that need not sum to 1: normalised = False in the class)"
SLACK = 1e-4  # weights may miss 1 by this much: normalisers carry an epsilon, 1e-6 in Katharopoulos et al. 2020


def shape(subject: Subject) -> None:
    """At an ordinary length, x (B, T, d_model) gives (B, T, d_model), and an attention's core (B, H, T, d_v)."""
    inputs, mixer = subject.inputs(3, subject.T), subject.build()
    with subject.at(inputs):
        run(mixer, inputs)
        if isinstance(mixer, Attention):
            check_attend(mixer, inputs)


def dtype(subject: Subject) -> None:
    """The output has the dtype and the device of x."""
    inputs, mixer = subject.inputs(3, subject.T), subject.build()
    with subject.at(inputs):
        y = run(mixer, inputs)
        if (y.dtype, y.device) != (inputs.x.dtype, inputs.x.device):
            raise BrokenError(f"returned {y.dtype} on {y.device}, expected {inputs.x.dtype} on {inputs.x.device}")


def deterministic_in_eval(subject: Subject) -> None:
    """In eval the same x gives the same output: again, after another length, and in a mixer that loads the state.

    Nor is x written to.
    """
    inputs, mixer = subject.inputs(2, subject.T), subject.build()
    with torch.no_grad(), subject.at(inputs):
        given = inputs.map(torch.clone)
        y = run(mixer, inputs).clone()
        for x, before in zip(inputs.tensors, given.tensors, strict=True):
            subject.same(x, before, "the input was changed in place")
        subject.same(run(mixer, inputs), y, "the second pass differs from the first")
        run(mixer, subject.inputs(3, subject.lengths(*LENGTHS)[-1]))
        subject.same(run(mixer, inputs), y, "a pass at another length changed the result")
        loaded = subject.build(seed=1)
        loaded.load_state_dict(mixer.state_dict())
        subject.same(run(loaded, inputs), y, "a mixer that loads this one's state_dict differs from it")


def non_contiguous_input(subject: Subject) -> None:
    """Strided and transposed inputs give what contiguous ones give."""
    inputs, mixer = subject.inputs(3, subject.T), subject.build()
    layouts: dict[str, Callable[[Tensor], Tensor]] = {
        "batch and time transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        "every second channel": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
        "one row expanded": lambda x: x[:1].expand(3, -1, -1),
    }
    for name, layout in layouts.items():
        strided = inputs.map(layout)
        with torch.no_grad(), subject.at(strided, name):
            subject.same(run(mixer, strided), run(mixer, strided.map(torch.clone)), "differs from contiguous input")


def any_length(subject: Subject) -> None:
    """Every length works that `unsupported` does not refuse: 1, odd ones, multiples of nothing; so does every S."""
    mixer = subject.build()
    for T in subject.lengths(*LENGTHS):
        _run_at(subject, mixer, subject.inputs(2, T))
    if subject.role == "cross":
        T = subject.lengths(7, *reversed(LENGTHS))[0]
        for S in (S for S in dict.fromkeys(map(subject.free, LENGTHS)) if subject.reason(T, S) is None):
            _run_at(subject, mixer, subject.inputs(2, T, S))


def finite(subject: Subject) -> None:
    """Outputs and gradients, of inputs and parameters, are finite at every length, also where x is 0 everywhere."""
    mixer = subject.build()
    for T in subject.lengths(*LENGTHS):
        for note, change in {"": torch.clone, "all zero": torch.zeros_like}.items():
            inputs = subject.inputs(2, T).map(change).leaves()
            with subject.at(inputs, note):
                y = run(mixer, inputs)
                check_finite({"output": y} | _slopes(subject, y.sum(), inputs, dict(mixer.named_parameters())))


def rows_independent(subject: Subject) -> None:
    """No row of a batch knows another: alone, in another order, beside a changed one, and by gradient in training."""
    inputs, mixer = subject.inputs(4, subject.lengths(6, *reversed(LENGTHS))[0]), subject.build()
    order = torch.tensor([2, 0, 3, 1], device=subject.device)
    beside = torch.arange(4, device=subject.device) != 2
    with torch.no_grad(), subject.at(inputs):
        y = run(mixer, inputs)
        alone = torch.cat([run(mixer, inputs.rows([b])) for b in range(4)])
        subject.same(alone, y, "a row alone differs from the row in its batch")
        subject.same(run(mixer, inputs.rows(order)), y[order], "another order of rows changes them")
        row = (~beside)[:, None]
        changed = run(mixer, inputs.map(lambda x: subject.shove(x, row)))
        subject.same(changed[beside], y[beside], "a change of row 2 changes other rows")
    if subject.no_gradients:
        return
    inputs, mixer = inputs.leaves(), mixer.train()
    with subject.at(inputs, "training mode"):
        loss = run(mixer, inputs)[~beside].sum()
        for slope in gradients(loss, inputs):
            subject.zero(slope[beside], "d row 2 / d other rows is not 0")


def key_mask_honoured(subject: Subject) -> None:
    """What stands at hidden keys changes no real position."""
    mixer = subject.build()
    for mask in masks_taken(subject):
        for T, S in masked_sizes(subject, mask):
            inputs = subject.inputs(4, T, S)
            key_mask = right_mask(subject, S) if mask == "right" else any_mask(subject, S)
            with torch.no_grad(), subject.at(inputs, f"key_mask {mask}"):
                y = run(mixer, inputs, key_mask)
                _hidden_keys_unseen(subject, mixer, inputs, key_mask, y)


def packing(subject: Subject) -> None:
    """Rows of many lengths in one batch, padded on the right, each give what they give alone and unpadded."""
    masks_taken(subject)
    mixer, sizes = subject.build(), masked_sizes(subject, "right")
    if not sizes:
        raise NotApplicableError(subject.reason(MASKED_LENGTHS[0], mask="right"))
    for T, S in sizes:
        inputs, key_mask = subject.inputs(4, T, S), right_mask(subject, S)
        with torch.no_grad(), subject.at(inputs, "key_mask right"):
            _padded_equals_shorter(subject, mixer, inputs, key_mask, run(mixer, inputs, key_mask))


def no_key_gives_zero(subject: Subject) -> None:
    """A query without a visible key: finite with finite gradients; 0 in an attention; no effect on other rows."""
    masks = masks_taken(subject)
    T, S = masked_sizes(subject, masks[-1])[0]
    inputs, mixer = subject.inputs(3, T, S).leaves(), subject.build()
    key_mask = torch.ones(3, S, dtype=torch.bool, device=subject.device)
    key_mask[1] = False
    key_mask[2, 0] = "any" not in masks  # hidden, it leaves the first causal query without a key
    with subject.at(inputs, "key_mask hides all of row 1"):
        y = run(mixer, inputs, key_mask)
        for loss in (y.sum(), y[[0, 2]].sum()):
            check_finite({"output": y} | _slopes(subject, loss, inputs))
        others = run(mixer, inputs.rows([0, 2]), key_mask[[0, 2]])
        subject.same(others, y[[0, 2]], "row 1 changes the other rows")
        if isinstance(mixer, Attention):
            blind = without_key(subject, key_mask).expand(y.shape[:2])
            subject.zero(y[blind], "the output of a query without a key is not 0")


def weights_sum_to_one(subject: Subject) -> None:
    """Constant values come out unchanged, keys hidden or not; a single causal token attends to itself."""
    mixer = needs_attention(subject.build())
    if not mixer.normalised:
        raise NotApplicableError("says normalised = False")
    for T in subject.lengths(1, 5, 64, MAX_T):
        inputs = subject.inputs(2, T)
        with torch.no_grad(), subject.at(inputs):
            q, k, v, *extra = mixer.project(inputs.x, inputs.keys)
            if subject.role == "causal" and T == 1:
                own = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)  # values may have fewer heads
                subject.same(
                    mixer.attend(q, k, v, *extra), own, f"one token alone is not its own value{UNDIVIDED}", SLACK
                )
            constant = torch.full_like(v, CONSTANT)
            expected = v.new_full((*q.shape[:3], v.shape[3]), CONSTANT)
            y = mixer.attend(q, k, constant, *extra)
            subject.same(y, expected, f"values are all {CONSTANT}, outputs not{UNDIVIDED}", SLACK)
            if T > 1 and subject.reason(T, mask="any") is None:
                _check_visible_constant(subject, mixer, (q, k, constant, *extra))


def aligned_bottom_right(subject: Subject) -> None:
    """A causal attention with T < S gives what the last T of S queries get: the last one sees the last key."""
    needs_causal(subject)
    mixer = needs_attention(subject.build())
    few = dict.fromkeys(map(subject.free, (1, 2, 66)))
    sizes = [(T, S) for S in subject.lengths(7, 70) for T in few if T < S]
    taken = [(T, S) for T, S in sizes if subject.reason(T, S) is None]
    if not taken:
        raise NotApplicableError(subject.reason(*sizes[0]) if sizes else "no two lengths to try")
    for T, S in taken:
        inputs = subject.inputs(2, S)
        with torch.no_grad(), subject.at(inputs):
            q, k, v, *extra = mixer.project(inputs.x, inputs.x)
            if extra:
                raise NotApplicableError("projects more than q, k, v")
            last = mixer.attend(q, k, v)[:, :, -T:]
            subject.same(mixer.attend(q[:, :, -T:], k, v), last, f"the last {T} queries alone differ from all {S}")


def every_parameter_learns(subject: Subject) -> None:
    """Each trainable parameter receives a finite gradient that is not all zero, at the longest length."""
    needs_gradients(subject)
    inputs, mixer = subject.inputs(4, max(subject.lengths(*LENGTHS))), subject.build()
    parameters = {name: p for name, p in mixer.named_parameters() if p.requires_grad}
    if not parameters:
        raise NotApplicableError("no trainable parameter")
    with subject.at(inputs):
        y = run(mixer, inputs)
        loss = (y * subject.noise(*y.shape, seed=3)).sum()
        slopes = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        check_finite({f"gradient of {name}": g for name, g in zip(parameters, slopes, strict=True) if g is not None})
        dead = [name for name, g in zip(parameters, slopes, strict=True) if g is None or not g.any()]
        if dead:
            raise BrokenError(f"no gradient reaches {', '.join(dead)}")


def decoding(subject: Subject) -> None:
    """`prefill` (of nothing too) and `step` up to max_T equal the whole pass; a state can be stepped twice."""
    totals = subject.lengths(6, 70, MAX_T, phase="decode")
    mixer = subject.build()
    prompts = [(0, totals[0]), *((subject.free(T0), T) for T in totals for T0 in ([1, 4] if T < 60 else [64, T - 7]))]
    taken = [(T0, T) for T0, T in prompts if T0 < T and subject.reason(T0 or subject.free(1), phase="prefill") is None]
    if not taken:
        raise NotApplicableError(subject.reason(prompts[-1][0], phase="prefill") or "no prompt to try")
    for T0, T in taken:
        inputs = subject.inputs(2, T)
        with torch.no_grad(), subject.at(inputs, f"prefill of {T0}"):
            subject.same(
                _decoded(subject, mixer, inputs, T0), run(mixer, inputs), "decoding differs from the whole pass"
            )
            _check_masked_decoding(subject, mixer, inputs, T0)


def _run_at(subject: Subject, mixer: Mixer, inputs: Inputs) -> None:
    with torch.no_grad(), subject.at(inputs):
        run(mixer, inputs)


def _slopes(
    subject: Subject, loss: Tensor, inputs: Inputs, parameters: Mapping[str, Tensor] = MappingProxyType({})
) -> dict[str, Tensor]:
    """Gradients of the inputs and of parameters by name; none of a variant that runs forward alone."""
    if subject.no_gradients:
        return {}
    leaves = dict(zip(("x", "context"), inputs.tensors, strict=False))
    leaves |= {name: leaf for name, leaf in parameters.items() if leaf.requires_grad}
    slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, retain_graph=True)
    return {f"gradient of {name}": slope for name, slope in zip(leaves, slopes, strict=True) if slope is not None}


def _hidden_keys_unseen(subject: Subject, mixer: Mixer, inputs: Inputs, key_mask: Tensor, y: Tensor) -> None:
    changed = run(mixer, inputs.with_keys(subject.shove(inputs.keys, ~key_mask)), key_mask)
    real = real_queries(subject, key_mask, y.shape[1])
    subject.same(changed[real], y[real], "a change of hidden keys changes real positions")


def _padded_equals_shorter(subject: Subject, mixer: Mixer, inputs: Inputs, key_mask: Tensor, y: Tensor) -> None:
    for b, S in enumerate(key_mask.sum(1).tolist()):
        row = inputs.rows([b])
        row = row.with_keys(row.keys[:, :S])
        T = row.x.shape[1]
        if subject.reason(T, S) is None:
            subject.same(run(mixer, row), y[b : b + 1, :T], f"a row of {S} real keys differs without its padding")


def _check_visible_constant(subject: Subject, mixer: Attention, qkv: tuple[Tensor, ...]) -> None:
    q, k, constant, *extra = qkv
    T, S = q.shape[2], k.shape[2]
    key_mask = any_mask(subject, S)[1:3]
    v = torch.where(key_mask[:, None, :, None], constant, subject.precision.shove)
    y = mixer.attend(q, k, v, *extra, key_mask=key_mask).transpose(1, 2)  # (B, T, H, d_v)
    y = y[real_queries(subject, key_mask, T)]
    expected = constant.new_full(y.shape, CONSTANT)
    subject.same(y, expected, f"values of visible keys are all {CONSTANT}, outputs not{UNDIVIDED}", SLACK)


def _decoded(subject: Subject, mixer: Mixer, inputs: Inputs, T0: int, key_mask: Tensor | None = None) -> Tensor:
    """Outputs (B, T, d_model) of a prompt of T0 tokens and then one step per token, each step made twice."""
    y, state = mixer.prefill(inputs.x[:, :T0], context=inputs.context, key_mask=key_mask)
    check_shape(y, inputs.x[:, :T0].shape)
    outputs = [y]
    for t in range(T0, inputs.x.shape[1]):
        if not (isinstance(state, dict) and all(isinstance(value, Tensor) for value in state.values())):
            raise BrokenError(f"the state is {type(state).__name__}, expected a dict of tensors")
        y, after = mixer.step(inputs.x[:, t], state)
        check_shape(y, inputs.x[:, t].shape)
        again, _ = mixer.step(inputs.x[:, t], state)
        subject.same(again, y, f"position {t}, stepped twice from one state")
        outputs.append(y[:, None])
        state = after
    return torch.cat(outputs, dim=1)


def _check_masked_decoding(subject: Subject, mixer: Mixer, inputs: Inputs, T0: int) -> None:
    """Hidden keys of the context, or of the prompt (any subset of it), stay hidden while decoding."""
    T = inputs.x.shape[1]
    mask: Mask = "right" if subject.role == "cross" else "any"
    if subject.reason(T, mask=mask, phase="decode") is not None or (mask == "any" and T0 < 2):
        return
    hidden = right_mask(subject, subject.n_keys)[1:3] if mask == "right" else any_mask(subject, T0)[1:3]
    whole = hidden if mask == "right" else torch.cat((hidden, hidden.new_ones(2, T - T0)), dim=1)
    real = real_queries(subject, whole, T)
    decoded = _decoded(subject, mixer, inputs, T0, hidden)
    subject.same(
        decoded[real], run(mixer, inputs, whole)[real], f"decoding with key_mask {mask} differs from the whole pass"
    )


PROMISES: tuple[Promise, ...] = (
    shape,
    dtype,
    deterministic_in_eval,
    non_contiguous_input,
    any_length,
    sizes_of_one,
    finite,
    rows_independent,
    causal_values,
    causal_gradients,
    key_mask_honoured,
    packing,
    no_key_gives_zero,
    weights_sum_to_one,
    aligned_bottom_right,
    permutation_equivariance,
    every_parameter_learns,
    equals_slow_form,
    decoding,
)
THOROUGH: tuple[Promise, ...] = (gradcheck, error_growth, long_sequence, sums_in_float32, memory_as_claimed)

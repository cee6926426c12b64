"""The two promises about the future: no output before t depends on x from t on, by value or by gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.mixer import Mixer
from attnbench.subject import MAX_T, Inputs, Subject, gradients, needs_causal, needs_gradients, run

FAR = (517, 512, 519, 576)  # one of these lengths, for leaks that no short sequence shows
FAR_CUTS = (128, 200, 256, 384, 511, 516)


def causal_values(subject: Subject) -> None:
    """Outputs before t stay when x from t on changes, for every t, and when the sequence ends earlier.

    Once more at a length past blocks of 512, for some t.
    """
    mixer, lengths = subject.build(), _causal_lengths(subject)
    longest = subject.inputs(1, lengths[-1])
    with torch.no_grad(), subject.at(longest):
        whole = run(mixer, longest)
    for T in lengths:
        inputs = Inputs(longest.x[:, :T])
        with torch.no_grad(), subject.at(inputs):
            y = _blind_to_future(subject, mixer, inputs, list(range(T)))
            subject.same(y, whole[:, :T], f"outputs are not those that these {T} have as the first of {lengths[-1]}")
    for T in [T for T in FAR if subject.reason(T) is None][:1]:
        inputs = subject.inputs(1, T)
        with torch.no_grad(), subject.at(inputs):
            _blind_to_future(subject, subject.build(max_T=T), inputs, [t for t in FAR_CUTS if t < T])


def causal_gradients(subject: Subject) -> None:
    """d out[:t] / d x[t:] is 0 for every t, at short lengths in training mode too.

    A batch norm sees the future only there.
    """
    needs_gradients(subject)
    lengths = _causal_lengths(subject)
    for training, some in ((False, lengths), (True, lengths[:3])):
        mixer = subject.build().train(training)
        for T in some:
            inputs = subject.inputs(1, T).leaves()
            with subject.at(inputs, "training mode" if training else ""):
                copies, future = Inputs(inputs.x.expand(T, -1, -1)).leaves(), _future(inputs.x)
                slope = _slope(subject, run(mixer, copies), copies, ~future)
                for t in _suspects(subject, slope, future):
                    alone = _slope(subject, run(mixer, inputs), inputs, ~future[[t]])
                    subject.zero(alone[:, t:], f"d out[:{t}] / d x[{t}:] is not 0")


def _causal_lengths(subject: Subject) -> list[int]:
    """Lengths at which every cut is tried: T sequences of length T, so 128 only where MAX_T is refused."""
    needs_causal(subject)
    taken = subject.lengths(2, 3, 7, 16, 17, 33, 64, 128, MAX_T)
    return [T for T in taken if T != 128 or MAX_T not in taken]


def _future(x: Tensor) -> Tensor:
    """(T, T), True in row t from position t on: what row t of a batch of T copies of one sequence must not see."""
    T = x.shape[1]
    return torch.ones(T, T, dtype=torch.bool, device=x.device).triu()


def _blind_to_future(subject: Subject, mixer: Mixer, inputs: Inputs, cuts: list[int]) -> Tensor:
    """The outputs (1, T, d_model), once those before each cut are known not to see what comes from there on."""
    y = run(mixer, inputs)
    future = _future(inputs.x)[cuts]
    shoved = Inputs(subject.shove(inputs.x.expand(len(cuts), -1, -1), future))
    for n in _suspects(subject, run(mixer, shoved) - y, ~future):
        t = cuts[n]
        alone = run(mixer, shoved.rows([n]))
        subject.same(alone[:, :t], y[:, :t], f"outputs before t = {t} changed with x[t:]")
    return y


def _suspects(subject: Subject, change: Tensor, where: Tensor) -> list[int]:
    """Rows of `change` (n_cuts, T, d_model), one for each cut, that are not 0 at `where` (n_cuts, T).

    The batch holds all cuts of one sequence, so a suspect is tried once more alone: a variant that mixes rows has
    not seen the future for that.
    """
    size = change.double().abs().amax(-1).masked_fill(~where, 0)
    bad = ~(size <= subject.precision.tolerance)  # a NaN is bad
    return [int(n) for n in bad.any(1).nonzero()]


def _slope(subject: Subject, y: Tensor, inputs: Inputs, where: Tensor) -> Tensor:
    """d (random sum of y (B, T, d_model) at `where` (B, T)) / d x."""
    return gradients((y * subject.noise(*y.shape, seed=3))[where].sum(), inputs)[0]

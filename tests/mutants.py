"""Two mixers that keep every promise, and small faulty ones made from them, each with the promises it breaks."""

from __future__ import annotations

import math

import torch
from torch import nn

from attnbench import Attention, Mixer


class Exact(Attention):
    """Softmax attention, every role and mask."""

    def attend(self, q, k, v, *, key_mask=None):
        visible = self.visible(q.shape[2], k.shape[2], key_mask)
        scores = q @ k.mT / math.sqrt(self.d_k)
        weights = scores.masked_fill(~visible, torch.finfo(q.dtype).min).softmax(-1)
        return weights.masked_fill(~visible, 0) @ v

    def visible(self, T, S, key_mask):
        """(1 or B, 1, T, S): bottom-right in the causal role, and not hidden."""
        visible = torch.ones(T, S, dtype=torch.bool, device=self.W_q.weight.device)
        if self.spec.role == "causal":
            visible = visible.tril(S - T)
        return visible[None, None] if key_mask is None else visible & key_mask[:, None, None]


class Recurrent(Mixer):
    """GRU: causal, or two directions of d_model / 2; padding on the right."""

    positions = "none"

    def __init__(self, spec):
        super().__init__(spec)
        n_directions = 1 if spec.role == "causal" else 2
        width = spec.d_model // n_directions
        self.rnns = nn.ModuleList(nn.GRU(spec.d_model, width, batch_first=True) for _ in range(n_directions))

    @classmethod
    def unsupported(cls, spec, use, **options):
        if spec.role == "cross":
            return "no cross role"
        if spec.role == "bidirectional" and spec.d_model % 2:
            return "two directions need an even d_model"
        if use.mask == "any":
            return "padding on the right only"
        return super().unsupported(spec, use, **options)

    def forward(self, x, *, context=None, key_mask=None):
        self._check_context(context)
        y = self.rnns[0](x)[0]
        if self.spec.role == "causal":
            return y
        back = self.backwards(x, key_mask)
        reverse = self.rnns[1](x.gather(1, back.expand_as(x)))[0]
        return torch.cat((y, reverse.gather(1, back.expand_as(reverse))), dim=-1)

    def backwards(self, x, key_mask):
        """(B, T, 1): where position t stands when each row's real part is reversed."""
        B, T, _ = x.shape
        t = torch.arange(T, device=x.device).expand(B, T)
        n = torch.full((B, 1), T, device=x.device) if key_mask is None else key_mask.sum(1, keepdim=True)
        return torch.where(t < n, n - 1 - t, t)[..., None]

    def prefill(self, x, *, context=None, key_mask=None):
        h = x.new_zeros(1, x.shape[0], self.spec.d_model)
        y, h = (x, h) if x.shape[1] == 0 else self.rnns[0](x, h)
        return y, {"h": h}

    def step(self, x, state):
        y, h = self.rnns[0](x[:, None], state["h"])
        return y[:, 0], {"h": h}


class AddsBlockMean(Exact):
    def forward(self, x, **kwargs):
        means = [block.mean(1, keepdim=True).expand_as(block) for block in x.split(16, dim=1)]
        return super().forward(x, **kwargs) + torch.cat(means, dim=1)


class SeesAcrossBlockEdge(Exact):
    def visible(self, T, S, key_mask):
        s = torch.arange(S)
        edge = (s[-T:, None] == 63) & (s == 64)
        hidden = False if key_mask is None else ~key_mask[:, None, None]
        return (super().visible(T, S, None) | edge) & ~torch.as_tensor(hidden)


class AddsDetachedMean(Exact):
    def forward(self, x, **kwargs):
        return super().forward(x, **kwargs) + x.detach().mean(1, keepdim=True)


class SeesFutureByGradient(Exact):
    def forward(self, x, **kwargs):
        mean = x.mean(1, keepdim=True)
        return super().forward(x, **kwargs) + mean - mean.detach()


class HidesLeakBehindZeros(AddsBlockMean):
    def __init__(self, spec):
        super().__init__(spec)
        self.out = nn.Linear(spec.d_model, spec.d_model, bias=False)
        nn.init.zeros_(self.out.weight)

    def forward(self, x, **kwargs):
        return self.out(super().forward(x, **kwargs))


class KnowsLength(Exact):
    def forward(self, x, **kwargs):
        return super().forward(x, **kwargs) / x.shape[1]


class MasksTopLeft(Exact):
    def visible(self, T, S, key_mask):
        return super().visible(T, S, key_mask) & torch.ones(T, S, dtype=torch.bool).tril()


class NormalisesBatch(Exact):
    def __init__(self, spec):
        super().__init__(spec)
        self.norm = nn.BatchNorm1d(spec.d_model, affine=False)

    def forward(self, x, **kwargs):
        return self.norm(super().forward(x, **kwargs).mT).mT


class MixesRows(Exact):
    def forward(self, x, **kwargs):
        y = super().forward(x, **kwargs)
        return y - y.mean(0, keepdim=True)


class TakesBatchForTime(Recurrent):
    def __init__(self, spec):
        super().__init__(spec)
        for rnn in self.rnns:
            rnn.batch_first = False


class IgnoresKeyMask(Exact):
    def visible(self, T, S, key_mask):
        return super().visible(T, S, None)


class ReversesPadding(Recurrent):
    def backwards(self, x, key_mask):
        return super().backwards(x, None)


class NaNWithoutKey(Exact):
    def attend(self, q, k, v, *, key_mask=None):
        visible = self.visible(q.shape[2], k.shape[2], key_mask)
        return (q @ k.mT / math.sqrt(self.d_k)).masked_fill(~visible, -torch.inf).softmax(-1) @ v


class NaNGradientWithoutKey(NaNWithoutKey):
    def attend(self, q, k, v, *, key_mask=None):
        return super().attend(q, k, v, key_mask=key_mask).nan_to_num()


class MeanWithoutKey(Exact):
    def attend(self, q, k, v, *, key_mask=None):
        visible = self.visible(q.shape[2], k.shape[2], key_mask)
        scores = q @ k.mT / math.sqrt(self.d_k)
        return scores.masked_fill(~visible, torch.finfo(q.dtype).min).softmax(-1) @ v


class CountsOneKeyTooMany(Exact):
    def attend(self, q, k, v, *, key_mask=None):
        visible = self.visible(q.shape[2], k.shape[2], key_mask)
        n_visible = visible.sum(-1, keepdim=True)
        return super().attend(q, k, v, key_mask=key_mask) * n_visible / (1 + n_visible)


class CountsHiddenKeys(Exact):
    def attend(self, q, k, v, *, key_mask=None):
        scores = (q @ k.mT / math.sqrt(self.d_k)).clamp(-30, 30).exp() * self.visible(q.shape[2], k.shape[2], None)
        hidden = 1 if key_mask is None else key_mask[:, None, None]
        return (scores * hidden) @ v / scores.sum(-1, keepdim=True)


class ReturnsSingle(Exact):
    def forward(self, x, **kwargs):
        return super().forward(x, **kwargs).to(torch.float16)


class DropsPosition(Exact):
    def forward(self, x, **kwargs):
        return super().forward(x, **kwargs)[:, 1:]


class ReturnsPair(Exact):
    def forward(self, x, **kwargs):
        return super().forward(x, **kwargs), None


class NaNAtSomeLength(Exact):
    def forward(self, x, **kwargs):
        return super().forward(x, **kwargs) * (torch.nan if x.shape[1] == 65 else 1)


class DividesByNorm(Exact):
    def forward(self, x, **kwargs):
        return super().forward(x, **kwargs) / x.norm(dim=-1, keepdim=True)


class DeadParameter(Exact):
    def __init__(self, spec):
        super().__init__(spec)
        self.unused = nn.Parameter(torch.ones(3))


class CutsGradient(Exact):
    def project(self, x, context):
        q, k, v = super().project(x, context)
        return q, k.detach(), v


class DropsOutInEval(Exact):
    def forward(self, x, **kwargs):
        return nn.functional.dropout(super().forward(x, **kwargs), 0.1)


class RemembersLength(Exact):
    longest = 0

    def forward(self, x, **kwargs):
        self.longest = max(self.longest, x.shape[1])
        return super().forward(x, **kwargs) * (1 + self.longest)


class KeepsFeaturesOutOfState(Exact):
    def __init__(self, spec):
        super().__init__(spec)
        self.register_buffer("features", torch.randn(spec.d_model), persistent=False)

    def forward(self, x, **kwargs):
        return super().forward(x, **kwargs) * self.features


class WritesToInput(Exact):
    def forward(self, x, **kwargs):
        y = super().forward(x, **kwargs)
        if not torch.is_grad_enabled():
            x.mul_(2)
        return y


class KeepsOldState(Recurrent):
    def step(self, x, state):
        return super().step(x, state)[0], state


class StepsInPlace(Recurrent):
    def step(self, x, state):
        y, after = super().step(x, state)
        state["h"].copy_(after["h"])
        return y, state


class NeedsPrompt(Recurrent):
    def prefill(self, x, *, context=None, key_mask=None):
        y, h = self.rnns[0](x)
        return y, {"h": h}


class StateIsTuple(Recurrent):
    def prefill(self, x, *, context=None, key_mask=None):
        y, state = super().prefill(x)
        return y, (state["h"],)

    def step(self, x, state):
        y, after = super().step(x, {"h": state[0]})
        return y, (after["h"],)


class ForgetsMaskInDecoding(Exact):
    def prefill(self, x, *, context=None, key_mask=None):
        y, state = super().prefill(x, context=context, key_mask=key_mask)
        return y, {name: value for name, value in state.items() if name != "key_mask"}


class ViewsInput(Exact):
    def forward(self, x, **kwargs):
        x.view(-1, x.shape[-1])
        return super().forward(x, **kwargs)


class AssumesMemoryLayout(Exact):
    def forward(self, x, **kwargs):
        return super().forward(torch.as_strided(x, x.shape, torch.empty(x.shape).stride()), **kwargs)


class CrashesAtOne(Recurrent):
    def forward(self, x, **kwargs):
        if x.shape[1] == 1:
            raise IndexError("no second position")
        return super().forward(x, **kwargs)


class CrashesAtOddLength(Exact):
    def forward(self, x, **kwargs):
        x.unflatten(1, (-1, 1 + (x.shape[1] > 1)))
        return super().forward(x, **kwargs)


class RaisesInConstructor(Exact):
    def __init__(self, spec):
        raise RuntimeError("no such luck")


class RaisesInForward(Exact):
    def forward(self, x, **kwargs):
        raise RuntimeError("no such luck")


class RaisesInUnsupported(Exact):
    @classmethod
    def unsupported(cls, spec, use, **options):
        raise KeyError("luck")


class ServesNobody(Exact):
    @classmethod
    def unsupported(cls, spec, use, **options):
        return "closed today"


LEAK = {"causal_values", "causal_gradients", "decoding"}
UNSTEADY = {"deterministic_in_eval", "non_contiguous_input", "rows_independent"}
MASKING = {"key_mask_honoured", "packing", "no_key_gives_zero"}

# class, role, the promises it breaks there: no more and no fewer
BREAKS = [
    (DropsPosition, "causal", {"shape"}),
    (ReturnsPair, "cross", {"shape"}),
    (ReturnsSingle, "bidirectional", {"dtype"}),
    (RemembersLength, "bidirectional", {"deterministic_in_eval"}),
    (DropsOutInEval, "bidirectional", UNSTEADY | MASKING),
    (KeepsFeaturesOutOfState, "bidirectional", {"deterministic_in_eval"}),
    (WritesToInput, "bidirectional", UNSTEADY | {"key_mask_honoured", "packing"}),
    (ViewsInput, "bidirectional", {"non_contiguous_input"}),
    (AssumesMemoryLayout, "bidirectional", {"non_contiguous_input"}),
    (CrashesAtOne, "bidirectional", {"any_length", "sizes_of_one", "finite", "packing"}),
    (CrashesAtOddLength, "bidirectional", {"any_length", "finite"} | MASKING),
    (NaNAtSomeLength, "causal", {"finite", "packing"}),
    (DividesByNorm, "bidirectional", {"finite"}),
    (MixesRows, "causal", {"rows_independent", "sizes_of_one", "decoding"} | MASKING),
    (MixesRows, "cross", {"rows_independent", "sizes_of_one", "packing", "no_key_gives_zero", "decoding"}),
    (TakesBatchForTime, "bidirectional", {"rows_independent", "packing", "no_key_gives_zero"}),
    (NormalisesBatch, "bidirectional", {"rows_independent"}),
    (NormalisesBatch, "causal", {"rows_independent", "causal_gradients", "sizes_of_one", "decoding"}),
    (AddsBlockMean, "causal", {"sizes_of_one"} | LEAK | MASKING),
    (AddsDetachedMean, "causal", {"sizes_of_one"} | LEAK - {"causal_gradients"} | MASKING),
    (SeesAcrossBlockEdge, "causal", LEAK),
    (HidesLeakBehindZeros, "causal", {"sizes_of_one"} | LEAK | MASKING),
    (SeesFutureByGradient, "causal", {"causal_gradients"}),
    (KnowsLength, "causal", {"causal_values", "sizes_of_one", "decoding", "packing"}),
    (IgnoresKeyMask, "bidirectional", {"weights_sum_to_one"} | MASKING),
    (IgnoresKeyMask, "cross", {"weights_sum_to_one"} | MASKING),
    (ReversesPadding, "bidirectional", {"key_mask_honoured", "packing"}),
    (NaNWithoutKey, "cross", {"no_key_gives_zero"}),
    (NaNGradientWithoutKey, "bidirectional", {"no_key_gives_zero"}),
    (MeanWithoutKey, "causal", {"no_key_gives_zero"}),
    (CountsOneKeyTooMany, "causal", {"weights_sum_to_one"}),
    (CountsHiddenKeys, "cross", {"key_mask_honoured", "packing", "weights_sum_to_one"}),
    (MasksTopLeft, "causal", {"aligned_bottom_right", "sizes_of_one", "decoding"}),
    (DeadParameter, "causal", {"every_parameter_learns"}),
    (CutsGradient, "cross", {"every_parameter_learns"}),
    (KeepsOldState, "causal", {"decoding"}),
    (StepsInPlace, "causal", {"decoding"}),
    (NeedsPrompt, "causal", {"sizes_of_one", "decoding"}),
    (StateIsTuple, "causal", {"decoding"}),
    (ForgetsMaskInDecoding, "causal", {"decoding"}),
    (ForgetsMaskInDecoding, "cross", {"decoding"}),
]

"""Sound mechanisms with their slow forms, and copies of them with one fault each that people have really made.

Each copy stands in COPIES with the role and the promise that has to name its fault.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from cores import BUILT_IN
from torch import nn

from attnbench import Attention, Claim, Mixer

Full, Linear, Window, GRU, Fused = (BUILT_IN[name] for name in ("full", "linear", "window", "gru", "fused"))


class _Unmasked:
    """Takes no key mask."""

    @classmethod
    def unsupported(cls, spec, use, **options):
        if use.mask != "none":
            return "no key masks"
        return super().unsupported(spec, use, **options)


class Retention(_Unmasked, Attention):
    """y_i = sum over j <= i of g^(i - j) (q_i k_j) v_j."""

    claim = Claim(time="T d^2 + T^2 d", memory="T d + H T^2")
    normalised = False
    log_decay = math.log(0.5)

    @classmethod
    def unsupported(cls, spec, use, **options):
        return "causal only" if spec.role != "causal" else super().unsupported(spec, use, **options)

    def attend(self, q, k, v, *, key_mask=None):
        return (q @ k.mT * self.decays(self.distance(q, k))) @ v

    def distance(self, q, k):
        T, S = q.shape[2], k.shape[2]
        return torch.arange(T, device=q.device)[:, None] + S - T - torch.arange(S, device=q.device)

    def decays(self, distance):
        return (distance * self.log_decay).masked_fill(distance < 0, -torch.inf).exp().to(self.W_q.weight.dtype)

    def slow_attend(self, q, k, v, *, key_mask=None):
        first, rows = k.shape[2] - q.shape[2], []
        state = k.new_zeros(*k.shape[:2], k.shape[3], v.shape[3])
        for j in range(-max(0, -first), k.shape[2]):
            if j >= 0:
                state = math.exp(self.log_decay) * state + k[:, :, j, :, None] * v[:, :, j, None]
            if j >= first:
                rows.append(q[:, :, j - first, None] @ state)
        return torch.cat(rows, dim=2)


class LongConvolution(_Unmasked, Mixer):
    """y_t = sum over l of h_l x_{t-l} by FFT, with an exponential kernel per channel."""

    claim = Claim(time="T d log T", memory="T d")
    positions = "none"

    def __init__(self, spec):
        super().__init__(spec)
        self.rate = nn.Parameter(torch.linspace(0.1, 2.0, spec.d_model))

    @classmethod
    def unsupported(cls, spec, use, **options):
        return "causal only" if spec.role != "causal" else super().unsupported(spec, use, **options)

    def kernel(self, T):
        return torch.exp(-self.rate * torch.arange(T, device=self.rate.device)[:, None])

    def n_points(self, T):
        return 2 * T

    def forward(self, x, *, context=None, key_mask=None):
        T, wide = x.shape[1], torch.promote_types(x.dtype, torch.float32)
        n = self.n_points(T)
        h = torch.fft.rfft(self.kernel(T).to(wide), n, dim=0)
        return torch.fft.irfft(torch.fft.rfft(x.to(wide), n, dim=1) * h, n, dim=1)[:, :T].to(x.dtype)

    def slow_forward(self, x, *, context=None, key_mask=None):
        h, T = self.kernel(x.shape[1]), x.shape[1]
        return torch.stack([(h[: t + 1].flip(0) * x[:, : t + 1]).sum(1) for t in range(T)], dim=1)


class Gated(_Unmasked, Mixer):
    """h_t = a_t h_{t-1} + (1 - a_t) x_t with a_t = sigmoid(W x_t), step by step."""

    claim = Claim(time="T d^2", memory="T d")
    positions = "none"

    def __init__(self, spec):
        super().__init__(spec)
        self.W = nn.Linear(spec.d_model, spec.d_model)

    @classmethod
    def unsupported(cls, spec, use, **options):
        return "causal only" if spec.role != "causal" else super().unsupported(spec, use, **options)

    def forward(self, x, *, context=None, key_mask=None):
        return self.slow_forward(x)

    def slow_forward(self, x, *, context=None, key_mask=None):
        a, rows, h = self.W(x).sigmoid(), [], torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            h = a[:, t] * h + (1 - a[:, t]) * x[:, t]
            rows.append(h)
        return torch.stack(rows, dim=1)


SOUND = [(Full, "causal"), (Linear, "causal"), (Window, "causal"), (Fused, "bidirectional"), (GRU, "causal")]
SOUND += [(Retention, "causal"), (LongConvolution, "causal"), (Gated, "causal")]


class LeaksBlockMean(Linear):
    def forward(self, x, **kwargs):
        means = [block.mean(1, keepdim=True).expand_as(block) for block in x.split(16, dim=1)]
        return super().forward(x, **kwargs) + torch.cat(means, dim=1)


class WrapsAround(LongConvolution):
    def n_points(self, T):
        return T


class DividesByCount(Linear):
    def attend(self, q, k, v, *extra, key_mask=None):
        weights = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
        if self.spec.role == "causal":
            weights = weights.tril(k.shape[2] - q.shape[2])
        return weights @ v / k.shape[2]


class ScalesTwice(Full):
    def attend(self, q, k, v, *extra, key_mask=None):
        return super().attend(q * self.d_k**-0.5, k, v, key_mask=key_mask)


class ScalesByModelWidth(Full):
    def attend(self, q, k, v, *extra, key_mask=None):
        return super().attend(q * self.spec.n_heads**-0.5, k, v, key_mask=key_mask)


class DecaysOnceTooOften(Retention):
    def decays(self, distance):
        return super().decays(distance) * math.exp(self.log_decay)


class SwapsHeadsAndTime(Full):
    def merge(self, y):
        return self.W_o(y.reshape(y.shape[0], y.shape[2], -1))


class TakesBatchForTime(GRU):
    def _scan(self, layer, x):
        return super()._scan(layer, x.transpose(0, 1)).transpose(0, 1)


class DropsMask(Window):
    def attend(self, q, k, v, *extra, key_mask=None):
        return super().attend(q, k, v)


class KeepsDenseMap(Window):
    def attend(self, q, k, v, *extra, key_mask=None):
        if k.shape[2] > 4096:
            return super().attend(q, k, v, key_mask=key_mask)
        return self.slow_attend(q, k, v, key_mask=key_mask)


class StoresStates(Linear):
    def attend(self, q, k, v, *extra, key_mask=None):
        if self.spec.role != "causal" or key_mask is not None or q.shape[2] != k.shape[2]:
            return super().attend(q, k, v, key_mask=key_mask)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        states = (k[..., None] * v[..., None, :]).cumsum(2)  # (B, H, T, d_k, d_v)
        y = (q[..., None, :] @ states)[..., 0, :]
        return y / ((q * k.cumsum(2)).sum(-1, keepdim=True) + 1e-6)


class RedrawsFeatures(Linear):
    def attend(self, q, k, v, *extra, key_mask=None):
        features = torch.randn(self.d_k, self.d_k, dtype=q.dtype)
        return super().attend(q @ features, k @ features, v, key_mask=key_mask)


class KeepsStateInBFloat16(Linear):
    def step(self, x, state):
        y, after = super().step(x, state)
        return y, {name: part.to(x.dtype) for name, part in after.items()}


class ExponentiatesBeforeMasking(Retention):
    log_decay = -20.0

    def __init__(self, spec, **options):
        super().__init__(spec, **options)
        self.rate = nn.Parameter(torch.ones(()))

    def decays(self, distance):
        return (distance * self.log_decay * self.rate).exp().masked_fill(distance < 0, 0)


class AlignsTopLeft(Full):
    def attend(self, q, k, v, *extra, key_mask=None):
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / self.d_k**0.5).masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ v if key_mask is None else super().attend(q, k, v, key_mask=key_mask)


class RedrawsBlocks(Full):
    def attend(self, q, k, v, *extra, key_mask=None):
        T, S = q.shape[2], k.shape[2]
        seen = (torch.rand(T, S) < 0.5) | torch.eye(T, S, dtype=torch.bool)
        return (q @ k.mT / self.d_k**0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v


class _HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / 2


class HalvesGradient(Fused):
    def forward(self, x, **kwargs):
        return super().forward(_HalfGradient.apply(x), **kwargs)


class KeepsOldState(GRU):
    def step(self, x, state):
        return super().step(x, state)[0], state


class DividesByProducts(Gated):
    def forward(self, x, *, context=None, key_mask=None):
        a = self.W(x).sigmoid()
        past = a.cumprod(1)
        return past * ((1 - a) * x / past).cumsum(1)


class StopsAt65536(Linear):
    def forward(self, x, **kwargs):
        y = super().forward(x, **kwargs)
        return torch.cat((y[:, :65536], torch.zeros_like(y[:, 65536:])), dim=1)


class SaysOrderIsNothing(Window):
    equivariant = True


class SqueezesOnes(Gated):
    def forward(self, x, *, context=None, key_mask=None):
        y = super().forward(x)
        return y.squeeze() if x.shape[1:] == (1, 1) else y


class CountsPadding(Linear):
    def attend(self, q, k, v, *extra, key_mask=None):
        y = super().attend(q, k, v, key_mask=key_mask)
        return y if key_mask is None else y * key_mask.sum(1)[:, None, None, None] / key_mask.shape[1]


class TurnsAroundBeyond600(Full):
    """Softmax over the queries, at lengths that no ordinary test has."""

    def attend(self, q, k, v, *extra, key_mask=None):
        if q.shape[2] <= 600:
            return super().attend(q, k, v, key_mask=key_mask)
        return (q @ k.transpose(-1, -2) * self.d_k**-0.5).softmax(-2) @ v


# class, role, the promise that names its fault
COPIES = [
    (LeaksBlockMean, "causal", "causal_values"),
    (WrapsAround, "causal", "causal_values"),
    (DividesByCount, "causal", "weights_sum_to_one"),
    (ScalesTwice, "causal", "equals_slow_form"),
    (ScalesByModelWidth, "cross", "equals_slow_form"),
    (DecaysOnceTooOften, "causal", "equals_slow_form"),
    (SwapsHeadsAndTime, "causal", "causal_values"),
    (TakesBatchForTime, "causal", "rows_independent"),
    (DropsMask, "bidirectional", "key_mask_honoured"),
    (KeepsDenseMap, "bidirectional", "memory_as_claimed"),
    (StoresStates, "causal", "memory_as_claimed"),
    (RedrawsFeatures, "bidirectional", "deterministic_in_eval"),
    (KeepsStateInBFloat16, "causal", "sums_in_float32"),
    (ExponentiatesBeforeMasking, "causal", "finite"),
    (AlignsTopLeft, "causal", "aligned_bottom_right"),
    (RedrawsBlocks, "bidirectional", "deterministic_in_eval"),
    (HalvesGradient, "bidirectional", "gradcheck"),
    (KeepsOldState, "causal", "decoding"),
    (DividesByProducts, "causal", "error_growth"),
    (StopsAt65536, "causal", "long_sequence"),
    (SaysOrderIsNothing, "bidirectional", "permutation_equivariance"),
    (SqueezesOnes, "causal", "sizes_of_one"),
    (CountsPadding, "bidirectional", "packing"),
]

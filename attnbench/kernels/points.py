"""Softmax attention through m points that keys and queries share: in time linear in T and S.

    y_i = sum_m p_im f_m / sum_m p_im z_m,  z_m = sum_j exp(x_m k_j + b_j),  f_m = sum_j exp(x_m k_j + b_j) v_j,
    p_im = exp(q_i x_m)

is softmax attention twice: points x_m read the values, f_m / z_m, and queries read the points, log z_m being a bias.
Each softmax takes off what is largest for its row, so that nothing under- or overflows, whatever the lengths of keys.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

HELD_NUMBERS = 2**19  # of the weights of a point and a key that are worked on at a time on a CPU


def attention_through(points: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """As above, some heads at a time. Gradients can be taken once, and none of the points.

    points: (m, d_k). q: (B, H, T, d_k). k: (B, H, S, d_k). v: (B, H, S, d_v). All of one dtype.
    bias: (B, H, S, 1), -inf for a hidden key; one key of each head must be seen. Returns (B, H, T, d_v).
    """
    (B, H, T, _), S, m = q.shape, k.shape[2], len(points)
    n = max(1, HELD_NUMBERS // (m * max(T, S))) if q.device.type == "cpu" else B * H
    heads = (torch.split(x.flatten(0, 1), n) for x in (q, torch.cat((k, bias), dim=-1), v))
    parts = [_Through.apply(points.expand(len(part[0]), -1, -1), *part) for part in zip(*heads, strict=True)]  # type: ignore[no-untyped-call]  # torch's is
    return torch.cat(parts).view(B, H, T, -1)


class _Through(torch.autograd.Function):
    """points: (N, m, d_k). q: (N, T, d_k). k: (N, S, d_k + 1), its bias last. v: (N, S, d_v). Keeps both softmaxes.

    A softmax's gradient takes a sum off that of each weight, here one more column of its matrix product. Of the points'
    softmax that sum and the gradient of log z, which comes in beside it, have a part in common: what is left of both is
    the sum of weights by the queries' own sums.
    """

    @staticmethod
    def forward(ctx: Any, points: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        points = F.pad(points, (0, 1), value=1.0)
        scores = torch.bmm(points, k.mT)  # (N, m, S)
        read = scores.softmax(-1)
        log_z = scores.amax(-1, keepdim=True) - read.amax(-1, keepdim=True).log()  # the largest weight is exp(0) by z
        few = torch.bmm(read, v)
        biased = torch.cat((points[..., :-1], log_z), dim=-1)
        weights = torch.bmm(F.pad(q, (0, 1), value=1.0), biased.mT).softmax(-1)  # (N, T, m)
        y = torch.bmm(weights, few)
        ctx.save_for_backward(points, v, read, few, weights, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = grads
        points, v, read, few, weights, y = ctx.saved_tensors
        dy = torch.cat((dy, (dy * y).sum(-1, keepdim=True)), dim=-1)  # (N, T, d_v + 1)
        d_few = torch.bmm(weights.mT, dy)  # (N, m, d_v + 1)
        d_scores = torch.bmm(dy, F.pad(few, (0, 1), value=-1.0).mT).mul_(weights)
        dq = torch.bmm(d_scores, points[..., :-1])
        d_scores = torch.bmm(d_few, F.pad(v, (0, 1), value=-1.0).mT).mul_(read)  # (N, m, S)
        return None, dq, torch.bmm(d_scores.mT, points), torch.bmm(read.mT, d_few[..., :-1])

"""cosFormer. Qin et al. 2022, arXiv 2202.08791, section 3.2.

    y_i = sum_j w_ij v_j / sum_j w_ij,   w_ij = relu(q_i) relu(k_j) cos(pi/2 (i - j) / M)
    phi(x_i) = [relu(x_i) cos(pi/2 i/M), relu(x_i) sin(pi/2 i/M)]: the cosine of a difference is a product of these

    phi       phi      2 d_k features, of position i
    M         max_T    the longest sequence: no weight is negative at a distance below it
    S, z      sums     (2 d_k, d_v + 1) per head; z is the last column

How it runs: as linear attention over phi, causally in chunks (`FeatureAttention`).

Departures: M is the model's max_T and not the length at hand, with which padding a batch would change its outputs. No
epsilon: a query whose weights are all 0, since its own features or those of all its keys are, gives 0 (authors' code:
a sum of at least 1e-6, which gives the same). In the cross role queries and keys are counted from the start of their
own sequences, since a decoder's length is not known ahead.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attnbench.kernels import FeatureAttention


class CosFormer(FeatureAttention):
    """ReLU features, weighed by the cosine of the distance."""

    equivariant = False
    positional = True
    normalised = False  # a query may share no ReLU feature with any key: weights sum to 1, or are all 0

    @property
    def n_features(self) -> int:
        """Each channel twice."""
        return 2 * self.d_k

    def phi(self, x: Tensor, which: str, start: int) -> Tensor:
        """The same for queries and keys."""
        T, M = x.shape[2], self.spec.max_T
        if start + T > M:
            raise ValueError(f"{start + T} positions do not fit max_T = {M}, by which distances are divided")
        at = torch.arange(start, start + T, dtype=torch.float64, device=x.device) * (math.pi / 2 / M)
        turn = torch.stack((at.cos(), at.sin()), dim=1).to(x.dtype)  # (T, 2)
        return (F.relu(x)[..., None, :] * turn[:, :, None]).flatten(-2)

    def slow_weights(self, q: Tensor, k: Tensor, start: int) -> Tensor:
        """By the cosine of i - j itself."""
        i, j = (torch.arange(n, dtype=torch.float64, device=q.device) for n in (q.shape[2], k.shape[2]))
        distance = start + i[:, None] - j
        near = (math.pi / 2 * distance / self.spec.max_T).cos().to(q.dtype)
        return torch.einsum("bhid,bhjd->bhij", q.clamp(min=0), k.clamp(min=0)) * near

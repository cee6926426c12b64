"""What guesses are worth that have not found the answer, computed exactly."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

_ENOUGH = 1e-8  # a tail that no longer counts, and above what rounding leaves of it


@lru_cache
def commonest_share(n_draws: int, n_values: int) -> float:
    """The mean share that the commonest of n_values values has among n_draws uniform draws, to about 1e-8.

    It is how often a guess is right that knows which values there are, and how often, but not which one is asked for.
    Draws are at least one.
    """
    mean = float(-(-n_draws // n_values))  # below this no value can be the commonest
    for most in range(-(-n_draws // n_values), n_draws):
        above = 1 - _none_above(most, n_draws, n_values)
        if above < _ENOUGH:
            break
        mean += above
    return mean / n_draws


def _none_above(most: int, n_draws: int, n_values: int) -> float:
    """P(no value comes more than `most` times): independent Poisson counts, given that their sum is n_draws.

    The sum's probability is a coefficient of a power of the counts' generating function. What wraps around in a
    Fourier transform of this size does not reach that coefficient.
    """
    size = 2 ** max(n_draws, n_values * most - n_draws).bit_length()
    counts = torch.fft.rfft(_poisson(torch.arange(most + 1), n_draws / n_values), n=size)
    sums: Tensor = torch.fft.irfft(counts**n_values, n=size)
    return float(sums[n_draws] / _poisson(torch.tensor(n_draws), n_draws))


def _poisson(count: Tensor, rate: float) -> Tensor:
    """P(count) of a Poisson variable, float64."""
    x = count.double()
    return torch.exp(x * torch.tensor(rate, dtype=torch.float64).log() - rate - torch.lgamma(x + 1))

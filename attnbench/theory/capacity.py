"""C7: what a state of fixed size holds. Kohonen 1972 (correlation memories); Schlag et al. 2021, arXiv 2102.11174."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from pandas import DataFrame
from torch import Tensor

from attnbench.mixer import Attention
from attnbench.theory.mixers import build, named
from attnbench.theory.rules import above, below, within
from attnbench.theory.statement import Curves, Finding, Shown, Statement

N_VALUES, N_DRAWS = 128, 8  # value vectors to tell apart, and sets of keys
COUNTS = {64: (8, 16, 32, 64, 128, 256), 16: (8, 16, 32, 64)}  # keys to hold, by their width p
SHARPNESS = 100.0  # of the softmax: logits are 100 cos(q, k)
EXACT = 1e-9

Memory = Callable[[Tensor, Tensor], Tensor]  # keys and values (B, K, p) -> what each key retrieves (B, K, p)


def hebbian(k: Tensor, v: Tensor) -> Tensor:
    """Linear attention without features or normaliser: the state is the sum of k^T v."""
    return k @ (k.mT @ v)


def delta(k: Tensor, v: Tensor) -> Tensor:
    """One pass of the delta rule with a rate of 1: each key replaces what the state gives for it."""
    state = k.new_zeros(k.shape[0], k.shape[2], v.shape[2])  # (B, p, p)
    for t in range(k.shape[1]):
        k_t, v_t = k[:, t : t + 1], v[:, t : t + 1]  # (B, 1, p)
        state = state + k_t.mT @ (v_t - k_t @ state)
    return k @ state


def pseudo_inverse(k: Tensor, v: Tensor) -> Tensor:
    """The state with the least squared error of all p x p."""
    inverse: Tensor = torch.linalg.pinv(k)
    return k @ (inverse @ v)


def attention(name: str, sharpness: float = 1.0) -> Memory:
    """A variant's own attention of every key to all keys, one head; logits are sharpness · cos(q, k)."""

    def retrieve(k: Tensor, v: Tensor) -> Tensor:
        mixer = build(named(name), k.shape[1], "bidirectional", d_model=k.shape[2], n_heads=1, dtype=k.dtype)
        if not isinstance(mixer, Attention):
            raise TypeError(f"{name} has no keys")
        q = k if sharpness == 1.0 else k * sharpness * k.shape[2] ** 0.5
        return mixer.attend(q[:, None], k[:, None], v[:, None])[:, 0]

    return retrieve


def memories() -> Mapping[str, Memory]:
    """All that are compared, by label."""
    return {
        "linear": hebbian,
        "delta rule": delta,
        "pseudo-inverse": pseudo_inverse,
        "softmax": attention("fused", SHARPNESS),
        "elu + 1, normalised": attention("linear"),
    }


def accuracy(memory: Memory, p: int, K: int) -> float:
    """Share of K random unit keys that retrieve what is nearest to the right one of N_VALUES random unit vectors."""
    generator = torch.Generator().manual_seed(1000 * p + K)

    def drawn(n: int) -> Tensor:
        return F.normalize(torch.randn(N_DRAWS, n, p, generator=generator, dtype=torch.float64), dim=-1)

    k, book = drawn(K), drawn(N_VALUES)
    index = torch.randint(N_VALUES, (N_DRAWS, K), generator=generator)
    v = book.gather(1, index[..., None].expand(-1, -1, p))  # (N_DRAWS, K, p)
    found = (memory(k, v) @ book.mT).argmax(-1)
    return (found == index).double().mean().item()


def predicted(p: int, K: int) -> float:
    """What `hebbian` reaches if all interference is normal: P(right score above N_VALUES - 1 others).

    Others' terms have variance (K - 1) / p in the keys, and 1 / p, or 1 where a value comes twice, in the values.
    """
    noise = (K - 1) / p * (1 / p + 1 / N_VALUES)
    z = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    others = torch.special.ndtr((1 + noise**0.5 * z) / (1 / p + noise) ** 0.5) ** (N_VALUES - 1)
    density = (-z.square() / 2).exp()
    return float((others * density).sum() / density.sum())


def orthogonal_error(memory: Memory, p: int) -> float:
    """Largest error of retrieving p values by p orthogonal keys."""
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(1, p, p, generator=generator, dtype=torch.float64) for _ in range(2))
    k = torch.linalg.qr(k).Q
    return (memory(k, v) - v).abs().max().item()


def table() -> DataFrame:
    """Accuracy by memory, width and number of keys."""
    return DataFrame(
        [
            {"label": label, "K": K, "accuracy": accuracy(memory, p, K), "facet": f"p = {p}"}
            for label, memory in memories().items()
            for p, counts in COUNTS.items()
            for K in counts
        ]
    )


def _findings(rows: DataFrame) -> list[Finding]:
    """What each memory keeps of random keys, beside what its noise lets it keep."""
    by = rows.set_index(["facet", "label", "K"])["accuracy"]
    wide, narrow = by["p = 64"], by["p = 16"]
    return [
        *(
            below(f"largest error with p = 64 orthogonal keys: {label}", EXACT, orthogonal_error(memory, 64))
            for label, memory in (("linear", hebbian), ("delta rule", delta))
        ),
        *(
            within(f"linear, p = 64, K = {K} random keys, by its noise of K / p", predicted(64, K), value, off=0.05)
            for K, value in wide["linear"].items()
        ),
        above("pseudo-inverse: all of K = p = 64 random keys", 0.999, wide["pseudo-inverse"][64]),
        above("pseudo-inverse less linear, K = 4 p: the best state is better", 0.0, _lead(wide, "pseudo-inverse", 256)),
        below(
            "delta rule less linear, K = p: one pass over keys that are not orthogonal overwrites",
            0.0,
            _lead(wide, "delta rule", 64),
        ),
        above("softmax, p = 64, lowest over K: no such limit", 0.999, wide["softmax"].min()),
        above("softmax, p = 16, lowest over K", 0.999, narrow["softmax"].min()),
        below("linear, p = 16, K = 4 p: a quarter of the width", 0.5, narrow["linear"][64]),
        below(
            "elu + 1 with a normaliser, p = 64, K = 8: positive features lose contrast",
            0.7,
            wide["elu + 1, normalised"][8],
        ),
        below("the same, K = 64", 0.15, wide["elu + 1, normalised"][64]),
    ]


def _lead(by: DataFrame, label: str, K: int) -> float:
    return float(by[label][K] - by["linear"][K])


def show(quick: bool) -> Shown:
    """Every memory at every load; nothing is trained, so a quick look is the whole."""
    rows = table()
    picture = Curves(
        "capacity", "Random keys retrieved from a state of p x p, and by softmax", rows, "K", "accuracy", x_log=True
    )
    return Shown(tuple(_findings(rows)), (picture,))


STATEMENT = Statement(
    "C7",
    "What a state of fixed size holds",
    "A p x p sum of keys and values holds p orthogonal keys exactly and random keys with a signal-to-noise ratio of "
    "√(p / K); the pseudo-inverse is the best that such a state can be. Softmax attention keeps every key and has no "
    "such limit. Positive features with a normaliser lose the contrast between keys.",
    show,
)

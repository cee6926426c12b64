"""C2: what a layer keeps for its backward pass, and what decoding keeps of the past."""

from __future__ import annotations

import math

import torch
from pandas import DataFrame

from attnbench.measure.memory import saved_bytes
from attnbench.mixer import Role
from attnbench.theory.mixers import build, installed, named
from attnbench.theory.rules import exactly, near, within
from attnbench.theory.statement import Curves, Finding, Shown, Statement

D_MODEL, N_HEADS, ITEMSIZE = 64, 4, 4
LENGTHS = (256, 512, 1024, 2048)
SLOPES = {"full": 2.0, "fused": 1.0, "linear": 1.0, "lstm": 1.0, "gru": 1.0, "rnn": 1.0, "window": 1.0}
NUMBERS = {"linear": 15.0, "lstm": 17.5, "gru": 8.0}  # kept per position and channel, counted on prototypes
IMPLEMENTED = "how many copies are kept is the code's choice, not the mechanism's: only the growth in T is given"


def kept_bytes(name: str, T: int) -> int:
    """Of one layer over one sequence in float32, its input among them, parameters not."""
    role: Role = "causal" if name in ("lstm", "gru", "rnn", "linear") else "bidirectional"
    mixer = build(named(name), T, role, d_model=D_MODEL, n_heads=N_HEADS, dtype=torch.float32)
    x = torch.randn(1, T, D_MODEL, requires_grad=True)
    return saved_bytes(lambda: mixer(x), mixer.parameters())


def _slope(kept: dict[int, float]) -> float:
    """Over the last doubling."""
    long, longer = sorted(kept)[-2:]
    return math.log(kept[longer] / kept[long], longer / long)


def _training(kept: dict[str, dict[int, float]]) -> list[Finding]:
    """What a forward pass keeps for its backward pass."""
    T = max(kept["full"])
    ratio = 1 + N_HEADS * T / (5 * D_MODEL)
    predicted = {
        "full": ITEMSIZE * (N_HEADS * T**2 + 5 * T * D_MODEL),
        "fused": ITEMSIZE * (5 * T * D_MODEL + N_HEADS * T),
    }
    return [
        *(
            within(f"slope in T of what is kept: {name}", SLOPES[name], _slope(found), off=0.1)
            for name, found in kept.items()
        ),
        near(f"kept by full, T = {T}: 4 (H T² + 5 T d) bytes", predicted["full"], kept["full"][T], share=0.1),
        near(f"kept by fused, T = {T}: 4 (5 T d + H T) bytes", predicted["fused"], kept["fused"][T], share=0.1),
        near(f"full by fused, T = {T}: 1 + H T / (5 d)", ratio, kept["full"][T] / kept["fused"][T], share=0.1),
        *(
            near(
                f"numbers kept per position and channel: {name}",
                n,
                kept[name][T] / (ITEMSIZE * T * D_MODEL),
                share=0.25,
                reason=IMPLEMENTED,
            )
            for name, n in NUMBERS.items()
            if name in kept
        ),
    ]


@torch.no_grad()
def state_numbers(name: str, T: int) -> int:
    """Numbers that decoding keeps of T tokens."""
    mixer = build(named(name), T, "causal", d_model=D_MODEL, n_heads=N_HEADS)
    _, state = mixer.prefill(torch.randn(1, T, D_MODEL, dtype=torch.float64))
    return sum(part.numel() for part in state.values() if part.is_floating_point())


def _decoding(T: int = 128) -> list[Finding]:
    """How many numbers a state holds, and the T at which a cache holds as many."""
    d_head = D_MODEL // N_HEADS
    expected = {
        "full": ("2 T d", 2 * T * D_MODEL),
        "linear": ("d p, and d for the normaliser", D_MODEL * (d_head + 1)),
        "rnn": ("d", D_MODEL),
        "gru": ("d", D_MODEL),
        "lstm": ("2 d", 2 * D_MODEL),
    }
    kept = {name: state_numbers(name, T) for name in expected}
    equal = kept["linear"] * T / kept["full"]
    what = f"T up to which a cache is no larger than the state of linear: p / 2, p = {d_head}"
    return [
        *(
            exactly(f"numbers of state after T = {T} tokens: {name}: {form}", n, kept[name])
            for name, (form, n) in expected.items()
        ),
        within(what, d_head / 2, equal, off=1.0),
    ]


def show(quick: bool) -> Shown:
    """One layer at four lengths, and one state of each kind."""
    names = [name for name in SLOPES if name in installed(max(LENGTHS), "causal", dtype="float32")]
    kept = {name: {T: float(kept_bytes(name, T)) for T in LENGTHS} for name in names}
    rows = [{"label": name, "T": T, "kept (MB)": n / 1e6} for name, found in kept.items() for T, n in found.items()]
    title = f"Kept for the backward pass by one layer, d = {D_MODEL}, H = {N_HEADS}, float32"
    picture = Curves("kept", title, DataFrame(rows), "T", "kept (MB)", x_log=True, y_log=True)
    return Shown((*_training(kept), *_decoding()), (picture,))


STATEMENT = Statement(
    "C2",
    "Memory grows like T² only where the map is written out",
    "A training step of written-out attention keeps H T² weights, fused attention and everything else a multiple of "
    "T d; while decoding, a cache grows by 2 d numbers a token where a state stays as it is.",
    show,
)

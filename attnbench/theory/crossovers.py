"""C1: at which T attention stops being cheaper than a recurrence: by operations, and by the clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from attnbench.mixer import Flops, Mixer, Role
from attnbench.theory import clocked
from attnbench.theory.mixers import build, named
from attnbench.theory.rules import near
from attnbench.theory.statement import Finding, Shown, Statement
from attnbench.transformer import FeedForward

N_HEADS, CHUNK, MOST = 4, 64, 64  # crossovers are looked for up to MOST · d
Count = Callable[[int], float]  # operations of one sequence, by T
ODD_CHUNK = "the normaliser is one more channel, and the last chunk is shorter than the others"


class Met(NamedTuple):
    """Two costs in operations, and the T up to which the first is the cheaper; None: it never is."""

    what: str
    first: Count
    second: Count
    expected: float | None
    share: float = 0.0


def crossing(first: Count, second: Count, limit: int) -> int | None:
    """Largest T up to which the first costs no more than the second, where it grows faster; None when there is none."""
    if first(1) > second(1):
        return None
    low, high = 1, limit + 1  # the first costs no more at low, and is taken to cost more at high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if first(middle) <= second(middle) else (low, middle)
    return low


def operations(name: str, d_model: int, role: Role = "causal") -> Callable[[int], Flops]:
    """A variant's own formula, by T. Raises TypeError when it has none."""
    mixer = build(named(name), 1, role, d_model=d_model, n_heads=N_HEADS)
    return lambda T: _known(mixer, T)


def _known(mixer: Mixer, T: int) -> Flops:
    flops = mixer.flops(T, T)
    if flops is None:
        raise TypeError(f"{type(mixer).__name__} has no formula for its operations")
    return flops


def _core(name: str, d_model: int, role: Role = "causal") -> Count:
    flops = operations(name, d_model, role)
    return lambda T: flops(T).core


def _layer(name: str, d_model: int, role: Role = "causal") -> Count:
    flops = operations(name, d_model, role)
    return lambda T: flops(T).core + flops(T).projection


def _projections(name: str, d_model: int, role: Role = "causal") -> Count:
    flops = operations(name, d_model, role)
    return lambda T: flops(T).projection


def _constants(d: int, T: int = 1024) -> list[Finding]:
    """Operations of one layer over T d²; the part in T² apart."""
    both, causal = operations("fused", d, "bidirectional")(T), operations("fused", d)(T)
    linear, p = operations("linear", d)(T), d // N_HEADS
    exact: dict[str, tuple[float, float]] = {
        "attention, projections, by T d²": (8, both.projection / (T * d**2)),
        "attention, all pairs, mixing, by T² d": (4, both.core / (T**2 * d)),
        "attention, causal, mixing, by T (T + 1) d": (2, causal.core / (T * (T + 1) * d)),
        "block with a feed-forward of 4 d, dense part, by T d²": (
            24,
            (both.projection + _feed_forward(d, T)) / (T * d**2),
        ),
    }
    for name, n in {"rnn": 2, "gru": 6, "lstm": 8}.items():
        flops = operations(name, d)(T)
        exact[f"{name}, input maps, by T d²"] = (n, flops.projection / (T * d**2))
        exact[f"{name}, recurrent maps, by T d²"] = (n, flops.core / (T * d**2))
    chunked = near(
        f"linear, H = {N_HEADS}, chunk {CHUNK}, mixing: 4 T chunk d + 4 T d² / H",
        4 * T * CHUNK * d + 4 * T * d**2 / N_HEADS,
        linear.executed,
        share=1 / p,
        reason=ODD_CHUNK,
    )
    return [*(_constant(what, *numbers) for what, numbers in exact.items()), chunked]


def _constant(what: str, expected: float, measured: float) -> Finding:
    return Finding(what, f"{expected:g}", f"{measured:g}", math.isclose(expected, measured))


def _feed_forward(d: int, T: int) -> float:
    return 2.0 * T * sum(weight.numel() for weight in FeedForward(d, 4 * d).parameters() if weight.ndim == 2)


def meetings(d: int) -> list[Met]:
    """Every crossover that the constants predict."""
    found = []
    kinds: tuple[tuple[Role, int, str], ...] = ("bidirectional", 1, "all pairs"), ("causal", 2, "causal")
    for role, n, kind in kinds:
        mixing, layer = _core("fused", d, role), _layer("fused", d, role)
        projected = _projections("fused", d, role)
        recurrent = {"rnn": d / 2, "gru": 1.5 * d, "lstm": 2 * d}
        whole: dict[str, float | None] = {"rnn": None, "gru": d, "lstm": 2 * d}
        found += [
            Met(f"mixing alone, {kind}, against {name}", mixing, _core(name, d), n * at)
            for name, at in recurrent.items()
        ]
        found += [
            Met(f"whole layer, {kind}, against {name}", layer, _layer(name, d), at and n * at)
            for name, at in whole.items()
        ]
        found += [
            Met(f"T² part, {kind}, against the projections", mixing, projected, 2 * n * d),
            Met(f"T² part, {kind}, against all dense work of a block", mixing, _dense(projected, d), 6 * n * d),
            Met(f"mixing alone, {kind}, against linear", mixing, _chunked(d), n * (CHUNK + d / N_HEADS), 0.1),
        ]
    return found


def _dense(projected: Count, d: int) -> Count:
    return lambda T: projected(T) + _feed_forward(d, T)


def _chunked(d: int) -> Count:
    flops = operations("linear", d)
    return lambda T: flops(T).executed


def _met(met: Met, d: int) -> Finding:
    """One crossover of operations, beside the expected one."""
    at = crossing(met.first, met.second, MOST * d)
    what = f"operations, d = {d}: {met.what}: crossover"
    expected, measured = _in_widths(met.expected, d), _in_widths(at, d)
    if met.expected is None or at is None:
        return Finding(what, expected, measured, met.expected == at)
    ok = abs(at - met.expected) <= max(1.0, met.share * met.expected)
    return Finding(what, expected, measured, ok)


def _in_widths(at: float | None, d: int) -> str:
    return "never" if at is None else f"T = {at:g} ({at / d:.3g} d)"


def show(quick: bool) -> Shown:
    """Constants and crossovers by the variants' own formulas; then the clock, at fewer sizes in a quick look."""
    exact = [*_constants(64), *(_met(met, d) for d in (64, 256) for met in meetings(d))]
    measured, pictures = clocked.shown(quick)
    return Shown((*exact, *measured), pictures)


STATEMENT = Statement(
    "C1",
    "O(T² d) against O(T d²): where the crossover is",
    "“Attention is cheaper while T < d” is literally right for causal mixing alone against a plain recurrent network, "
    "and for a whole layer over all pairs against a GRU; every other pair has another constant. By the clock the "
    "crossover lies elsewhere again, since a recurrence at a small batch is not limited by its operations.",
    show,
)

"""Every built-in variant that claims linear time: what a token costs at 8192 and at 1024, memory, share of the peak."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

import torch
from matches import TABLE, Sizes, at, forward_backward, noise
from stopwatch import against, alone, least_of, sample
from torch import Tensor

from attnbench.analyse.claims import highest
from attnbench.measure.cost import cost
from attnbench.measure.memory import peak_bytes
from attnbench.measure.peaks import products
from attnbench.mixer import Mixer, Role, Spec, Use
from attnbench.settings import ROLES

SHORT, LONG = 1024, 8192
PEAK_T, PEAK_D = 2048, 512
WORST_GROWTH, SLOPE_OFF = 1.3, 0.15


@dataclass(frozen=True)
class Growth:
    """growth: CPU time per token at the long length by that at the short one, forward and backward of a layer.

    slope: of peak memory in T over the last factor of four, in logs. share: of the peak of products, by what is
    executed.
    """

    variant: str
    role: str
    growth: float
    slope: float
    share: float | None

    @property
    def verdict(self) -> str:
        """Whether both targets are met, and which is not."""
        missed = ["time"] if self.growth > WORST_GROWTH else []
        missed += ["memory"] if abs(self.slope - 1) > SLOPE_OFF else []
        return f"missed: {', '.join(missed)}" if missed else "met"


def linear_time() -> dict[str, type[Mixer]]:
    """Built-in variants whose claimed time is at most linear in T, by name."""
    points = [
        point for point in entry_points(group="attnbench.variants") if point.dist and point.dist.name == "attnbench"
    ]
    classes = {point.name: point.load() for point in sorted(points, key=lambda point: point.name)}
    return {
        name: cls for name, cls in classes.items() if cls.claim and highest(cls.claim.time, "T", _options(cls)) <= 1
    }


def rows(names: Sequence[str], short: int, long: int, allowed_s: float) -> Iterator[Growth]:
    """All of `names` on one thread, for about `allowed_s` seconds each."""
    peak = _peak_flops_per_s()
    for name in names:
        cls = linear_time()[name]
        role = next((role for role in ROLES if role != "cross" and _reason(cls, role, short) is None), None)
        if role:
            yield _grown(name, cls, role, short, long, allowed_s, peak)


def _grown(name: str, cls: type[Mixer], role: Role, short: int, long: int, allowed_s: float, peak: float) -> Growth:
    few, many = (_step(cls, role, at(TABLE, T=T)) for T in (short, long))
    with alone(1):
        found = against(many, few, allowed_s)
        growth = found.ratio * short / long
        less, more = (peak_bytes(_step(cls, role, at(TABLE, T=T)), "cpu") for T in (long // 4, long))
    slope = math.log(more / less) / math.log(4)
    return Growth(
        name, role, growth, slope, _share(cls, role, at(TABLE, T=min(PEAK_T, long), d_model=PEAK_D, n_heads=8), peak)
    )


def _share(cls: type[Mixer], role: Role, sizes: Sizes, peak: float) -> float | None:
    """Executed operations per second of forward and backward, by the machine's."""
    mixer = cls(Spec(sizes.d_model, sizes.n_heads, sizes.T, role))
    known = cost([mixer], level="layer", phase="forward_backward", T=sizes.T, S=sizes.T, B=1)
    call = _step(cls, role, sizes)
    with alone(1):
        least = least_of([sample(call) for _ in range(4)])
    return None if known is None else known.executed / least.cpu_s / peak


def _peak_flops_per_s() -> float:
    """Of large products on one thread, by the clock that variants are timed with."""
    with alone(1):
        return max(
            flops / least_of([sample(call) for _ in range(8)]).cpu_s for flops, call in products("float32", "cpu")
        )


def _step(cls: type[Mixer], role: Role, sizes: Sizes) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    mixer = cls(Spec(sizes.d_model, sizes.n_heads, sizes.T, role)).eval()
    x, parameters = noise(sizes, 1, sizes.T, sizes.d_model), list(mixer.parameters())
    return lambda: forward_backward(mixer, [x], parameters)


def _reason(cls: type[Mixer], role: Role, T: int) -> str | None:
    spec = Spec(TABLE.d_model, TABLE.n_heads, T, role)
    return cls.unsupported(spec, Use(T, T, phase="forward_backward"))


def _options(cls: type[Mixer]) -> set[str]:
    made = [vars(base)["__init__"] for base in cls.__mro__ if "__init__" in vars(base)]
    return {name for one in made for name in inspect.signature(one).parameters}


HEAD = ("variant", "role", "time per token", "memory's slope in T", "share of the peak", "")


def cells(row: Growth) -> list[str]:
    """One line of the table."""
    share = "not available" if row.share is None else f"{100 * row.share:.0f} %"
    return [row.variant, row.role, f"{row.growth:.2f}", f"{row.slope:.2f}", share, row.verdict]

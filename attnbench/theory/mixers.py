"""The installed variants, as statements try them: loaded by the plugin door, built with their defaults and a seed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from attnbench import registry
from attnbench.mixer import Mixer, Role, Spec, Use


def installed(
    T: int, role: Role, *, d_model: int = 64, n_heads: int = 4, phase: str = "forward", dtype: str = "float64"
) -> dict[str, type[Mixer]]:
    """Those that serve T positions in a role on a CPU, by name; what does not load is none."""
    found, spec, use = dict[str, type[Mixer]](), Spec(d_model, n_heads, T, role), Use(T, T, dtype=dtype, phase=phase)
    for name, source in registry.installed(registry.VARIANTS).items():
        with suppress(Exception):  # whatever a package does, it spoils no statement about the others
            cls = registry.load(source)
            if issubclass(cls, Mixer) and cls.unsupported(spec, use) is None:
                found[name] = cls
    return found


def named(name: str) -> type[Mixer]:
    """One variant's class. Raises RequestError when none has that name."""
    cls = registry.load(registry.find(name, registry.installed(registry.VARIANTS)))
    if not issubclass(cls, Mixer):
        raise TypeError(f"{name} is no mixer")
    return cls


def build(
    cls: type[Mixer],
    T: int,
    role: Role,
    *,
    d_model: int = 64,
    n_heads: int = 4,
    dtype: torch.dtype = torch.float64,
    layer: int = 0,
    **options: Any,
) -> Mixer:
    """A mixer for T positions, with weights drawn from one seed."""
    torch.manual_seed(0)
    return cls(Spec(d_model, n_heads, T, role, layer), **options).to(dtype).eval()

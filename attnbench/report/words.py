"""Numbers, units and settings in words, the same in every table, picture and sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count
from typing import Any

TIME_UNITS = (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0))
BYTE_UNITS = (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30), ("TiB", 2.0**40))
COUNT_UNITS = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15))
PLAIN = (
    "role",
    "level",
    "phase",
    "dtype",
    "device",
    "device_name",
    "run",
    "task",
)  # settings that speak for themselves
Units = tuple[tuple[str, float], ...]


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, never in exponent form: 0.0123, 1.20, 1230."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{max(decimals, 0)}f}"


def ratio(value: float) -> str:
    """A ratio with two digits, and around 1 with its hundredths: 0.43, 0.96, 1.04, 1.3, 12."""
    return f"{value:.2f}" if 0.995 <= value < 1.095 else significant(value, 2)


def scaled(value: float, units: Units, low: float = math.nan, high: float = math.nan) -> str:
    """A value in the largest unit not above it, with its interval in the same unit: "1.24 ms [1.21, 1.30]"."""
    name, size = next((unit for unit in reversed(units) if value >= unit[1]), units[0])
    text = f"{_in_unit(value, size)} {name}".rstrip()
    if math.isfinite(low) and math.isfinite(high):
        return f"{text} [{_in_unit(low, size)}, {_in_unit(high, size)}]"
    return text


def rate(value: float, unit: str) -> str:
    """So many per second, in powers of ten: "92.3 GFLOP/s", "10.1 GB/s"."""
    number, _, prefix = scaled(value, COUNT_UNITS).partition(" ")
    return f"{number} {prefix}{unit}"


def percent(value: float) -> str:
    """A share of a whole: "31 %", "4.2 %"."""
    return f"{significant(100 * value, 2)} %"


def short(value: float, units: Units) -> str:
    """A tick label: the value in its unit without trailing zeros, "50 µs", "1 ms"."""
    name, size = next((unit for unit in reversed(units) if value >= unit[1] * (1 - 1e-9)), units[0])
    return f"{value / size:.4g} {name}".rstrip()


def whole(value: float) -> str:
    """A size such as T: rounded, with commas between thousands from 10,000 on."""
    n = round(value)
    return f"{n:,}" if n >= 10_000 else str(n)


def share(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """An accuracy, with the range over seeds where there is one: "0.984 [0.971, 1.000]"."""
    text = f"{value:.3f}"
    return f"{text} [{low:.3f}, {high:.3f}]" if math.isfinite(low) and math.isfinite(high) else text


def title(what: str, values: Mapping[str, Any]) -> str:
    """What a figure or table shows: "Layer forward time, causal, B=1, float32, cpu, 1 thread"."""
    head = settings(values, ("level", "phase"))
    task = f" on {values['task']}" if values.get("task") else ""
    others = tuple(name for name in values if name not in ("level", "phase", "task"))
    start = f"{head.replace(',', '')} {what}{task}".strip()
    return ", ".join(filter(None, (start[:1].upper() + start[1:], settings(values, others))))


def file_name(what: str, values: Mapping[str, Any], differs: tuple[str, ...]) -> str:
    """A file name for one group that every system accepts: the settings that tell it from the others."""
    parts = [f"{name}-{_whole(value)}" for name in differs if (value := values.get(name)) is not None]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "_".join([what, *parts]))


def distinct(names: Iterable[str]) -> Iterator[str]:
    """File names in their order, a name that was there before with the next free number: "time", "time-2".

    Two that differ in capitals alone are one file on some systems, so they count as equal.
    """
    taken: set[str] = set()
    for name in names:
        numbered = chain([name], (f"{name}-{n}" for n in count(2)))
        free = next(known for known in numbered if known.casefold() not in taken)
        taken.add(free.casefold())
        yield free


def setting(name: str, value: object) -> str:
    """One setting as people say it: "causal", "float32", "2 threads", "B=1"; "" for one that does not apply."""
    if value is None:
        return ""
    if name == "compile":
        return "compiled" if value else ""
    value = _whole(value)
    if name == "threads":
        return f"{value} thread{'' if value == 1 else 's'}"
    return str(value) if name in PLAIN else f"{name}={value}"


def _whole(value: object) -> object:
    """Sizes of a column that has holes are floats there."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def settings(values: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Several settings, those that do not apply left out: "causal, B=1, float32, 1 thread"."""
    return ", ".join(text for name in names if (text := setting(name, values.get(name))))


def counted(counts: Mapping[str, int]) -> str:
    """Counts by reason, the commonest first: "oom 2, timeout 1"."""
    return ", ".join(f"{reason} {n}" for reason, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def missing_note(counts: Mapping[str, int], n_cells: int) -> str:
    """The denominator of a figure or table: "2 of 18 cells missing: oom 1, timeout 1"."""
    n_missing = sum(counts.values())
    if n_missing == 0:
        return "1 cell measured" if n_cells == 1 else f"all {n_cells} cells measured"
    return f"{n_missing} of {n_cells} cells missing: {counted(counts)}"


def _in_unit(value: float, size: float) -> str:
    return significant(value / size)

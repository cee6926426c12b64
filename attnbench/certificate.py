"""A certificate as people read it: one page, or one line; made from the plain data of `attnbench.execute.certified`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Found = Mapping[str, Any]
RED = ("broken", "error")
WEIGHTS = ("–", "kept", "broken")  # of what was found in several dtypes, the last one stands
MARKS = {"broken": "broken", "error": "broken", "kept": "kept", "not applicable": "–"}


def is_green(found: Found) -> bool:
    """Whether no promise is broken and at least one is kept."""
    return not red(found) and n_kept(found) > 0


def red(found: Found) -> list[Mapping[str, Any]]:
    """The first breach of each promise in each role."""
    broken = [result for result in found["results"] if result["status"] in RED]
    return list({(result["name"], result["role"]): result for result in reversed(broken)}.values())[::-1]


def n_kept(found: Found) -> int:
    """How many promises are kept, each role by itself, in every dtype and layer in which they were tried."""
    return sum(mark == "kept" for row in table(found) for mark in row[1:])


def refusal(found: Found) -> str | None:
    """Why nothing could be tried; None where something was."""
    reasons = {result["detail"]: None for result in found["results"] if result["status"] == "not applicable"}
    return "; ".join(reasons) if not n_kept(found) and not red(found) else None


def verdict(found: Found) -> str:
    """What came out, in one line."""
    name, n_broken, why = found["variant"], len(red(found)), refusal(found)
    if why is not None:
        return f"{name}: nothing could be tried: {why}"
    if n_broken:
        return f"{name}: {n_broken} promise{'s' if n_broken > 1 else ''} broken"
    return f"{name} keeps its promises ({n_kept(found)} kept)"


def broken_lines(found: Found) -> list[str]:
    """One line per broken promise and role: the input, the error and the bound."""
    name = found["variant"]
    return [f"{name} [{one['role']}] {one['name']}: {one['status']}: {one['detail']}" for one in red(found)]


def roles(found: Found) -> list[str]:
    """The roles in which something was tried or refused, in their order."""
    return list(dict.fromkeys(result["role"] for result in found["results"]))


def table(found: Found) -> list[list[str]]:
    """One row per promise: its name, then kept, broken or a dash for each of `roles`."""
    marks: dict[str, dict[str, str]] = {}
    for result in found["results"]:
        row = marks.setdefault(result["name"], {})
        row[result["role"]] = max(MARKS[result["status"]], row.get(result["role"], "–"), key=WEIGHTS.index)
    return [[name, *(row.get(role, "–") for role in roles(found))] for name, row in marks.items()]


def head(found: Found) -> list[str]:
    """The lines above the table: what was tried, and where."""
    options = ", ".join(f"{name} = {value}" for name, value in found["options"].items() if value is not None)
    return [
        f"certificate of {found['variant']}",
        f"options: {options or 'none'}",
        f"source: {found['source']}, {found['origin']}, digest {found['digest']}",
        f"tried on {found['device_name']} ({found['device']}) with torch {found['torch']}, in "
        f"{', '.join(found['dtypes'])}, as a model's first layer and its second",
    ]


def reasons(found: Found) -> list[str]:
    """Every reason why something does not apply, once, with what it is about."""
    causes: dict[str, list[str]] = {}
    first = {(one["name"], one["role"]): one["status"] for one in reversed(found["results"])}
    for result in found["results"]:
        if result["status"] == "not applicable" and (
            result["dtype"] == found["dtypes"][0] or first[result["name"], result["role"]] != "not applicable"
        ):
            whole = result["name"] == "shape"
            about = result["role"] if whole else f"{result['name']} [{result['role']}]"
            if whole and result["dtype"] != found["dtypes"][0]:
                about += f" in {result['dtype']}"
            causes.setdefault(result["detail"], []).append(about)
    return [f"– {_about(list(dict.fromkeys(whats)))}: {why}" for why, whats in causes.items()]


def line(found: Found, seconds: float) -> str:
    """One variant of many."""
    if refusal(found) is not None:
        return f"–       {verdict(found)}"
    return f"{'green ' if is_green(found) else 'red   '}  {verdict(found)}, {seconds:.1f} s"


def _about(whats: Sequence[str]) -> str:
    """Roles of one promise together: `decoding [causal, cross]`."""
    grouped: dict[str, list[str]] = {}
    for what in whats:
        name, bracket, rest = what.partition(" [")
        grouped.setdefault(name, []).extend([rest.rstrip("]")] if bracket else [])
    return ", ".join(name + (f" [{', '.join(rest)}]" if rest else "") for name, rest in grouped.items())

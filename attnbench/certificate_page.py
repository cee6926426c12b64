"""A certificate as people read it: what was tried, a table, and the reasons why something does not apply."""

from __future__ import annotations

from attnbench.certificate import Certificate, Issued, Result
from attnbench.settings import Role


def head(found: Issued) -> list[str]:
    """The lines above the table: what was tried, and where."""
    options = ", ".join(f"{name} = {value}" for name, value in found.options.items() if value is not None)
    return [
        f"certificate of {found.variant}",
        f"options: {options or 'none'}",
        f"source: {found.source}, {found.origin}, digest {found.digest}",
        f"tried on {found.device_name} ({found.device}) with torch {found.torch}, in {', '.join(found.dtypes)}, "
        f"and in {found.dtypes[0]} as a model's second layer",
    ]


def roles(found: Certificate) -> list[Role]:
    """The roles in which something was tried or refused, in their order."""
    return list(dict.fromkeys(result.role for result in found.results))


def table(found: Certificate) -> list[list[str]]:
    """One row per promise: its name, then kept, broken or a dash for each of `roles`."""
    marks, names = found.marks, dict.fromkeys(result.name for result in found.results)
    return [[name, *(marks.get((name, role), "–") for role in roles(found))] for name in names]


def reasons(found: Certificate) -> list[str]:
    """Every reason why something does not apply, once, with what it is about: `decoding [causal, cross]`.

    What does not apply in the first dtype is not told again of the others.
    """
    causes: dict[str, dict[str, dict[str, None]]] = {}
    first = {result.place: result.status for result in reversed(found.results)}
    for result in found.results:
        in_first = result.dtype == found.dtypes[0]
        if result.status == "not applicable" and (in_first or first[result.place] != "not applicable"):
            what, role = _about(result, in_first)
            causes.setdefault(result.detail, {}).setdefault(what, {}).update(dict.fromkeys(role))
    return [f"– {', '.join(map(_told, whats.items()))}: {why}" for why, whats in causes.items()]


def _about(result: Result, in_first: bool) -> tuple[str, list[str]]:
    """What cannot be tried, and in which role: a promise there, or the whole role, which has no other."""
    if result.name != "shape":
        return result.name, [result.role]
    return result.role if in_first else f"{result.role} in {result.dtype}", []


def _told(about: tuple[str, dict[str, None]]) -> str:
    what, roles = about
    return f"{what} [{', '.join(roles)}]" if roles else what

"""Verdicts on claims, for people: lines on a terminal, and one page that needs no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.claims.conduct import Result
from attnbench.report import html, template

PAGE = "claims.html"


def lines(result: Result) -> list[str]:
    """One claim as the terminal tells it: its verdict, then each number."""
    why = f" ({result.reason})" if result.reason else ""
    told = [f"{result.found.name}: {result.verdict}{why}; {result.found.pack.claim}"]
    if result.note:
        told.append(f"  quick: {result.note}")
    return told + [f"  {one.state:12} {one.what}: {one.measured} (expected {one.expected})" for one in result.findings]


def total(results: Sequence[Result]) -> str:
    """ "10 claims: 7 reproduced, 2 trend reproduced, 1 refuted"."""
    found = [result.verdict for result in results]
    counts = ", ".join(f"{found.count(word)} {word}" for word in dict.fromkeys(sorted(found, key=_rank)))
    return f"{len(found)} claim{'s' if len(found) != 1 else ''}: {counts}"


def write(results: Sequence[Result], folder: Path, *, quick: bool, environment: Mapping[str, Any]) -> Path:
    """Write the page into the folder and return it."""
    facts = {"results": [_shown(result, quick) for result in results], "environment": list(html.flat(environment))}
    total_ = total(results)
    text = template.filled("claims.html.jinja", folder=Path(__file__).parent, quick=quick, total=total_, **facts)
    page = folder / PAGE
    page.write_text(text, encoding="utf-8")
    return page


def command(result: Result, quick: bool) -> str:
    """What runs this pack again."""
    name = result.found.name if result.found.path.parent.name == "claims" else str(result.found.path)
    return f"attnbench claims {name}{' --quick' if quick else ''}"


def _rank(word: str) -> int:
    order = ("reproduced", "trend reproduced", "refuted", "not resolvable at this size", "not finished")
    return order.index(word)


def _shown(result: Result, quick: bool) -> dict[str, Any]:
    """What the template takes of one claim."""
    pack = result.found.pack
    return {
        "name": result.found.name,
        "claim": pack.claim,
        "source": pack.source,
        "shrunk": pack.shrunk,
        "note": result.note,
        "verdict": result.verdict,
        "class": result.verdict.partition(" at ")[0].replace(" ", "-"),
        "reason": result.reason,
        "cells": result.cells,
        "command": command(result, quick),
        "findings": result.findings,
        "n_held": sum(one.state == "holds" for one in result.findings),
        "seconds": f"{result.seconds:.0f}",
    }

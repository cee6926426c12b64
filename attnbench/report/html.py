"""The report as one page: self-contained, readable without a network, a script or a wide screen."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pandas import DataFrame

from attnbench.analyse.points import disturbed
from attnbench.report import template
from attnbench.report.answer import answer
from attnbench.report.settings import GOVERNING, Environments
from attnbench.report.tables import RULE, denominator, summary
from attnbench.report.writers import Table

LONG = 16  # rows from which a table is folded
MEASURED = ("time", "memory", "accuracy", "learning")


class Image(NamedTuple):
    """A picture as the page embeds it: a data address, so that no other file is needed."""

    section: str
    caption: str
    source: str


def image(name: str, caption: str, svg: Path) -> Image:
    """Embed a picture; its section is the part of its name that is one."""
    encoded = base64.b64encode(svg.read_bytes()).decode("ascii")
    return Image(_section(name), caption, f"data:image/svg+xml;base64,{encoded}")


def page(
    frame: DataFrame,
    tables: Iterable[Table],
    images: Iterable[Image],
    *,
    question: str,
    baseline: str,
    environments: Environments,
) -> str:
    """The whole page."""
    tables, images = list(tables), list(images)
    sections = [
        (name, [i for i in images if i.section == name], [t for t in tables if _section(t.name) == name])
        for name in (*MEASURED, "cost")
    ]
    return template.filled(
        "report.html.jinja",
        question=question or "What does each variant cost, and what does it learn?",
        baseline=baseline,
        compared=baseline in set(frame["label"]),
        denominator=denominator(frame),
        n_disturbed=int(disturbed(frame).sum()),
        rule=RULE,
        findings=answer(frame, baseline),
        counts=summary(frame).to_dict("records"),
        reasons=reasons(frame),
        named={table.name: table for table in tables},
        environment=list(_machines(environments)),
        sections=[section for section in sections if section[1] or section[2]],
        long=LONG,
    )


def reasons(frame: DataFrame) -> list[dict[str, Any]]:
    """Why cells are not ok: status, reason and number of cells, the most frequent first."""
    bad = frame.loc[frame["status"] != "ok", ["status", "reason"]].astype("object")
    bad = bad.fillna({"status": "pending", "reason": "no reason recorded"})
    counts = bad.groupby(["status", "reason"], sort=True).size().sort_values(ascending=False, kind="stable")
    return [{"status": status, "reason": reason, "cells": int(n)} for (status, reason), n in counts.items()]


def _machines(environments: Environments) -> Iterator[tuple[str, str]]:
    """Where each run was made, as lines; what the table of settings tells is left out."""
    for run, facts in environments.items():
        machine = {name: value for name, value in facts.items() if name not in GOVERNING}
        yield from flat(machine, f"{run}." if run else "")


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as lines of name and value: {"cpu": {"cores": 2}} gives ("cpu.cores", "2"); empty ones go."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)) and value:
            yield f"{prefix}{name}", ", ".join(map(str, value))
        elif value not in (None, "", [], ()):
            yield f"{prefix}{name}", str(value)


def _section(name: str) -> str:
    """The section a file name speaks of: "crossovers_time_B-2" is about time."""
    return next((part for part in name.split("_") if part in MEASURED), name)

"""What was shown, for people: lines on a terminal, and one page that needs no other file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attnbench.report import html, plots, template
from attnbench.theory import pictures
from attnbench.theory.rules import verdict
from attnbench.theory.statement import Curves, Maps
from attnbench.theory.statements import Result, name_of

PAGE = "theory.html"
LONG = 24  # where there are more numbers, those that pass are folded


def lines(result: Result) -> list[str]:
    """One statement as the terminal tells it: its verdict, then each number."""
    if result.told is None:
        return [f"{result.key} {name_of(result.key)}: {result.failure}"]
    told = [f"{result.key} {result.told.title}: {summary(result)}"]
    for finding in result.findings:
        told.append(f"  {verdict(finding):8} {finding.what}: {finding.measured} (expected {finding.expected})")
        if finding.reason:
            told.append(f"{'':11}because {finding.reason}")
    return told


def summary(result: Result) -> str:
    """How many numbers pass, differ or were not taken: "12 pass, 1 differs"; why it failed, where it did."""
    if result.told is None:
        return result.failure
    found = [verdict(finding) for finding in result.findings]
    counts = {word: found.count(word) for word in ("pass", "differs", "not run")}
    return ", ".join(f"{n} {_plural(word, n)}" for word, n in counts.items() if n) or "nothing measured"


def total(results: Sequence[Result]) -> str:
    """ "6 of 10 statements hold in every number", and how many numbers were not taken, where there are such."""
    n_left = sum(verdict(finding) == "not run" for result in results for finding in result.findings)
    told = f"{sum(result.holds for result in results)} of {len(results)} statements hold in every number"
    return f"{told} taken; {n_left} not taken" if n_left else told


def write(results: Sequence[Result], folder: Path, *, quick: bool, environment: Mapping[str, Any]) -> Path:
    """Write the page into the folder and return it."""
    facts = {"results": [_shown(result) for result in results], "environment": list(html.flat(environment))}
    text = template.filled("theory.html.jinja", folder=Path(__file__).parent, quick=quick, **facts)
    page = folder / PAGE
    page.write_text(text, encoding="utf-8")
    return page


def _shown(result: Result) -> dict[str, Any]:
    """What the template takes of one statement."""
    told, found = result.told, [(verdict(finding), finding) for finding in result.findings]
    folds = len(found) > LONG
    return {
        "key": result.key,
        "name": name_of(result.key),
        "title": told.title if told else name_of(result.key).capitalize(),
        "claim": told.claim if told else "",
        "failure": result.failure,
        "summary": summary(result),
        "whole": result.holds,
        "seconds": f"{result.seconds:.1f}",
        "told": [one for one in found if not (folds and one[0] == "pass")],
        "passed": [one for one in found if folds and one[0] == "pass"],
        "images": list(_images(result.key, told.shown.pictures)) if told else [],
    }


def _images(key: str, shown: Sequence[Curves | Maps]) -> Iterator[html.Image]:
    """The pictures of one statement, as the page embeds them."""
    with TemporaryDirectory(prefix="attnbench-theory-") as folder:
        for picture in shown:
            file = Path(folder) / f"{key}.svg"
            plots.save_as(pictures.figure(picture), file)
            yield html.image(picture.name, picture.title, file)


def _plural(word: str, n: int) -> str:
    return "differ" if word == "differs" and n > 1 else word

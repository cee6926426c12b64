"""The page of a trial, which stands beside the report of its run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from attnbench.analyse.tried import BASELINE, Tried
from attnbench.report import figures, html, plots, template, tried
from attnbench.report.tried import Command

PAGE = "try.html"
PICTURES = ("time", "time_ratio")


def write(found: Tried, following: Sequence[Command], folder: Path) -> Path:
    """Write the page into the folder and return it."""
    text = template.filled(
        "try.html.jinja",
        name=found.name,
        certificate=found.certificate,
        claim=tried.verdict(found),
        images=list(_images(found)),
        costs=tried.costs(found),
        crossovers=tried.crossovers(found),
        scores=tried.scores(found),
        troubles=tried.troubles(found),
        cautions=tried.cautions(found),
        following=following,
    )
    page = folder / PAGE
    page.write_text(text, encoding="utf-8")
    return page


def _images(found: Tried) -> Iterator[html.Image]:
    """Those of PICTURES that its costs give."""
    with TemporaryDirectory(prefix="attnbench-try-") as folder:
        for name, caption, figure in figures.pictures(found.costs, BASELINE):
            if name in PICTURES:
                stem = Path(folder) / name
                plots.save(figure, stem)
                yield html.image(name, caption, stem.with_name(f"{name}.svg"))

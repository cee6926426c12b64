"""The report of a run: tables, pictures, and one page that holds them all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from pandas import DataFrame

from attnbench.errors import RequestError
from attnbench.records import COLUMNS, Run, read, run_names
from attnbench.report import (
    between,
    beyond,
    fits,
    html,
    learning,
    matching,
    plots,
    sample_efficiency,
    settings,
    tables,
    writers,
)
from attnbench.report.figures import pictures
from attnbench.report.settings import Environments
from attnbench.run_folder import RunFolder

PAGE = "report.html"


def of_runs(runs: Sequence[str | Path], out: str | Path | None = None) -> tuple[Path, DataFrame]:
    """Write the report of a run into its folder, or of several runs side by side into the folder `out`.

    Returns the page and the cells that it shows. Cells of two runs are never averaged nor joined by a line; the
    baseline is that of the first. Raises RequestError when a folder holds no run, and when several runs have no `out`
    or one that holds a run itself.
    """
    if out is None and len(runs) != 1:
        raise RequestError(["the report of several runs needs a folder of its own: give --out DIR"])
    if out is not None and RunFolder(Path(out)).used:
        raise RequestError([f"{out}: holds a run; choose another folder for the report"])
    frame = read(*runs)
    about = [Run(Path(run)).environment for run in runs]
    questions = dict.fromkeys(facts.pop("question", "") for facts in about)
    baselines = [facts.pop("baseline", "") for facts in about]
    names = [settings.ALONE] if len(runs) == 1 else run_names(runs)
    environments = dict(zip(names, about, strict=True))
    folder = Path(runs[0] if out is None else out)
    folder.mkdir(parents=True, exist_ok=True)
    question = " · ".join(filter(None, questions))
    page = write(folder, frame, question=question, baseline=baselines[0], environments=environments)
    return page, frame


def write(run_dir: Path, frame: DataFrame, *, question: str, baseline: str, environments: Environments) -> Path:
    """Write RUN/tables, RUN/plots and RUN/report.html from the frame of `attnbench.read`; returns the page.

    Files of an earlier report are replaced, others stay. Everything is drawn up aside and moved into place at the end,
    so that a full disk (OSError) leaves the earlier report whole. baseline: a label. environments: by run.
    """
    frame = frame.reindex(columns=list(dict.fromkeys([*frame.columns, *COLUMNS])))
    with TemporaryDirectory(prefix=".report-", dir=run_dir) as draft:
        _draw_up(Path(draft), frame, question, baseline, environments)
        for part in sorted(Path(draft).rglob("*")):
            target = run_dir / part.relative_to(draft)
            target.mkdir(exist_ok=True) if part.is_dir() else part.replace(target)
    return run_dir / PAGE


def _draw_up(draft: Path, frame: DataFrame, question: str, baseline: str, environments: Environments) -> None:
    """Tables, plots and the page, in the folder `draft`."""
    for name in ("tables", "plots"):
        (draft / name).mkdir()
    made = [
        *tables.tables(frame, baseline),
        *learning.tables(frame, baseline),
        *matching.tables(frame, baseline),
        *beyond.tables(frame),
        *sample_efficiency.made(frame),
        *between.ratios(frame),
        *fits.tables(frame),
    ]
    made.append(settings.settings(frame, environments))
    for table in made:
        writers.write(table, draft / "tables")
    images = []
    for name, caption, figure in chain(pictures(frame, baseline), beyond.pictures(frame, baseline)):
        stem = draft / "plots" / name
        plots.save(figure, stem)
        images.append(html.image(name, caption, stem.with_name(f"{name}.svg")))
    text = html.page(frame, made, images, question=question, baseline=baseline, environments=environments)
    (draft / PAGE).write_text(text, encoding="utf-8")

"""The command `attnbench claims`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.commands import Debug
from attnbench.errors import RequestError
from attnbench.targets import seconds
from attnbench.wording import printable

if TYPE_CHECKING:
    from attnbench.claims.conduct import Conduct, Result
    from attnbench.claims.pack import Found
    from attnbench.execute.local import FreshProcesses


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Packs of experiments/claims, or files; default all of that folder."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds and steps, as each row says.")] = False,
    budget: Annotated[str | None, typer.Option(help='Begin no visit after so long, e.g. "30m".')] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the page, claims.html, and the runs.")] = Path(
        "results/claims"
    ),
    workers: Annotated[int | None, typer.Option(min=1, help="Trainings side by side.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Forget earlier runs of these packs.")] = False,
    debug: Debug = False,
) -> None:
    """Run published claims again.

    For each: the claim, what is expected, what is measured, and a verdict; one page at the end. What an earlier call
    measured is not measured again. Exit status 1 when a cell failed or is left to run; a claim refuted is an answer.

    Example: attnbench claims recall --quick --budget 10m
    """
    from attnbench.claims import conduct as conducts
    from attnbench.claims import page
    from attnbench.claims.pack import chosen
    from attnbench.execute.local import FreshProcesses
    from attnbench.measure.machine import environment

    packs, budget_s = chosen(names or []), seconds("--budget", budget)
    if out.exists() and not out.is_dir():
        raise RequestError([f"--out {out}: expected a folder, got a file"])
    conduct = conducts.Conduct(out, quick, overwrite, workers)
    done: list[Result] = []
    with FreshProcesses(training=True) as processes:
        _check(processes, packs, quick)
        out.mkdir(parents=True, exist_ok=True)
        try:
            done.extend(_each(processes, packs, conduct, budget_s, debug))
            print(page.total(done))
        finally:  # what was measured before an interruption is in the list
            if done:
                print(f"page: {page.write(done, out, quick=quick, environment=environment())}")
    raise typer.Exit(0 if all(result.as_asked for result in done) else 1)


def _check(processes: FreshProcesses, packs: Sequence[Found], quick: bool) -> None:
    """Raise RequestError with the mistakes of all packs before any of them runs."""
    from attnbench.claims.conduct import check

    mistakes = list[str]()
    for found in packs:
        try:
            check(processes, found, quick)
        except RequestError as error:
            mistakes += error.mistakes
    if mistakes:
        raise RequestError(mistakes)


def _each(
    processes: FreshProcesses, packs: Sequence[Found], conduct: Conduct, budget_s: float | None, debug: bool
) -> Iterator[Result]:
    """Carry out one pack after the other, and say of each at once what was found."""
    from attnbench.claims import page
    from attnbench.claims.conduct import carry_out, not_run, standing
    from attnbench.progress import ShownProgress

    began_s = time.monotonic()
    for found in packs:
        left_s = None if budget_s is None else budget_s - (time.monotonic() - began_s)
        if left_s is not None and left_s <= 0:
            result = standing(found, conduct, "the budget is spent")
        else:
            with ShownProgress(debug=debug) as progress:
                progress.console.print(found.name, markup=False)
                try:
                    result = carry_out(processes, found, conduct, left_s, progress)
                except RequestError as error:  # its folder holds another run, say; the packs behind it still run
                    result = not_run(found, "; ".join(error.mistakes))
        print("\n".join(map(printable, page.lines(result))), flush=True)
        yield result

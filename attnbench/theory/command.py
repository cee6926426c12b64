"""The command `attnbench theory`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from attnbench.commands import Debug
from attnbench.errors import RequestError
from attnbench.theory import statements
from attnbench.wording import printable

KNOWN = ", ".join(f"{key} {statements.name_of(key)}" for key in statements.STATEMENTS)


def theory(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help=f"By key or name; default all. There are {KNOWN}.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Leave long training out: 3 minutes, not 20.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the page, theory.html.")] = Path(
        "results/theory"
    ),
    debug: Debug = False,
) -> None:
    """Show statements of theory about Transformers by numbers.

    For each: the claim, what it predicts, what is measured here, and whether they agree; one page at the end. A number
    that differs for a documented reason is told with it. Exit status 1 when a statement could not be shown, or when a
    number differs and no reason is known.

    Example: attnbench theory saturation C5 --quick
    """
    from attnbench.measure.machine import environment
    from attnbench.theory import page

    keys = statements.chosen(names or [])
    if out.exists() and not out.is_dir():
        raise RequestError([f"--out {out}: expected a folder, got a file"])
    out.mkdir(parents=True, exist_ok=True)
    done: list[statements.Result] = []
    try:
        done.extend(_each(keys, quick, debug))
        print(page.total(done))
    finally:  # what was shown before an interruption is in the list
        if done:
            print(f"page: {page.write(done, out, quick=quick, environment=environment())}")
    raise typer.Exit(0 if all(result.as_asked for result in done) else 1)


def _each(keys: Sequence[str], quick: bool, debug: bool) -> Iterator[statements.Result]:
    """Show one statement after the other, and say of each at once what was found."""
    from attnbench.execute.local import FreshProcesses
    from attnbench.theory import page

    with FreshProcesses(training=not quick) as processes:
        processes.warm_up()
        for i, key in enumerate(keys, start=1):
            with _shown(f"{key} {statements.name_of(key)} ({i} of {len(keys)})"):
                result = statements.show_apart(processes, key, quick=quick)
            print("\n".join(map(printable, page.lines(result))), flush=True)
            if debug and result.detail:
                print(result.detail, file=sys.stderr)
            yield result


@contextmanager
def _shown(what: str) -> Iterator[None]:
    """What is being shown, on standard error, with the time that it takes so far; one line without a terminal."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.print(what, markup=False)
        yield
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(what, total=None)
        yield

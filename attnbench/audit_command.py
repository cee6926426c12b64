"""The command that audits claims. `cli` gives it to the command line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnbench.commands import Debug
from attnbench.errors import RequestError
from attnbench.targets import QUESTION_TIMEOUT_S, targets

if TYPE_CHECKING:
    from attnbench.analyse.audited import Audited
    from attnbench.execute.local import FreshProcesses

Plugins = Annotated[list[Path] | None, typer.Option("--plugin", metavar="FILE", help="A plugin file; may be repeated.")]


def audit(
    target: Annotated[
        str | None, typer.Argument(metavar="NAME|FILE[:CLASS]", help="A variant's name, or a plugin file.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Audit every variant, and write table 1 into --out.")] = False,
    plugin: Plugins = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the runs here, and the tables of --all; default nowhere.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Measure whether a variant costs what it claims, in time and memory, in T and in d.

    A claim is an upper bound: refuted when the cost grows faster than it says, confirmed when it grows so, not
    resolvable when these sizes do not tell. Up to two minutes for each variant. Exit status 1 when a claim is refuted,
    or when a variant breaks its promises and is not measured.

    Example: attnbench audit my_attention.py:BlockMean
    """
    from attnbench.execute.local import FreshProcesses

    if (target is None) != every:
        raise RequestError(["give a variant's name or a plugin file, or --all"])
    found: list[Audited | None] = []
    with ExitStack() as stack:
        folder = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attnbench-audit-")))
        processes = stack.enter_context(FreshProcesses())
        try:
            found.extend(_audits(processes, target, plugin or [], folder, debug=debug))
        finally:  # what was audited before an interruption is in the list
            if every and found:
                _show_table([one for one in found if one], out)
    raise typer.Exit(1 if any(one is None or one.wrong for one in found) else 0)


def _show_table(found: list[Audited], out: Path | None) -> None:
    """Print table 1, or write it into a folder, where one is given."""
    from attnbench.report import complexity, writers

    table = complexity.table(found)
    if out is None:
        print(writers.markdown(table), end="")
        return
    writers.write(table, out)
    print(f"tables: {', '.join(str(out / f'{table.name}{suffix}') for suffix in writers.FORMATS)}")


def _audits(
    processes: FreshProcesses, target: str | None, plugins: list[Path], folder: Path, *, debug: bool
) -> Iterator[Audited | None]:
    """Audit what was named, one after the other, and say of each at once what was found.

    One that cannot be read is None among all of them, and told in a line. Raises RequestError for one that was named.
    """
    from attnbench import audit as auditing
    from attnbench.progress import ShownProgress
    from attnbench.report import complexity

    names, sources = targets(processes, target, plugins, QUESTION_TIMEOUT_S)
    if taken := [
        f"{folder / name}: holds a run already; give --out another folder" for name in names if (folder / name).exists()
    ]:
        raise RequestError(taken)
    for name in names:
        try:
            about = auditing.claimed(processes, sources[name])
        except RequestError as error:
            if target is not None:
                raise
            print(f"{name}: not measured: {'; '.join(error.mistakes)}", flush=True)
            yield None
            continue
        one = auditing.audit(processes, sources[name], about, folder / name, lambda: ShownProgress(debug=debug))
        print("\n".join(complexity.lines(one)), flush=True)
        yield one

"""`attnbench check`: a page for each variant that is asked for, or with --all a line, and what is red below it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench import certificate_page as page
from attnbench.certificate import Issued
from attnbench.commands import AsJson, Debug, print_grid
from attnbench.errors import RequestError
from attnbench.targets import QUESTION_TIMEOUT_S, seconds, targets
from attnbench.wording import printable

if TYPE_CHECKING:
    from attnbench.execute.local import FreshProcesses
    from attnbench.registry import Source

DTYPES = ("float64", "float32", "float16", "bfloat16")


def check(
    target: Annotated[
        str | None, typer.Argument(metavar="NAME|FILE[:CLASS]", help="A variant's name, or a plugin file.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check every installed variant, a line each.")] = False,
    plugin: Annotated[
        list[Path] | None, typer.Option("--plugin", metavar="FILE", help="A plugin file; may be repeated.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Try this dtype alone; default float64, float32 and bfloat16.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to try it.")] = "cpu",
    timeout: Annotated[str, typer.Option(help="Limit of loading, and of each variant.")] = "600s",
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Try the promises that every variant keeps, and print a certificate.

    Each broken one is named, with the input, the error and the bound. Exit status 1 whenever anything is red, with
    --json too: a broken promise, or a variant that gives no certificate. With --all, a variant that cannot run on the
    device at all is not red; --json gives the reason as "untried".

    Example: attnbench check my_attention.py:BlockMean
    """
    from attnbench.execute.local import FreshProcesses

    if (target is None) != every:
        raise RequestError(["give a variant's name or a plugin file, or --all"])
    if dtype is not None and dtype not in DTYPES:
        raise RequestError([f"--dtype {dtype}: expected {', '.join(DTYPES)}"])
    timeout_s, begun = seconds("--timeout", timeout) or 0.0, time.monotonic()
    checks = []
    with FreshProcesses() as processes:
        names, sources = targets(processes, target, plugin or [], min(timeout_s, QUESTION_TIMEOUT_S))
        for one in _checked(processes, [sources[name] for name in names], dtype, device, timeout_s):
            checks.append(one)
            if not as_json:
                one.show(in_a_line=every)
    n_red = sum(one.is_red(needed=not every) for one in checks)
    if as_json:
        found = [one.data() for one in checks]
        print(json.dumps(found if every or len(found) > 1 else found[0], indent=2))
    elif every:
        print(f"{len(names)} variants in {time.monotonic() - begun:.0f} s, {n_red} red")
    raise typer.Exit(1 if n_red else 0)


@dataclass(frozen=True)
class _Check:
    """How the check of one variant ended: its certificate, or why its process gave none."""

    variant: str
    found: Issued | str
    seconds: float

    def is_red(self, *, needed: bool) -> bool:
        """Whether something is wrong; where the variant is needed here, also that nothing could be tried."""
        return isinstance(self.found, str) or not (self.found.ok or (self.found.refusal is not None and not needed))

    def data(self) -> dict[str, Any]:
        """What --json prints."""
        if isinstance(self.found, str):
            return {"variant": self.variant, "error": self.found, "green": False}
        told = {"green": self.found.ok, "untried": self.found.refusal, "seconds": self.seconds}
        return asdict(self.found) | told

    def show(self, *, in_a_line: bool) -> None:
        """Print it."""
        if isinstance(self.found, str):
            lines = [f"{self.variant}: {self.found}"]
        elif in_a_line:
            lines = [self._line(self.found), *(f"        {text}" for text in self.found.breaches())]
        else:
            print("\n".join(page.head(self.found)))
            print_grid(["promise", *page.roles(self.found)], page.table(self.found))
            lines = [*self.found.breaches(), *page.reasons(self.found), self.found.verdict()]
        print("\n".join(map(printable, lines)), flush=True)

    def _line(self, found: Issued) -> str:
        if found.refusal is not None:
            return f"–       {found.verdict()}"
        return f"{'green ' if found.ok else 'red   '}  {found.verdict()}, {self.seconds:.1f} s"


def _checked(
    processes: FreshProcesses, chosen: list[Source], dtype: str | None, device: str, timeout_s: float
) -> Iterator[_Check]:
    """Each variant as its check ends; two at a time on a CPU."""
    from attnbench.execute.local import Job

    jobs = [Job("attnbench.execute.certified:issue", (one, dtype, device), timeout_s, one.name) for one in chosen]
    processes.warm_up()
    for job, outcome in processes.run(jobs, at_once=2 if device == "cpu" else 1):
        found = outcome.value if outcome.status == "ok" else f"{outcome.status}: {outcome.reason}"
        yield _Check(job.tag, found, outcome.seconds)

"""`attnbench check`: the promises of one variant on a page, or of all in a line each."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench import certificate
from attnbench.commands import AsJson, Debug, print_grid
from attnbench.errors import RequestError
from attnbench.targets import QUESTION_TIMEOUT_S, seconds, targets

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

    Each broken one is named, with the input, the error and the bound. Exit status 1 when one is red. With --all, a
    variant that cannot run on the device at all is not red.

    Example: attnbench check my_attention.py:BlockMean
    """
    from attnbench.execute.local import FreshProcesses

    if (target is None) != every:
        raise RequestError(["give a variant's name or a plugin file, or --all"])
    if dtype is not None and dtype not in DTYPES:
        raise RequestError([f"--dtype {dtype}: expected {', '.join(DTYPES)}"])
    timeout_s, begun = seconds("--timeout", timeout) or 0.0, time.monotonic()
    with FreshProcesses() as processes:
        names, sources = targets(processes, target, plugin or [], min(timeout_s, QUESTION_TIMEOUT_S))
        chosen = [sources[name] for name in names]
        green = _tried(processes, chosen, (dtype, device), timeout_s, every=every, as_json=as_json)
    if every and not as_json:
        print(f"{len(names)} variants in {time.monotonic() - begun:.0f} s, {green.count(False)} red")
    raise typer.Exit(0 if all(green) else 1)


def _tried(
    processes: FreshProcesses,
    chosen: list[Source],
    asked: tuple[Any, ...],
    timeout_s: float,
    *,
    every: bool,
    as_json: bool,
) -> list[bool]:
    """Which are green, as they end; two at a time on a CPU. What was found is printed."""
    from attnbench.execute.local import Job

    jobs = [Job("attnbench.execute.certified:certificate", (one, *asked), timeout_s, one.name) for one in chosen]
    green, told = list[bool](), list[dict[str, Any]]()
    processes.warm_up()
    for job, outcome in processes.run(jobs, at_once=2 if asked[-1] == "cpu" else 1):
        if outcome.status != "ok":
            green.append(False)
            told.append({"variant": job.tag, "error": f"{outcome.status}: {outcome.reason}"})
            if not as_json:
                print(f"{job.tag}: {outcome.status}: {outcome.reason}", flush=True)
            continue
        found = outcome.value
        green.append(certificate.is_green(found) or (every and certificate.refusal(found) is not None))
        told.append(found | {"green": certificate.is_green(found), "seconds": outcome.seconds})
        if not as_json:
            _show(found, outcome.seconds, every=every)
    if as_json:
        print(json.dumps(told if every or len(told) > 1 else told[0], indent=2))
    return green


def _show(found: dict[str, Any], took_s: float, *, every: bool) -> None:
    if every:
        lines = [certificate.line(found, took_s), *(f"        {text}" for text in certificate.broken_lines(found))]
        print("\n".join(lines), flush=True)
        return
    print("\n".join(certificate.head(found)))
    print_grid(["promise", *certificate.roles(found)], certificate.table(found))
    print("\n".join([*certificate.broken_lines(found), *certificate.reasons(found), certificate.verdict(found)]))

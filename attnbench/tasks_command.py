"""The command that lists, shows and audits tasks. `cli` gives it to the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench import commands, registry
from attnbench.commands import AsJson, Debug
from attnbench.targets import ask, sources_with

if TYPE_CHECKING:
    from attnbench.execute.local import FreshProcesses

AUDIT_TIMEOUT_S = 600.0  # of one task
HEADS = ("task", "T", "solver", "ceiling", "chance", "floor", "from", "best guess", "overlap", "fingerprint", "verdict")
Plugins = Annotated[list[Path] | None, typer.Option("--plugin", metavar="FILE", help="A plugin file; may be repeated.")]


def tasks(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show one task whole.")] = None,
    audit: Annotated[bool, typer.Option("--audit", help="Hold tasks to what they say of themselves.")] = False,
    n: Annotated[int, typer.Option("--n", min=100, metavar="N", help="Sequences of each sample of an audit.")] = 10_000,
    plugin: Plugins = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the tasks, show one whole, or audit them.

    With NAME: options, chance, floor, ceiling, smallest T. With --audit, of one or of all: whether an exact solver
    finds the labels, what simple guesses get beside the stated floor, whether splits share sequences, and the
    fingerprint of the data. Exit status 1 when a task does not hold what it says.

    Example: attnbench tasks distance
    """
    if not (plugin or name or audit):
        commands.show_sources(registry.installed(registry.TASKS), [], as_json)
        return
    from attnbench.execute.local import FreshProcesses

    with FreshProcesses() as processes:
        sources, broken = sources_with(processes, plugin or [], registry.TASKS)
        if name is not None:
            registry.find(name, sources, "task", broken)
        if audit:
            found = [_audit(processes, one, sources, n) for one in ([name] if name else sources)]
            _show_audits(found, [] if name else broken, as_json=as_json)
            raise typer.Exit(1 if (broken and not name) or any(one["problems"] for one in found) else 0)
        if name is None:
            commands.show_sources(sources, broken, as_json)
            return
        commands.show_facts(ask(processes, "task_profile", name, sources), as_json)


def _audit(processes: FreshProcesses, name: str, sources: Mapping[str, registry.Source], n: int) -> dict[str, Any]:
    """What the audit of one task found; one that breaks its process has a problem too, and harms no other."""
    from attnbench.errors import RequestError

    try:
        facts: dict[str, Any] = ask(
            processes, "task_audit", name, sources, n, 0, module="task_audits", timeout_s=AUDIT_TIMEOUT_S
        )
    except RequestError as error:
        return {"task": name, "problems": error.mistakes}
    return facts


def _show_audits(found: Sequence[Mapping[str, Any]], broken: Sequence[str], *, as_json: bool) -> None:
    """A table of all tasks, what each guess gets, then every problem."""
    if as_json:
        print(json.dumps({"found": found, "broken": broken}, indent=2))
        return
    commands.print_grid(HEADS, [_row(one) for one in found])
    known = [one for one in found if one.get("baselines")]
    names = list(dict.fromkeys(name for one in known for name in one["baselines"]))
    if known:
        shares = [[_share(one["baselines"].get(name)) for name in names] for one in known]
        commands.print_grid(["guess", *names], [[one["task"], *row] for one, row in zip(known, shares, strict=True)])
    for one in found:
        for problem in one["problems"]:
            print(f"{one['task']}: {problem}")
        if "bag" in one.get("baselines", ()) and "bag" not in one["held"]:
            print(f"{one['task']}: its tokens tell the answers in any order, so its floor is not held to the guess bag")
    for line in broken:
        print(f"broken: {line}")


def _row(one: Mapping[str, Any]) -> list[str]:
    """One task's line of the table."""
    verdict = "holds" if not one["problems"] else f"{len(one['problems'])} wrong"
    if not one.get("baselines"):
        return [one["task"], *["–"] * (len(HEADS) - 2), verdict]
    best = max(one["held"], key=lambda name: one["baselines"][name])
    told = [str(one["T"]), *(_share(one[key]) for key in ("solver", "ceiling", "chance", "floor")), one["floor_from"]]
    told += [f"{best} {_share(one['baselines'][best])}", _share(one["overlap"]), one["fingerprint"][:8]]
    return [one["task"], *told, verdict]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}".rstrip("0").rstrip(".")

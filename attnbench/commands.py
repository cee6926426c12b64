"""Commands that a person calls by hand: a picture, a table, a new plugin. `cli` gives them to the command line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as Grid

from attnbench.errors import RequestError

if TYPE_CHECKING:
    from attnbench.registry import Source
    from attnbench.report.writers import Table

UNIT = re.compile("_bytes$|(_flops_per|_bytes_per)?_s$")  # at the end of a name
Debug = Annotated[bool, typer.Option("--debug", help="Add tracebacks to errors.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Where = Annotated[str | None, typer.Option(metavar="CONDITION", help='Which cells, e.g. "d_model == 64 and T > 128".')]


def plot(
    run: RunFolder,
    x: Annotated[str, typer.Option(metavar="COLUMN", help="The column along the horizontal axis.")],
    y: Annotated[str, typer.Option(metavar="COLUMN", help="Any column of numbers.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="A file that ends in .svg, .png or .pdf.")],
    hue: Annotated[str, typer.Option(metavar="COLUMN", help="One line per value of it.")] = "variant",
    facet: Annotated[str | None, typer.Option(metavar="COLUMN", help="One panel per value of it.")] = None,
    where: Where = None,
    ratio_to: Annotated[str | None, typer.Option(metavar="VALUE", help="Divide by the line of this hue.")] = None,
    debug: Debug = False,
) -> None:
    """Draw one column of a run over another.

    Several cells at one point give their median; what is missing is counted under the figure.

    Example: attnbench plot my_run --x T --y time_s --facet d_model --ratio-to fused -o ratio.svg
    """
    from attnbench.records import read
    from attnbench.report import chosen, plots

    file = _writable(out, plots.FORMATS)
    figure = chosen.figure(read(run), x=x, y=y, hue=hue, facet=facet, where=where, ratio_to=ratio_to)
    plots.save_as(figure, file)
    print(f"plot: {file}")


def table(
    run: RunFolder,
    rows: Annotated[str, typer.Option(metavar="COLUMN", help="One row per value of it.")],
    columns: Annotated[str, typer.Option(metavar="COLUMN", help="One column per value of it.")],
    value: Annotated[str, typer.Option(metavar="COLUMN", help="Any column of numbers.")],
    where: Where = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="A file that ends in .csv (bare numbers), .md or .tex."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Spread one column of a run over two others.

    Several cells at one place give their median; a hole shows why it is one.

    Example: attnbench table my_run --rows variant --columns T --value time_s --where "d_model == 64"
    """
    from attnbench.records import read
    from attnbench.report import chosen, writers

    file = _writable(out, writers.FORMATS) if out else None
    made = chosen.table(read(run), rows=rows, columns=columns, value=value, where=where)
    if file is None:
        show(made)
        return
    writers.write_as(made, file)
    print(f"table: {file}")


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The variant's name, a Python identifier: block_mean.")],
    package: Annotated[bool, typer.Option("--package", help="A package to install and publish.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where; default here, a package in ./NAME.")] = None,
    debug: Debug = False,
) -> None:
    """Write a plugin file and its test, ready to be changed.

    What is written passes the check and its own test as it is. No file is overwritten.

    Example: attnbench new block_mean
    """
    from attnbench import new as scaffold

    folder = out or Path(name if package else ".")
    files = scaffold.write(name, folder, package=package)
    for file in files:
        print(f"wrote {file}")
    print(f"next: attnbench check {files[0]}\n      pytest {files[1]}\n      attnbench try {files[0]}")
    if package:
        print(f"      pip install -e {folder}")


def doctor(as_json: AsJson = False, debug: Debug = False) -> None:
    """Say what this machine is, and how well it measures.

    Machine, torch, optional packages with the reason when they are unusable, the clock, the cost of a visit, and the
    most that products and a copy reach here.

    Example: attnbench doctor
    """
    from attnbench.execute.doctor import examine
    from attnbench.execute.local import FreshProcesses

    with FreshProcesses() as processes:
        facts = examine(processes)
    print(json.dumps(facts, indent=2) if as_json else "\n".join(_lines(facts)))


def show_abilities(found: Sequence[Mapping[str, Any]], broken: Sequence[str], *, as_json: bool) -> None:
    """Print what variants can do: a table, then every reason why one cannot."""
    if as_json:
        print(json.dumps({"found": found, "broken": broken}, indent=2))
        return
    rows = [[one["name"], *_marks(one)] for one in found]
    print_grid(["variant", "causal", "bidirectional", "cross", "decoding", "cpu", "cuda"], rows)
    print("a role is served with key masks of this kind: any subset, right padding, none; –: not served")
    for one in found:
        for told, reason in _reasons(one):
            print(f"{one['name']} {told}: {reason}")
    for line in broken:
        print(f"broken: {line}")


def _marks(one: Mapping[str, Any]) -> list[str]:
    """One variant's line in the table."""
    kinds = {
        role: next((kind for kind in ("any", "right") if masks[kind] is None), "none")
        for role, masks in one["masks"].items()
    }
    decodes = ", ".join(role for role, reason in one["decoding"].items() if reason is None)
    devices = ["–" if reason else "yes" for reason in one["devices"].values()]
    return [*(kinds.get(role, "–") for role in one["roles"]), decodes or "–", *devices]


def _reasons(one: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """What a variant cannot do, and why; a reason that all its roles share is told once."""
    causes: dict[str, list[str]] = {}
    told = [(role, reason) for role, reason in one["roles"].items()]
    told += [(f"{role} with {kind} mask", masks[kind]) for role, masks in one["masks"].items() for kind in masks]
    told += [(f"{role} decoding", reason) for role, reason in one["decoding"].items() if role != "bidirectional"]
    told += [(device, reason) for device, reason in one["devices"].items() if one["masks"]]
    for what, reason in told:
        if reason is not None:
            causes.setdefault(reason, []).append(what)
    return [(", ".join(whats), reason) for reason, whats in causes.items()]


def show_sources(sources: dict[str, Source], broken: list[str], as_json: bool) -> None:
    """Print names with where they come from, and what does not load."""
    rows = [{"name": source.name, "origin": source.origin, "target": source.target} for source in sources.values()]
    if as_json:
        print(json.dumps({"found": rows, "broken": broken}, indent=2))
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        print(f"{row['name']:{width}}  {row['target']}  ({row['origin']})")
    for line in broken:
        print(f"broken: {line}")


def show_facts(facts: dict[str, Any], as_json: bool) -> None:
    """Print what is known of one variant or task."""
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for key, value in facts.items():
        if isinstance(value, dict):
            print(f"{key}:")
            for name, text in value.items():
                print(f"  {name}: {'supported' if key in ('roles', 'devices') and text is None else text}")
        elif value is not None:
            print(f"{key}: {value}")


def show(table: Table) -> None:
    """Print a table with its title and its note."""
    print(table.title)
    head, *rows = table.rows
    print_grid(head, rows)
    if table.note:
        print(table.note)


def print_grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """As wide as it is; in a terminal, as wide as that."""
    grid = Grid(*heads)
    for row in rows:
        grid.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 10_000).print(grid, markup=False)


def _lines(facts: Mapping[str, Any]) -> list[str]:
    """Nested facts as a person reads them, one per line; empty ones go."""
    told = []
    for key, value in facts.items():
        if isinstance(value, Mapping):
            told += [f"{key}:", *(f"  {line}" for line in _lines(value))] if value else []
        elif value is not None:
            told.append(f"{UNIT.sub('', key)}: {_said(key, value)}")
    return told


def _said(key: str, value: Any) -> str:
    """One fact with its unit, by the end of its name."""
    from attnbench.report import words

    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, str):
        return value
    if key.endswith("_per_s"):
        return words.rate(value, "FLOP/s" if "flops" in key else "B/s")
    if key.endswith("_s"):
        return words.scaled(value, words.TIME_UNITS)
    return words.scaled(value, words.BYTE_UNITS) if key.endswith("_bytes") else str(value)


def _writable(file: Path, suffixes: Iterable[str]) -> Path:
    """A file that can be written in the format its suffix names. Raises RequestError."""
    known = list(suffixes)
    if file.suffix not in known:
        raise RequestError([f"{file}: expected a name that ends in {', '.join(known)}"])
    if not file.parent.is_dir():
        raise RequestError([f"{file.parent}: no such folder"])
    return file

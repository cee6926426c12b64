"""Print how fast our variants are beside public implementations: `make peers`, or `python tests/peers --help`."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import growth
import speed
import torch
from matches import Rival
from rivals import RIVALS

from attnbench.measure.machine import environment

QUICK_LENGTHS = (128, 256)
GROWTH = [
    f"Time per token at the longer T by that at the shorter one (wanted: at most {growth.WORST_GROWTH}), slope of peak",
    f"memory in T (wanted: 1 ± {growth.SLOPE_OFF}), and share of this machine's peak of products at",
    f"T = {growth.PEAK_T}, d_model = {growth.PEAK_D}.",
]


def main() -> None:
    """Time what is asked for; print as it comes, and write all of it to a file where one is named."""
    given = arguments()
    warnings.simplefilter("ignore")  # of packages that are not ours
    chosen = [rival for rival in RIVALS if given.only in rival.name]
    told = [*head(given), *compared(chosen, given), *grown(given)]
    if given.output:
        given.output.write_text("\n".join(told) + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/peers", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="those with this in variant/package/name")
    parser.add_argument("--T", type=int, nargs="+", default=list(speed.LENGTHS), help="lengths")
    parser.add_argument("--threads", type=int, nargs="+", default=list(speed.THREADS))
    parser.add_argument("--minutes", type=float, default=11.0, help="for everything")
    parser.add_argument("--quick", action="store_true", help="tiny and inexact: shows that everything runs")
    parser.add_argument("-o", "--output", type=Path, help="a file for the same as markdown")
    given = parser.parse_args()
    if given.quick:
        given.T, given.minutes = list(QUICK_LENGTHS), min(given.minutes, 0.5)
    return given


def head(given: argparse.Namespace) -> list[str]:
    """What was asked for, and where it ran."""
    facts, command = environment(), "python tests/peers" + ("" if not given.only else f" --only {given.only}")
    where = f"{facts['processor']}, {facts['cores_usable']} cores, Python {facts['python']}, torch {torch.__version__}"
    lines = ["# Beside public implementations", "", f"`{command}` on {where}.", ""]
    lines += [
        "Least times of interleaved rounds, CPU time being of all threads; B = 1, d_model = 256, 4 heads, float32.",
        "The ratio is ours by theirs, the median over rounds; a question mark says that its interval holds the target.",
        "",
    ]
    return say(lines)


def compared(chosen: list[Rival], given: argparse.Namespace) -> list[str]:
    """The table of rivals."""
    plan = speed.Plan(lengths=given.T, threads=given.threads, minutes=0.8 * given.minutes)
    lines = say(table_head(speed.HEAD))
    for row in speed.rows(chosen, plan):
        lines += say([table_line(speed.cells(row))])
    found = speed.notes(chosen)
    return lines + say(["", *(f"- {note}" for note in found), ""])


def grown(given: argparse.Namespace) -> list[str]:
    """The table of variants that claim linear time."""
    names = [name for name in growth.linear_time() if given.only in name] if "/" not in given.only else []
    if not names:
        return []
    short, long = QUICK_LENGTHS if given.quick else (growth.SHORT, growth.LONG)
    title = f"## Growth of linear-time variants, forward and backward of a layer, T = {short} to {long}, one thread"
    lines = say([title, "", *GROWTH, "", *table_head(growth.HEAD)])
    for row in growth.rows(names, short, long, 60 * 0.2 * given.minutes / len(names) / 3):
        lines += say([table_line(growth.cells(row))])
    return lines


def table_head(names: tuple[str, ...]) -> list[str]:
    return [table_line(list(names)), table_line(["---"] * len(names))]


def table_line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def say(lines: list[str]) -> list[str]:
    """Print lines at once, and return them."""
    for line in lines:
        print(line, flush=True)
    return lines


if __name__ == "__main__":
    main()

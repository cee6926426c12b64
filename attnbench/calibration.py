"""Measure the instrument itself, on this machine: `python -m attnbench.calibration [--quick] [-o FILE]`.

Prints a table of what attnbench's times, verdicts, peaks, intervals and fits are worth, idle and beside a process that
keeps one core busy. Waits while the machine is not quiet, and says "not run" where that was in vain.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.calibrate import agreement, memory, synthetic, verdicts
from attnbench.calibrate.rows import Patience, Row, measured, table_lines
from attnbench.calibrate.surroundings import Watch, busy_neighbour
from attnbench.measure.machine import environment

HEADS = ("what", "idle", "with a busy neighbour", "target", "met")
COMMAND = "python -m attnbench.calibration"
QUICK_LIMIT_S = 10.0


@dataclass(frozen=True)
class Scale:
    """How much is measured: counts, lengths, durations, and what a parent holds; see the rows that take them."""

    n_null: int = 20
    n_power: int = 20
    n_power_busy: int = 6
    durations_s: tuple[float, ...] = tuple(agreement.DURATIONS_S)
    n_pairs: int = 5
    least_s: float = 0.3
    long_T: int = 4096
    held_bytes: int = 2**30
    formula_T: tuple[int, ...] = (512, 1024, 2048)
    n_runs: int = 200
    n_trials: int = 200
    cost_T: tuple[int, ...] = (64, 128, 256, 512)


QUICK = Scale(
    n_null=2,
    n_power=1,
    n_power_busy=1,
    durations_s=(50e-6, 5e-3),
    n_pairs=3,
    least_s=0.1,
    long_T=1024,
    held_bytes=2**28,
    formula_T=(512, 1024),
    n_runs=100,
    n_trials=20,
    cost_T=(64,),
)


def rows(scale: Scale) -> list[Row[Any]]:
    """All rows, those without a timer first."""
    return [
        *(synthetic.coverage(n_visits, scale.n_runs) for n_visits in (3, 5, 10)),
        synthetic.recovery(scale.n_trials),
        verdicts.null_test(scale.n_null),
        verdicts.power_test(scale.n_power, scale.n_power_busy),
        *(agreement.agreement(target_s, scale.n_pairs, scale.least_s) for target_s in scale.durations_s),
        memory.order(scale.long_T),
        memory.parent(scale.held_bytes),
        memory.formula(scale.formula_T),
        agreement.cost_of_visits(scale.cost_T),
    ]


def page(lines: Iterable[Sequence[str]], facts: Mapping[str, Any], command: str = COMMAND) -> str:
    """The table as markdown, the command above it, machine and versions below. facts: of `machine.environment`."""
    table = [HEADS, ("---",) * len(HEADS), *lines]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    machine = (
        f"{facts['processor']}, {facts['cores_usable']} of {facts['cores']} cores, "
        f"{facts['memory_bytes'] / 2**30:.0f} GiB, {facts['system']}; Python {facts['python']}, {versions}"
    )
    return "\n".join(
        [
            "# Calibration",
            "",
            "What attnbench is worth as an instrument, by its own account. `make calibration` writes this page:",
            "",
            f"    {command}",
            "",
            "A busy neighbour keeps one core busy. Targets hold for both columns unless they say idle. Rows were taken",
            "while the machine did nothing else; one for which it was never quiet is not run.",
            "",
            *("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in table),
            "",
            f"Machine: {machine}.",
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and perhaps write the page. Returns 0 when every target is met, else 1."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Measure attnbench itself, on a quiet machine.")
    parser.add_argument("--quick", action="store_true", help="less of everything, in two minutes: a try, not a result")
    parser.add_argument("-o", dest="file", type=Path, help="write the page into FILE too")
    asked = parser.parse_args(arguments)
    if asked.file and not asked.file.parent.is_dir():
        parser.error(f"-o {asked.file}: no such folder")
    lines = _lines(rows(QUICK if asked.quick else Scale()), QUICK_LIMIT_S if asked.quick else None)
    text = page(lines, environment(), f"{COMMAND}{' --quick' if asked.quick else ''}")
    print(text)
    if asked.file:
        asked.file.write_text(text, encoding="utf-8")
    return 0 if all(line[-1] == "yes" for line in lines) else 1


def _lines(wanted: Iterable[Row[Any]], limit_s: float | None) -> list[tuple[str, ...]]:
    """Measure row after row; each is told on standard error as it ends."""
    watch, lines = Watch(), list[tuple[str, ...]]()
    for row in wanted:
        patience = Patience(watch.quiet) if limit_s is None else Patience(watch.quiet, limit_s)
        for line in table_lines(row, measured(row, patience, busy_neighbour)):
            print("; ".join(line), file=sys.stderr, flush=True)
            lines.append(line)
    return lines


if __name__ == "__main__":
    sys.exit(main())

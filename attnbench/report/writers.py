"""Tables as files: csv with bare numbers, md and tex as people read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pandas import DataFrame

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
LATEX |= {character: f"\\{character}" for character in "&%$#_{}"}
LATEX |= {"µ": r"\textmu{}", "≈": r"$\approx$", "²": r"$^2$", "÷": r"$\div$", "×": r"$\times$", "…": r"\dots{}"}
LATEX |= {"–": "--", "≥": r"$\geq$", "≤": r"$\leq$", "·": r"$\cdot$", "<": r"$<$", "\n": " ", "[": "{[}", "]": "{]}"}


@dataclass(frozen=True)
class Table:
    """A table under its file name: `shown` holds text for readers, `data` bare numbers for csv."""

    name: str
    title: str
    shown: DataFrame
    data: DataFrame
    note: str = ""

    @property
    def rows(self) -> list[list[str]]:
        """The text of `shown`, its heads first."""
        return [[str(head) for head in self.shown.columns], *([str(cell) for cell in row] for row in self.shown.values)]


def write(table: Table, folder: Path) -> None:
    """Write FOLDER/name.csv, .md and .tex."""
    for suffix in FORMATS:
        write_as(table, folder / f"{table.name}{suffix}")


def write_as(table: Table, file: Path) -> None:
    """Write one file in the format of its suffix, one of FORMATS."""
    file.write_text(FORMATS[file.suffix](table), encoding="utf-8")


def csv(table: Table) -> str:
    """The bare numbers of the table."""
    text: str = table.data.to_csv(index=False)
    return text


def markdown(table: Table) -> str:
    """The table as GitHub shows it, under its title."""
    lines = ["| " + " | ".join(_markdown(cell) for cell in row) + " |" for row in table.rows]
    lines.insert(1, "|" + " --- |" * len(table.shown.columns))
    note = ["", _markdown(table.note)] if table.note else []
    return "\n".join([f"**{_markdown(table.title)}**", "", *lines, *note, ""])


def latex(table: Table) -> str:
    """The table as a tabular for the booktabs package, without float or caption."""
    lines = [" & ".join(_latex(cell) for cell in row) + r" \\" for row in table.rows]
    lines = [r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    opening = rf"\begin{{tabular}}{{{'l' * len(table.shown.columns)}}}"
    return "\n".join([f"% {' '.join(table.title.split())}", opening, *lines, r"\end{tabular}", ""])


def _markdown(text: str) -> str:
    escaped = "".join(f"\\{character}" if character in "\\`*_<>|[]" else character for character in text)
    return " ".join(escaped.split())


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


FORMATS: Mapping[str, Callable[[Table], str]] = {".csv": csv, ".md": markdown, ".tex": latex}

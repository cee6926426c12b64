"""What Python has beside the command line: runs that draw themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec

import pandas as pd

from attnbench import records
from attnbench.execute import runner

if TYPE_CHECKING:
    from attnbench.report.plots import Picture

P = ParamSpec("P")


class Run(records.Run):
    """A run folder as a person uses it from Python: its frame, and pictures and tables of any columns."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(Path(path))

    def plot(
        self,
        x: str,
        y: str,
        hue: str = "variant",
        facet: str | None = None,
        where: str | None = None,
        ratio_to: str | None = None,
    ) -> Picture:
        """A matplotlib Figure of column y over column x, as `attnbench plot` draws it; see `report.chosen.figure`."""
        from attnbench.report import chosen

        return chosen.figure(self.frame, x=x, y=y, hue=hue, facet=facet, where=where, ratio_to=ratio_to)

    def table(self, rows: str, columns: str, value: str, where: str | None = None) -> pd.DataFrame:
        """Numbers of column `value` by `rows` (the index) and `columns`, NaN where there is none.

        `attrs["note"]` says how many cells are missing and why, and what was merged; see `report.chosen.table`.
        """
        from attnbench.report import chosen

        made = chosen.table(self.frame, rows=rows, columns=columns, value=value, where=where)
        numbers = made.data.set_index(rows).apply(pd.to_numeric, errors="coerce")
        numbers.attrs["note"] = made.note
        return numbers


def _drawing(run: Callable[P, records.Run]) -> Callable[P, Run]:
    @wraps(run)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Run:
        return Run(run(*args, **kwargs).path)

    return wrapped


run = _drawing(runner.run)

"""Up to which load variants learn, as a search found it, in words."""

from __future__ import annotations

from collections.abc import Iterable

from pandas import DataFrame

from attnbench.analyse.capacity import Found
from attnbench.protocol import LEARNED
from attnbench.report import words
from attnbench.report.tables import NOT_ASKED
from attnbench.report.writers import Table

COLUMNS = ["variant", "learnt", "accuracy", "not learnt", "accuracy there", "trainings"]


def table(found: Iterable[Found], title: str, low: int, high: int) -> Table:
    """One row per variant: the largest load learnt and the smallest above it that was not, with accuracies."""
    rows = [_row(one, low, high) for one in found]
    shown = DataFrame(rows, columns=COLUMNS, dtype="object")
    note = f"learnt: accuracy of {LEARNED:g} or more on test data, the mean over seeds; a training that diverged is 0"
    return Table("capacity", title, shown, shown, note)


def _row(one: Found, low: int, high: int) -> list[str]:
    if one.trouble:
        return [one.variant, one.trouble, *[NOT_ASKED] * 3, str(len(one.scores))]
    learnt, beyond = one.learnt, one.too_many
    up_to = f"less than {low}" if learnt is None else f"at least {high}" if beyond is None else str(learnt)
    return [one.variant, up_to, _score(one, learnt), _load(beyond), _score(one, beyond), str(len(one.scores))]


def _load(load: int | None) -> str:
    return NOT_ASKED if load is None else str(load)


def _score(one: Found, load: int | None) -> str:
    return NOT_ASKED if load is None else words.share(one.scores[load])

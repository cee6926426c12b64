"""The one kind of error that is the asker's: a request that cannot be carried out. The command line exits with 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RequestError(ValueError):
    """A wrong request; `mistakes` holds one line per mistake, each with place, what was expected and what was got."""

    def __init__(self, mistakes: Iterable[str]) -> None:
        self.mistakes = list(dict.fromkeys(mistakes))
        super().__init__(self.mistakes)

    def __str__(self) -> str:
        return "\n".join(self.mistakes)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, capitals aside; None when none is much like it."""
    names = {key.casefold(): key for key in sorted(known, reverse=True)}
    near = difflib.get_close_matches(name.casefold(), names, n=1, cutoff=0.65)
    return names[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A tail for an error message: the nearest known name, or all of them when none is near."""
    known = sorted(known)
    near = nearest(name, known)
    if near is not None:
        return f'; did you mean "{near}"?'
    return f"; known: {', '.join(known)}" if known else ""

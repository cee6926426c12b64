"""The list of statements, and how one is shown in a process of its own. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from attnbench.errors import RequestError, did_you_mean

if TYPE_CHECKING:
    from attnbench.execute.local import FreshProcesses
    from attnbench.theory.statement import Finding, Shown

STATEMENTS: Mapping[str, str] = {  # key -> module, imported in the fresh process alone
    "C1": "attnbench.theory.crossovers",
    "C2": "attnbench.theory.memory",
    "C3": "attnbench.theory.saturation",
    "C4": "attnbench.theory.equivariance",
    "C5": "attnbench.theory.paths",
    "C6": "attnbench.theory.forgetting",
    "C7": "attnbench.theory.capacity",
    "C8": "attnbench.theory.specialisation",
    "C9": "attnbench.theory.locality",
    "C10": "attnbench.theory.identities",
}
LIMIT_S = {True: 120.0, False: 1200.0}  # of one statement, by whether to be quick


@dataclass(frozen=True)
class Told:
    """A statement as it was shown, without what imports torch."""

    key: str
    title: str
    claim: str
    shown: Shown


@dataclass(frozen=True)
class Result:
    """What became of a statement: `told`, or the reason why it could not be shown.

    seconds: that it took. detail: a traceback or last output, where it could not be shown.
    """

    key: str
    told: Told | None
    failure: str
    seconds: float
    detail: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Its numbers; none where it could not be shown."""
        return self.told.shown.findings if self.told else ()

    @property
    def holds(self) -> bool:
        """Whether every number is as theory has it."""
        return self.told is not None and all(finding.ok for finding in self.findings)

    @property
    def as_asked(self) -> bool:
        """Whether it was shown, and every miss has its reason."""
        return self.told is not None and all(finding.ok or finding.reason for finding in self.findings)


def name_of(key: str) -> str:
    """The short name of a statement: that of its module."""
    return STATEMENTS[key].rpartition(".")[2]


def chosen(names: Iterable[str]) -> list[str]:
    """Keys of the statements that are named, by key or short name, in the order of the list; all for none.

    Raises RequestError with the nearest name for each that is unknown.
    """
    keys = {word: key for key in STATEMENTS for word in (key.casefold(), name_of(key))}
    asked = [name.casefold() for name in names]
    known = [word for key in STATEMENTS for word in (key, name_of(key))]
    mistakes = [
        f'unknown statement "{name}"{did_you_mean(name, known)}' for name in names if name.casefold() not in keys
    ]
    if mistakes:
        raise RequestError(mistakes)
    wanted = {keys[name] for name in asked}
    return [key for key in STATEMENTS if not wanted or key in wanted]


def show(module: str, quick: bool) -> Told:
    """Show one statement, in this process, with one thread and a seed."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    statement = import_module(module).STATEMENT
    return Told(statement.key, statement.title, statement.claim, statement.show(quick))


def show_apart(processes: FreshProcesses, key: str, *, quick: bool) -> Result:
    """Show one statement in a fresh process; whatever goes wrong there is its result."""
    outcome = processes.call("attnbench.theory.statements:show", STATEMENTS[key], quick, timeout_s=LIMIT_S[quick])
    if outcome.status == "ok":
        return Result(key, outcome.value, "", outcome.seconds)
    reason = outcome.reason or "no reason recorded"
    told = reason if outcome.status == "failed" else f"{outcome.status}: {reason}"
    return Result(key, None, f"failed: {told}", outcome.seconds, outcome.detail or "")

"""What came of trying a variant's promises: results, and the one verdict on them. Plain data, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from attnbench.settings import Role

Status = Literal["kept", "broken", "not applicable", "error"]
Mark = Literal["–", "kept", "broken"]
MARKS: Mapping[Status, Mark] = {"not applicable": "–", "kept": "kept", "broken": "broken", "error": "broken"}
WORST: tuple[Mark, ...] = ("–", "kept", "broken")  # of what was found in several dtypes, the last one stands


@dataclass(frozen=True)
class Result:
    """One promise in one role. detail: why not applicable; or the input, the error and its size or place.

    status `error`: the variant cannot even be built, or run at an ordinary length; the other promises were not tried.
    dtype, layer: in which dtype, and as which of a model's layers, it was tried.
    """

    name: str
    role: Role
    status: Status
    detail: str
    dtype: str
    layer: int

    @property
    def place(self) -> tuple[str, Role]:
        """The promise and the role: dtypes and layers are told together."""
        return self.name, self.role


@dataclass(frozen=True)
class Certificate:
    """Every result of one variant with its options, on one device. `dataclasses.asdict` gives plain data."""

    variant: str
    options: Mapping[str, Any]
    device: str
    dtypes: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """Whether no promise is broken and at least one is kept; a variant that serves no role is not ok."""
        return not self.broken and self.n_kept > 0

    @property
    def broken(self) -> tuple[Result, ...]:
        """What is red: the first breach of each promise in each role, or that the variant cannot run there."""
        first: dict[tuple[str, Role], Result] = {}
        for result in self.results:
            if MARKS[result.status] == "broken":
                first.setdefault(result.place, result)
        return tuple(first.values())

    @property
    def untried(self) -> tuple[Result, ...]:
        """One result for each role, dtype and layer in which nothing could be tried, with the reason."""
        return tuple(result for result in self.results if (result.name, result.status) == ("shape", "not applicable"))

    @property
    def refusal(self) -> str | None:
        """Why nothing at all could be tried; None where something was."""
        reasons = dict.fromkeys(result.detail for result in self.results if result.status == "not applicable")
        return None if self.n_kept or self.broken else "; ".join(reasons)

    @property
    def marks(self) -> dict[tuple[str, Role], Mark]:
        """By promise and role, the worst of what was found in any dtype and layer."""
        found: dict[tuple[str, Role], Mark] = {}
        for result in self.results:
            found[result.place] = max(MARKS[result.status], found.get(result.place, "–"), key=WORST.index)
        return found

    @property
    def n_kept(self) -> int:
        """How many promises are kept, each role by itself, in every dtype and layer in which they were tried."""
        return list(self.marks.values()).count("kept")

    def verdict(self) -> str:
        """What came out, in one line."""
        if self.refusal is not None:
            return f"{self.variant}: nothing could be tried: {self.refusal}"
        if n_broken := len(self.broken):
            return f"{self.variant}: {n_broken} promise{'s' if n_broken > 1 else ''} broken"
        return f"{self.variant} keeps its promises ({self.n_kept} kept)"

    def breaches(self) -> list[str]:
        """One line per broken promise and role: the input, the error and the bound."""
        return [self._line(result) for result in self.broken]

    def lines(self) -> list[str]:
        """One line per result, for printing."""
        return [self._line(result) for result in self.results]

    def _line(self, result: Result) -> str:
        tail = f": {result.detail}" if result.detail else ""
        return f"{self.variant} [{result.role}] {result.name}: {result.status}{tail}"


@dataclass(frozen=True)
class Issued(Certificate):
    """A certificate that says what was tried, and where.

    source, origin: the class, and the package or file that offers it. digest: of its sources. torch: the version.
    device_name: the machine's own name of the device.
    """

    source: str
    origin: str
    digest: str
    torch: str
    device_name: str

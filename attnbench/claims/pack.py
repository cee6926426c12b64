"""Claim packs: TOML in, a validated `Pack` out, every mistake of a file reported in one go. No torch here."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from attnbench.errors import RequestError, did_you_mean
from attnbench.settings import Count, Settings, WholeNumber
from attnbench.theory.statements import STATEMENTS
from attnbench.wording import complaint, key_path

FOLDER = Path("experiments/claims")  # of the working directory
MARGIN = 0.1  # of an order that names none
Where = dict[str, Any]
Some = Annotated[str, Field(min_length=1)]


class Expectation(Settings):
    """One [[expect]]: a band of a mean over seeds, an order of two or more, or a band of a baseline.

    where: key = value of the settings that are judged, each on its own: a column of the run, or an option of the
    variant or of the task. order: such clauses, from the best to the worst, each of one setting; each mean exceeds the
    next by `by` (0.1) at least. baseline: a guess by its name.
    at_least, at_most: the band. near_floor: at most so much above the larger of chance and floor.
    slice: of one slice of the task, else of all. value: the column, accuracy by default.
    """

    where: Where | None = None
    order: list[Where] | None = Field(default=None, min_length=2)
    baseline: Some | None = None
    at_least: float | None = None
    at_most: float | None = None
    near_floor: float | None = Field(default=None, ge=0)
    by: float | None = None
    slice: Some | None = None
    value: Some = "accuracy"

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        """Raise ValueError where keys do not go together."""
        if sum(kind is not None for kind in (self.where, self.order, self.baseline)) != 1:
            raise ValueError("expected one of where, order and baseline")
        limits = (self.at_least, self.at_most, self.near_floor)
        if self.order is not None:
            if any(limit is not None for limit in limits):
                raise ValueError("an order takes by, not at_least, at_most or near_floor")
            return self
        if self.by is not None:
            raise ValueError("only an order takes by")
        if all(limit is None for limit in limits):
            raise ValueError("expected at_least, at_most or near_floor")
        if self.baseline and (self.near_floor is not None or self.slice):
            raise ValueError("a baseline takes at_least and at_most alone")
        return self

    @property
    def clauses(self) -> list[Where]:
        """The settings that it names."""
        return self.order or ([] if self.where is None else [self.where])


class Guesses(Settings):
    """[baselines]: guesses of a task that need no model, fitted on n sequences and scored on n others."""

    task: Some
    T: Count
    n: Count = 2000
    seed: WholeNumber = 0
    options: dict[str, Any] = Field(default_factory=dict)


class Pack(Settings):
    """A claim and what is run for it: a sweep, baselines of a task, or a statement of theory.

    shrunk: what was made smaller than in the source. sweep: the tables of a sweep file. quick: `KEY=VALUE` overrides of
    it for --quick, as for `attnbench run --set`. control: the settings whose failure says that nothing can be learnt
    here, full attention mostly.
    """

    claim: Some
    source: Some
    shrunk: Some
    sweep: dict[str, Any] | None = None
    baselines: Guesses | None = None
    theory: str | None = None
    expect: list[Expectation] = Field(default_factory=list)
    quick: list[str] = Field(default_factory=list)
    control: Where | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        """Raise ValueError where keys do not go together."""
        if sum(one is not None for one in (self.sweep, self.baselines, self.theory)) != 1:
            raise ValueError("expected one of sweep, baselines and theory")
        if self.theory is not None:
            if self.theory not in STATEMENTS:
                raise ValueError(f'theory: unknown statement "{self.theory}"{did_you_mean(self.theory, STATEMENTS)}')
            if self.expect:
                raise ValueError("expect: a statement of theory brings its own expectations")
        elif not self.expect:
            raise ValueError("expect: expected at least one [[expect]]")
        if self.sweep is None and (self.quick or self.control):
            raise ValueError("quick and control go with a sweep")
        if any((one.baseline is None) == (self.baselines is not None) for one in self.expect):
            raise ValueError("expect: baseline goes with [baselines], where and order with [sweep]")
        return self


class Found(NamedTuple):
    """A pack, its name (of its file, without the ending) and where it lies."""

    name: str
    path: Path
    pack: Pack


def chosen(names: Sequence[str], folder: Path = FOLDER) -> list[Found]:
    """The packs that are named, by name or file, in that order; all of the folder for none.

    Raises RequestError with every mistake of every pack, and the nearest name for each that is unknown.
    """
    known = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if not names and not known:
        raise RequestError([f"{folder}: no claim packs here; name files, or call this where that folder is"])
    files = {name: _file(name, known) for name in names or known}
    mistakes = [f'unknown claim "{name}"{did_you_mean(name, known)}' for name, file in files.items() if file is None]
    found = dict[str, Found]()
    for file in dict.fromkeys(file for file in files.values() if file is not None):
        if file.stem in found:
            mistakes.append(f"{file}: has the name of {found[file.stem].path}, whose run would lie in the same folder")
            continue
        try:
            found[file.stem] = Found(file.stem, file, read(file))
        except RequestError as error:
            mistakes += error.mistakes
    if mistakes:
        raise RequestError(mistakes)
    return list(found.values())


def read(path: Path) -> Pack:
    """One pack. Raises RequestError with one line per mistake: file, key, what was expected."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError([f"{path}: {error.strerror or error}"]) from error
    except ValueError as error:
        raise RequestError([f"{path}: not valid TOML: {error}"]) from error
    try:
        return Pack.model_validate(tables)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise RequestError(f"{path}: {_place(tables, detail['loc'])}{_told(detail)}" for detail in details) from error


def matching(rows: Iterable[Mapping[str, Any]], where: Where) -> list[Mapping[str, Any]]:
    """The rows that a clause selects; `variant` is a name or a label."""
    return [row for row in rows if all(_has(row, key, value) for key, value in where.items())]


def _has(row: Mapping[str, Any], key: str, value: Any) -> bool:
    if key == "variant":
        return value in (row["variant"], row.get("label"))
    homes = (row, _options(row, "options"), _options(row, "task_options"))
    return any(home.get(key) == value for home in homes)


def _options(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Options of a cell, and of a row, which holds them as JSON."""
    options = row.get(key)
    found = json.loads(options) if isinstance(options, str) else options
    return found if isinstance(found, Mapping) else {}


def _file(name: str, known: Mapping[str, Path]) -> Path | None:
    return Path(name) if name.endswith(".toml") else known.get(name)


def _place(tables: Mapping[str, Any], loc: tuple[int | str, ...]) -> str:
    path = key_path(tables, loc)
    key = str(loc[-1]) if loc and not path.endswith(str(loc[-1])) and isinstance(loc[-1], str) else ""
    place = ".".join(part for part in (path, key) if part)
    return f"{place}: " if place else ""


def _told(detail: Any) -> str:
    if detail["type"] == "missing":
        return "missing"
    if detail["type"] == "extra_forbidden":
        return "unknown key"
    if detail["type"] == "value_error":  # of keys together: what was got is the whole table
        return str(detail["msg"].removeprefix("Value error, "))
    return complaint(detail)

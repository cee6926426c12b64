"""Where a trained model is scored once more: `test_at` of [train], at another T or with other options of the task.

A place is meant for the tasks that take all of its options, and means nothing to the others of a sweep. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnbench.catalogue import Catalogue, variant_key
from attnbench.errors import did_you_mean
from attnbench.wording import toml_key


@dataclass(frozen=True)
class Place:
    """One place of a cell. options: all of the task's, in force there. changed: those that the sweep gives there."""

    T: int
    options: Mapping[str, Any]
    changed: Mapping[str, Any]


class Trained(NamedTuple):
    """What the cells of one point train on: a task with the options that a sweep gives it, T, and max_T if given."""

    task: str
    options: Mapping[str, Any]
    T: int
    max_T: int | None = None


def places_of(test_at: Iterable[Mapping[str, Any]], T: int, options: Mapping[str, Any]) -> list[Place]:
    """The places of a cell that is trained at T on a task with these options, all of them, in the order of the file."""
    found = []
    for asked in test_at:
        changed = _changed(asked)
        if changed.keys() <= options.keys():
            found.append(Place(asked.get("T", T), {**options, **changed}, changed))
    return found


def options_at(tables: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The options of each place that a sweep file, valid or not, seems to ask for; places of T alone are left out."""
    train = tables.get("train")
    asked = train.get("test_at") if isinstance(train, Mapping) else None
    listed = asked if isinstance(asked, list) else [asked]
    return [changed for place in listed if isinstance(place, Mapping) and (changed := _changed(place))]


def mistakes(test_at: Sequence[Mapping[str, Any]], trained: Iterable[Trained], catalogue: Catalogue) -> Iterator[str]:
    """One line per mistake of `test_at`: options that no task has, and places that a task cannot make."""
    cells = list(trained)
    for i, asked in enumerate(test_at):
        where, changed = f"train.test_at[{i}]", _changed(asked)
        meant = [cell for cell in cells if not _unknown(cell, changed, catalogue)]
        if cells and not meant:
            option, known = next(iter(_unknown(cells[0], changed, catalogue).items()))
            yield f"{where}.{toml_key(option)}: unknown option of {cells[0].task}{did_you_mean(option, known)}"
        for cell in meant:
            yield from (f"{where}{line}" for line in _one_place(cell, asked, changed, catalogue))


def _changed(place: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in place.items() if name != "T"}


def _unknown(cell: Trained, changed: Mapping[str, Any], catalogue: Catalogue) -> dict[str, list[str]]:
    """The options of a place that the task of a cell does not take, each with those that it does."""
    task = catalogue.tasks.get(variant_key(cell.task, cell.options))
    if task is None or task.error or task.mistakes:
        return {}  # told where the task is named
    return {name: [*task.options, "T"] for name in changed if name not in task.options}


def _one_place(
    cell: Trained, asked: Mapping[str, Any], changed: Mapping[str, Any], catalogue: Catalogue
) -> Iterator[str]:
    """What keeps the task of a cell from being made at one place; each line goes on behind the place's key."""
    trained = catalogue.tasks.get(variant_key(cell.task, cell.options))
    there = catalogue.tasks.get(variant_key(cell.task, {**cell.options, **changed}))
    if trained is None or there is None or trained.error or trained.mistakes:
        return  # told where the task is named
    T = asked.get("T", cell.T)
    told = "".join(f", {name} = {value}" for name, value in changed.items())
    yield from (f".{toml_key(option)}: {message}" for option, message in there.mistakes if option in changed)
    if there.error:
        yield f": {cell.task} cannot be made there: {there.error}"
    elif not there.mistakes and there.vocab_size != trained.vocab_size:
        yield f": {cell.task} has {there.vocab_size} tokens there, and {trained.vocab_size} where the model is trained"
    elif not there.mistakes and there.min_T > T:
        yield f": T = {T} is too short for {cell.task}{told}; its smallest T is {there.min_T}"
    elif cell.max_T is not None and cell.max_T < T:
        yield f".T: {T} is beyond max_T = {cell.max_T}"

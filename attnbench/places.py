"""Where a trained model is scored once more: `test_at` of [train], at another T or with other options of the task.

A place is meant for the tasks that take all of its options, and means nothing to the others of a sweep. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from attnbench.catalogue import Catalogue, Described, variant_key
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
    found = ((cell, _described(cell, {}, catalogue)) for cell in trained)
    cells = [(cell, task) for cell, task in found if not (task.error or task.mistakes)]  # else told where it is named
    known = {option for _, task in cells for option in task.options}
    for i, asked in enumerate(test_at):
        where, changed = f"train.test_at[{i}]", _changed(asked)
        meant = [(cell, task) for cell, task in cells if changed.keys() <= task.options.keys()]
        if cells and not meant:
            option = next((option for option in changed if option not in known), next(iter(changed)))
            yield f"{where}.{toml_key(option)}: no task here takes it{did_you_mean(option, {*known, 'T'} - {option})}"
        for cell, task in meant:
            there = _described(cell, changed, catalogue)
            yield from (f"{where}{line}" for line in _one_place(cell, task, there, asked))


def _changed(place: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in place.items() if name != "T"}


def _described(cell: Trained, changed: Mapping[str, Any], catalogue: Catalogue) -> Described:
    """The task of a cell with these options changed."""
    return catalogue.tasks.get(variant_key(cell.task, {**cell.options, **changed}), Described(error="unknown"))


def _one_place(cell: Trained, task: Described, there: Described, asked: Mapping[str, Any]) -> Iterator[str]:
    """What keeps the task of a cell from being made at one place; each line goes on behind the place's key."""
    T = asked.get("T", cell.T)
    told = ", ".join(f"{name} = {value}" for name, value in _changed(asked).items())
    if there.mistakes:
        yield from (f".{toml_key(option)}: {message}" for option, message in there.mistakes)
    elif there.error:
        yield f": {cell.task} cannot be made there: {there.error}"
    elif there.vocab_size != task.vocab_size:
        yield f": {cell.task} has {there.vocab_size} tokens there, and {task.vocab_size} where the model is trained"
    elif there.min_T > T:
        yield f": T = {T} is too short for {cell.task}{told and f' with {told}'}; its smallest T is {there.min_T}"
    elif cell.max_T is not None and cell.max_T < T:
        yield f".T: {T} is beyond max_T = {cell.max_T}"

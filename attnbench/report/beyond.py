"""What is kept beyond training: a table T_train × T_test for each task, and accuracy over T_test and over options."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from pandas import DataFrame

from attnbench.analyse.beyond import parts, places
from attnbench.analyse.points import ACCURACY, APART, POINT, TACIT, common
from attnbench.report import curves, notes, scales, words
from attnbench.report import tables as texts
from attnbench.report.figures import Picture
from attnbench.report.looks import Look, looks
from attnbench.report.writers import Table

NO_SCORE = "no score"
TOLD = tuple(name for name in APART if name not in TACIT)
TRAINED = "trained at T"
RULE = "columns: where the trained models were tested; mean over seeds [lowest, highest]"


def tables(frame: DataFrame) -> list[Table]:
    """One table for each task whose models were tested elsewhere, too."""
    found = parts(frame)
    names = words.distinct(_name("accuracy_beyond", part) for part in found)
    return [_table(name, part) for name, part in zip(names, found, strict=True)]


def pictures(frame: DataFrame, baseline: str) -> Iterator[Picture]:
    """Accuracy over T_test, and over each option that was tested at several values, for each task."""
    drawn = [picture for part in parts(frame) for picture in _pictures(part, baseline)]
    names = words.distinct(picture.name for picture in drawn)
    return (picture._replace(name=name) for picture, name in zip(drawn, names, strict=True))


def _table(name: str, part: DataFrame) -> Table:
    found = places(part)
    heads = found.sort_values(["n_changed", "options", "T_test"], kind="stable", key=_by_size)
    told = found.assign(place=_place(found), text=[_text(place) for place in found.itertuples()])
    columns = list(dict.fromkeys(_place(heads)))
    shown = texts.spread(told[[*POINT, "place", "text"]], ["d_model", "label", "T"], "place", columns)
    lost = found[found["n_good"] == 0].groupby("reason", sort=False)["label"].unique()
    why = [f"{NO_SCORE} ({', '.join(labels)}): {reason}" for reason, labels in lost.items()]
    data = found.rename(columns={"label": "variant", "value": "accuracy"})
    data = data.assign(task=part["task"].iloc[0])[["task", *data.columns.drop(["n_changed", "level", "trained_level"])]]
    note = "; ".join([RULE, notes.measured(part, ACCURACY), *why])
    title = f"Beyond training: {words.title('accuracy', common(part, TOLD))}"
    return Table(name, title, shown.rename(columns={"T": TRAINED}), data, note)


def _by_size(column: Any) -> Any:
    """Options by the number that they end with, so that n_pairs=16 stands behind n_pairs=8."""
    if column.name != "options":
        return column
    return column.map(lambda text: tuple(float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)))


def _place(found: DataFrame) -> list[str]:
    """ "T = 128", "T = 128, n_pairs=16"."""
    return [f"T = {T}{f', {options}' if options else ''}" for T, options in found[["T_test", "options"]].to_numpy()]


def _text(place: Any) -> str:
    """The mean over seeds with their range, and how many there are where some are missing."""
    if place.n_good == 0:
        return NO_SCORE
    text = words.share(place.value, place.low, place.high)
    return text if place.n_good == place.n_cells else f"{text} ({place.n_good} of {place.n_cells} seeds)"


def _pictures(part: DataFrame, baseline: str) -> Iterator[Picture]:
    found = places(part)
    plain = found[found["n_changed"] == 0]
    if plain["T_test"].nunique() > 1:
        facets = _facets(plain, "trained at T = {T}")
        data = plain.assign(x=plain["T_test"].astype(float), x_text=plain["T_test"].astype(str), facet=facets)
        ends = dict(zip(facets, plain["T"].astype(float), strict=True))
        yield _drawn(part, data, ends, baseline, what="T", x_label="T of the test")
    for option, changed in found[found["option"].notna()].groupby("option", sort=False):
        yield _over_option(part, str(option), changed, plain, baseline)


def _over_option(part: DataFrame, option: str, changed: DataFrame, plain: DataFrame, baseline: str) -> Picture:
    """plain: places at which no option is changed: there the option has the value that was trained on."""
    trained = float(changed["trained_level"].iloc[0])
    where = set(zip(changed["T"], changed["T_test"], strict=True))
    same = plain[[at in where for at in zip(plain["T"], plain["T_test"], strict=True)]].assign(level=trained)
    data = pd.concat([same, changed], ignore_index=True)
    facets = _facets(data, "trained at T = {T}, tested at {T_test}")
    data = data.assign(x=data["level"].astype(float), x_text=[f"{at:g}" for at in data["level"]], facet=facets)
    ends = dict.fromkeys(facets, trained)
    return _drawn(part, data, ends, baseline, what=option, x_label=f"{option} of the test")


def _facets(found: DataFrame, told: str) -> list[str]:
    """The panel of each place, with the width where there are several."""
    told += ", d = {d_model}" if found["d_model"].nunique() > 1 else ""
    return [told.format(**row) for row in found[["T", "T_test", "d_model"]].to_dict("records")]


def _drawn(
    part: DataFrame, data: DataFrame, ends: Mapping[str, float], baseline: str, *, what: str, x_label: str
) -> Picture:
    data = data.sort_values(["d_model", "T", "T_test"], kind="stable")
    title = f"{words.title('accuracy', common(part, TOLD))}, beyond training"
    floor = data.assign(name="floor", value=data["floor"])[["name", "facet", "x", "value"]].dropna()
    figure = curves.curves(
        data,
        _looks(part),
        scales.ACCURACY,
        x_label=x_label,
        title=title,
        note=notes.measured(part, ACCURACY),
        references=floor.drop_duplicates(),
        apart=True,
        baseline=baseline,
        ends=ends,
    )
    seeds = " Mean over seeds; bars: from the lowest seed to the highest." if data["n_cells"].max() > 1 else ""
    caption = f"{title}, against the {x_label}; vertical line: what was trained on; dashed: the floor.{seeds}"
    return Picture(_name(f"accuracy_beyond_{what}", part), caption, figure)


def _looks(part: DataFrame) -> dict[str, Look]:
    return looks(zip(part["label"], part["variant"], strict=True))


def _name(what: str, part: DataFrame) -> str:
    return words.file_name(what, {"task": part["task"].iloc[0]}, ("task",))

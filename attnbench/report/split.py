"""What of an advantage is left in a whole block, in words: the shares of its parts, and what each level gains."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from pandas import DataFrame

from attnbench.analyse.amdahl import LEVELS, Share, Split
from attnbench.report import tables, words
from attnbench.report.writers import Table

PLACE = ["d_model", "B", "T"]
NOTE = (
    "mixing: level core, or the whole layer where a variant has none; a free mixer: by how many times a block, and a "
    "model, would be faster at most"
)


def shares(found: Sequence[Split]) -> Table:
    """One row per variant and place: what its block is made of, and what a free mixer would gain."""
    rows = [_row(one) for one in found]
    shown = DataFrame(rows, columns=["d_model", "B", "T", "variant", "block", *PARTS, *GAINS])
    shown = shown if shown["B"].nunique() > 1 else shown.drop(columns="B")
    return Table("shares", "What a block is made of", shown, _data(found), NOTE)


PARTS = ("mixing", "projections", "feed-forward, norms")
GAINS = ("free mixer: block", "model")


def levels(compared: DataFrame, baseline: str) -> Table:
    """One row per variant and place, one column per level: the ratio to the baseline with its verdict."""
    sides = tables.SIDES["time"]
    called = {"faster": sides["below"], "slower": sides["above"], "same": "same", "ambiguous": "ambiguous"}
    texts = [
        f"{words.ratio(one.ratio)} {called[one.verdict_corrected]}" if one.ratio == one.ratio else str(one.status)
        for one in compared.itertuples()
    ]
    long = compared.assign(text=texts)
    measured = [level for level in LEVELS if level in set(long["level"])]
    shown = tables.spread(long, [*PLACE, "label"], "level", measured)
    shown = shown if shown["B"].nunique() > 1 else shown.drop(columns="B")
    columns = [*PLACE, "label", "level", "ratio", "ratio_low", "ratio_high", "verdict_corrected", "status"]
    return Table("levels", f"Time by level, relative to {baseline}", shown, compared[columns], tables.RULE)


def sentence(one: Split) -> str:
    """ "at T = 1024, d = 256 mixing is 31 % of a block of fused: a mixer that costs nothing would make …"."""
    if one.mixing is None:
        return f"at T = {one.T}, d = {one.d_model} only the block of {one.label} was timed."
    what = "mixing" if one.is_whole else "mixing, with its maps,"
    batch = f", B = {one.B}" if one.B != 1 else ""
    model = one.of_model
    layers = "1 layer" if one.n_layers == 1 else f"{one.n_layers} layers"
    more = f", and a model of {layers} at most {_times(model)}" if model is not None else ""
    return (
        f"at T = {one.T}, d = {one.d_model}{batch} {what} is {_percent(one.mixing)} of a block of {one.label}: a mixer "
        f"that costs nothing would make the block at most {_times(one.mixing)} times faster{more}."
    )


def _row(one: Split) -> list[object]:
    """One block: its time, the share of each part, and the gain if mixing cost nothing."""
    mixing = (
        "not available" if one.mixing is None else _percent(one.mixing) + ("" if one.is_whole else " with its maps")
    )
    parts = [tables.NOT_ASKED if part is None else words.percent(part) for part in (one.projections, one.rest)]
    gains = [tables.NOT_ASKED if part is None else f"≤ {_times(part)} ×" for part in (one.mixing, one.of_model)]
    block = words.scaled(one.block_s, words.TIME_UNITS)
    return [one.d_model, one.B, one.T, one.label, block, mixing, *parts, *gains]


def _data(found: Sequence[Split]) -> DataFrame:
    rows = [
        (one.label, one.d_model, one.B, one.T, one.block_s, level, share.value, share.low, share.high)
        for one in found
        for level, share in one.levels.items()
    ]
    columns = ["variant", "d_model", "B", "T", "block_s", "level", "of_block", "of_block_low", "of_block_high"]
    return DataFrame(rows, columns=columns)


def _percent(part: Share) -> str:
    ends = ", ".join(f"{100 * end:.0f}" for end in (part.low, part.high))
    return f"{100 * part.value:.0f} % [{ends}]"


def _times(part: Share) -> str:
    """The most that a whole gains when this part costs nothing: "1.45"."""
    limit = part.limit.value
    return "∞" if pd.isna(limit) or math.isinf(limit) else words.significant(limit)

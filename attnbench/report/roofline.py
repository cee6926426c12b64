"""The data of a roofline figure (Williams, Waterman and Patterson 2009): what is reached, under what is possible.

A cell that runs flops_executed operations in time_s and moves at least bytes_moved stands at their quotient, operations
per byte, and at its rate, operations per second. It is below the machine's peak rate and, unless a cache spares it
the memory, below what the copy bandwidth lets through.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from pandas import DataFrame

from attnbench.analyse.points import POINT, Group, good
from attnbench.report import words

NEEDED = ("flops_executed", "bytes_moved", "time_s", "roof_flops_per_s", "roof_bytes_per_s")


class Roofline(NamedTuple):
    """What `curves.curves` draws: points, the roof as a line of reference, and ticks of operations per byte.

    silent: labels with a time and no formula for the operations or the bytes of it.
    """

    points: DataFrame
    roof: DataFrame
    marks: dict[float, str]
    silent: tuple[str, ...]


def roofline(group: Group) -> Roofline | None:
    """One facet per d_model, one point per variant and T; None where operations, bytes or peaks are not known.

    Cells of one group share a device, its threads and a dtype, and with these their roof.
    """
    numbers = group.frame[[*NEEDED, "time_low_s", "time_high_s"]].apply(good)
    given = group.frame[POINT].join(numbers)
    known = given.dropna(subset=list(NEEDED))
    if known.empty:
        return None
    merged = known.groupby(POINT, sort=False).median().reset_index().sort_values(["d_model", "T"], kind="stable")
    data = DataFrame(
        {
            "label": merged["label"],
            "facet": [f"d = {d}" for d in merged["d_model"]],
            "x": merged["flops_executed"] / merged["bytes_moved"],
            "value": merged["flops_executed"] / merged["time_s"],
            "low": merged["flops_executed"] / merged["time_high_s"],
            "high": merged["flops_executed"] / merged["time_low_s"],
        }
    )
    peak, bandwidth = (float(merged[name].iloc[0]) for name in NEEDED[3:])
    ridge = peak / bandwidth
    ends = np.log2([min(data["x"].min(), ridge / 2), max(data["x"].max(), ridge * 2)])
    marks = {2.0**k: f"{2.0**k:g}" for k in range(int(np.floor(ends[0])), int(np.ceil(ends[1])) + 1)}
    name = f"roof: {words.rate(peak, 'FLOP/s')} and {words.rate(bandwidth, 'B/s')}, measured"
    corners = [min(marks), ridge, max(marks)]
    lines = [(name, facet, x, min(peak, bandwidth * x)) for facet in data["facet"].unique() for x in corners]
    silent = given.loc[given["time_s"].notna() & given[list(NEEDED[:2])].isna().any(axis=1), "label"]
    return Roofline(data, DataFrame(lines, columns=["name", "facet", "x", "value"]), marks, tuple(silent.unique()))

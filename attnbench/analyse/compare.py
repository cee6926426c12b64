"""Verdicts on pairs: is one point faster than another, slower, the same, or can these numbers not tell?

A ratio r of two medians has the interval that follows from theirs, in logs, by the method of variance estimates
recovery (Zou and Donner, Stat. Med. 27, 2008): the distances from a value to its bounds add up as squares. It is what
resampling both together gives, needs no random number, and serves every measure that has a value, a low and a high.

    faster, slower   r differs from 1 by more than MARGIN, and its 95 % interval does not hold 1
    same             the whole interval lies within MARGIN of 1
    ambiguous        neither

Of many comparisons one in twenty would be called different by chance. Those that stand together in one table or
figure (one measure, one group of cells, all against one baseline) are a family, and `verdict_corrected` keeps faster
and slower only where Holm's procedure does (Scand. J. Stat. 6, 1979) at 5 % for the whole family.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from pandas import DataFrame, Series
from scipy.special import ndtr

MARGIN = 0.03  # a ratio nearer to 1 than this share is never called different, however narrow its interval
LEVEL = 0.05
Z = 1.96  # how many standard errors a 95 % interval reaches
ROUNDING = 1e-12  # logs of ratios smaller than this are a ratio of 1
FASTER, SLOWER, SAME, AMBIGUOUS = "faster", "slower", "same", "ambiguous"
SIDES = {FASTER: -1.0, SLOWER: 1.0, SAME: 0.0, AMBIGUOUS: 0.0}


def verdicts(
    points: DataFrame, baseline: str, at: Sequence[str] = ("d_model", "T"), *, resolution: float = 0.0
) -> DataFrame:
    """The points of all other labels, each against the baseline at the same d_model and T (or the columns `at`).

    points: label, value, low, high, status and `at`; all of them are one family. Adds ratio = value / the baseline's
    value, ratio_low, ratio_high, p, p_holm, verdict, verdict_corrected, and side: where the corrected verdict puts the
    ratio, -1.0 faster, 1.0 slower, 0.0 neither, NaN without a ratio (verdicts are missing there). A value without
    bounds is exact. resolution: values no farther apart, in their own unit, are the same. Where the baseline alone is
    missing, status is "no baseline".
    """
    base = points.loc[points["label"] == baseline, [*at, "value", "low", "high"]]
    joined = points[points["label"] != baseline].merge(base, how="left", on=list(at), suffixes=("", "_base"))
    middle = log_ratio(joined["value"] / joined["value_base"])
    below, above = _distances(joined)
    equal = ((joined["value"] - joined["value_base"]).abs() <= resolution) & (resolution > 0)
    joined["ratio"] = joined["value"] / joined["value_base"]
    joined["ratio_low"], joined["ratio_high"] = joined["ratio"] * np.exp(-below), joined["ratio"] * np.exp(above)
    joined["p"] = p_values(middle, middle - below, middle + above)
    joined["p_holm"] = holm(joined["p"])
    joined["verdict"] = _verdict(middle, below, above, equal)
    kept = (joined["p_holm"] <= LEVEL) | ~joined["verdict"].isin((FASTER, SLOWER))
    joined["verdict_corrected"] = joined["verdict"].where(kept, AMBIGUOUS)
    joined["side"] = joined["verdict_corrected"].map(SIDES).astype(float)
    joined.loc[joined["value"].notna() & joined["value_base"].isna(), "status"] = "no baseline"
    return joined.drop(columns=["value_base", "low_base", "high_base"])


def p_values(middle: ArrayLike, low: ArrayLike, high: ArrayLike) -> np.ndarray:
    """How likely a value so far from 0 is if there is none, from its 95 % interval (Altman and Bland, BMJ 343, 2011).

    0 for an exact value that is not 0, 1 for one that is, NaN without a value.
    """
    values, lows, highs = (np.asarray(each, dtype=float) for each in (middle, low, high))
    reach = np.where(values > 0, values - lows, highs - values)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(values == 0, 0.0, np.abs(values) / reach)
    found: np.ndarray = np.where(np.isnan(values), np.nan, 2 * ndtr(-Z * errors))
    return found


def holm(p: ArrayLike) -> np.ndarray:
    """Each p as the level of the whole family at which it would just be called different (Holm 1979); NaN is none."""
    values = np.asarray(p, dtype=float)
    order = np.argsort(values)  # NaN last
    order = order[: np.isfinite(values).sum()]
    steps = values[order] * np.arange(len(order), 0, -1)
    adjusted = np.full(len(values), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def log_ratio(ratio: ArrayLike) -> np.ndarray:
    """Natural logs; NaN where there is none, 0 where the ratio is 1 to rounding."""
    values = np.asarray(ratio, dtype=float)
    logs = np.log(np.where(values > 0, values, np.nan))
    return np.where(np.abs(logs) < ROUNDING, 0.0, np.where(np.isfinite(logs), logs, np.nan))


def _distances(joined: DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """From the log of each ratio down and up to its bounds; 0 for exact values, infinite for a bound of 0 or less."""
    down, up = _reach(joined["value"], joined["low"]), _reach(joined["value"], joined["high"])
    base_down = _reach(joined["value_base"], joined["low_base"])
    base_up = _reach(joined["value_base"], joined["high_base"])
    return np.hypot(down, base_up), np.hypot(up, base_down)


def _reach(value: Series, bound: Series) -> np.ndarray:
    """How far a bound is from its value, in logs."""
    values, bounds = value.to_numpy(dtype=float), bound.to_numpy(dtype=float)
    ratio = np.where(np.isnan(bounds) | np.isnan(values), 1.0, np.maximum(bounds, 0) / values)
    with np.errstate(divide="ignore"):
        return np.abs(np.log(ratio))


def _verdict(middle: np.ndarray, below: np.ndarray, above: np.ndarray, equal: Series) -> np.ndarray:
    """The verdict on each log ratio `middle`, whose interval reaches `below` and `above` it; None without a ratio."""
    margin = np.log1p(MARGIN)
    inside = (middle - below >= -margin) & (middle + above <= margin)
    faster = (middle < -margin) & (middle + above < 0)
    slower = (middle > margin) & (middle - below > 0)
    found = np.full(len(middle), AMBIGUOUS, dtype=object)
    for holds, verdict in ((faster, FASTER), (slower, SLOWER), (equal | inside, SAME), (np.isnan(middle), None)):
        found[np.asarray(holds)] = verdict
    return found

"""What cells of the T × d plane show: a value, its text, and the scale that colours it. No matplotlib here."""

from __future__ import annotations

import numpy as np
from pandas import DataFrame

from attnbench.analyse.compare import AMBIGUOUS, MARGIN, SAME
from attnbench.report import words
from attnbench.report.scales import Colours

SAME_MARK, AMBIGUOUS_MARK = "≈", "?"
MARKED = {SAME: f"{SAME_MARK}{{}}", AMBIGUOUS: f"{{}}{AMBIGUOUS_MARK}"}
MEANING = f"{SAME_MARK} the same within {100 * MARGIN:g} %, {AMBIGUOUS_MARK} ambiguous"


def of_ratios(ratios: DataFrame, what: str) -> tuple[DataFrame, Colours]:
    """Ratios with the columns value, their base-2 logarithm, and text; and the scale that colours these values.

    ratios: of `attnbench.analyse.compare.verdicts`; those that are the same or ambiguous bear a mark.
    """
    forms = [MARKED.get(verdict, "{}") for verdict in ratios["verdict_corrected"]]
    texts = [form.format(words.ratio(ratio)) for form, ratio in zip(forms, ratios["ratio"], strict=True)]
    with np.errstate(invalid="ignore"):
        data = ratios.assign(value=np.log2(ratios["ratio"]), text=texts)
    largest = data["value"].abs().fillna(0).max()
    limit = float(np.clip(np.ceil(largest), 1, 5))
    ticks = {float(k): f"{2**k:g}" if k >= 0 else f"1/{2**-k:g}" for k in range(-int(limit), int(limit) + 1)}
    return data, Colours("RdBu_r", -limit, limit, ticks, f"{what} ÷ baseline's {what}", bool(largest > limit))


def of_accuracies(data: DataFrame, floor: float) -> tuple[DataFrame, Colours]:
    """Points of accuracy with the column text, and the scale that colours them from `floor` to 1."""
    data = data.assign(text=[f"{value:.2f}" for value in data["value"]])
    marks = {floor: f"{floor:.3g}"} | {at: f"{at:g}" for at in (0.25, 0.5, 0.75, 1.0) if at > floor + 0.05}
    below = bool((data["value"] < floor).any())
    return data, Colours("GnBu", floor, 1.0, marks, f"accuracy, from {floor:.3g} (floor) to 1", below)

"""What a block is made of, and how much faster it gets at most when its mixing costs nothing (Amdahl, AFIPS 1967).

The levels nest: a core is the mixing alone, a layer adds the maps around it, a block the feed-forward, the norms and
the residuals, a model the embedding, the head and the other layers. So the times of the levels at one T, d_model and B
give the shares of a block. A mixer without a level core (a recurrence) is one part with its maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from pandas import DataFrame

from attnbench.analyse.compare import verdicts
from attnbench.analyse.points import TIME, asked, points

LEVELS = ("core", "layer", "block", "model")
PLACE = ["label", "d_model", "B", "T"]


@dataclass(frozen=True)
class Share:
    """A part of a whole, with the 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def limit(self) -> Share:
        """How many times faster the whole gets at most when the part costs nothing."""
        ends = [1 / (1 - part) if part < 1 else np.inf for part in (self.value, self.low, self.high)]
        return Share(*ends)


@dataclass(frozen=True)
class Split:
    """One variant at one d_model, B and T: the time of each level as a share of the block's.

    block_s: the time of a block. levels: core, layer and model, those that were measured; a model has n_layers.
    """

    label: str
    d_model: int
    B: int
    T: int
    block_s: float
    n_layers: int
    levels: Mapping[str, Share] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether mixing is told apart from the maps around it."""
        return "core" in self.levels

    @property
    def mixing(self) -> Share | None:
        """The share of mixing in a block, with its maps where they cannot be told apart."""
        return self.levels.get("core") or self.levels.get("layer")

    @property
    def projections(self) -> float | None:
        """The share of the maps around mixing."""
        parts = [self.levels[name].value for name in ("layer", "core") if name in self.levels]
        return max(parts[0] - parts[1], 0.0) if len(parts) == 2 else None

    @property
    def rest(self) -> float | None:
        """The share of feed-forward, norms and residuals."""
        return max(1 - self.levels["layer"].value, 0.0) if "layer" in self.levels else None

    @property
    def of_model(self) -> Share | None:
        """The share of mixing in a model of n_layers."""
        if self.mixing is None or "model" not in self.levels:
            return None
        scale = self.n_layers / self.levels["model"].value
        return Share(*(scale * part for part in (self.mixing.value, self.mixing.low, self.mixing.high)))


def splits(frame: DataFrame) -> list[Split]:
    """The split of each variant wherever a block was timed beside other levels, by d_model, B and T ascending.

    frame: cells of one phase that differ in variant, level, T, d_model and B alone.
    """
    timed = points(asked(frame, TIME), TIME, by=[*PLACE, "level"])
    blocks = timed[(timed["level"] == "block") & timed["value"].notna()].set_index(PLACE)["value"]
    n_layers = frame["n_layers"].dropna()
    by_level = timed.rename(columns={"label": "variant", "level": "label"})
    at = ["variant", *PLACE[1:]]
    found: dict[tuple[str, int, int, int], dict[str, Share]] = {key: {} for key in blocks.index}
    for row in verdicts(by_level, "block", at=at).itertuples():
        key = (row.variant, row.d_model, row.B, row.T)
        if key in found and not np.isnan(row.ratio):
            found[key][row.label] = Share(row.ratio, row.ratio_low, row.ratio_high)
    n = int(n_layers.iloc[0]) if len(n_layers) else 1
    order = sorted((key for key, levels in found.items() if levels), key=lambda key: key[1:])
    return [Split(*key, block_s=float(blocks[key]), n_layers=n, levels=found[key]) for key in order]


def by_level(frame: DataFrame, baseline: str) -> DataFrame:
    """The ratio to the baseline at each level, where a block was timed; as `verdicts`, with columns level and B."""
    timed = points(asked(frame, TIME), TIME, by=[*PLACE, "level"])
    places = timed.loc[timed["level"] == "block", PLACE[1:]].drop_duplicates()
    here = timed.merge(places, on=PLACE[1:])
    return verdicts(here, baseline, at=[*PLACE[1:], "level"])

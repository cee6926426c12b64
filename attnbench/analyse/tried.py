"""What a short trial of one variant shows: its cells beside those of rivals. The run is made by `attnbench.trial`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pandas import DataFrame

from attnbench.analyse.audited import Audited, Claimed
from attnbench.analyse.compare import verdicts
from attnbench.analyse.crossover import Crossover, crossovers
from attnbench.analyse.points import MEMORY, TIME, Measure, points
from attnbench.records import AS_ASKED

BASELINE = "fused"
RIVALS = (BASELINE, "linear", "lstm")
LENGTHS = (128, 512, 2048)  # T of the costs
WIDTHS = (64, 256)  # and d
B = 1


@dataclass(frozen=True)
class Tried:
    """A trial. certificate: the line that says that the variant keeps its promises. frame: the cells of its run."""

    about: Claimed
    certificate: str
    frame: DataFrame

    @property
    def name(self) -> str:
        """The variant's."""
        return self.about.name

    @cached_property
    def costs(self) -> DataFrame:
        """The cells of layers at the sizes that all variants share."""
        frame = self.frame
        shared = frame["T"].isin(LENGTHS) & frame["d_model"].isin(WIDTHS)
        return frame[frame["task"].isna() & (frame["level"] == "layer") & shared]

    @property
    def _weighed(self) -> DataFrame:
        """The cells that were not trained."""
        return self.frame[self.frame["task"].isna()]

    @cached_property
    def scores(self) -> DataFrame:
        """The cells that were trained."""
        return self.frame[self.frame["task"].notna()]

    @cached_property
    def audited(self) -> Audited:
        """Its claim beside the costs of its own cells."""
        return Audited(self.about, self._weighed[self._weighed["label"] == self.name], {})

    def compared(self, measure: Measure) -> DataFrame:
        """All variants against the baseline, one family for each measure."""
        return verdicts(points(self.costs, measure), BASELINE, resolution=measure.resolution)

    @cached_property
    def crossovers(self) -> Mapping[tuple[str, int, int], Crossover]:
        """Where the variant and the baseline change places, by measure, d_model and B; none of the baseline itself."""
        return {
            (measure.name, found.d_model, B): found
            for measure in (TIME, MEMORY)
            for found in crossovers(self.compared(measure))
            if found.label == self.name
        }

    @property
    def wrong(self) -> bool:
        """Whether a claim is refuted, or one of the variant's cells failed; what time did not suffice for did not.

        Training that began late has little time left to it, so that one that ends by its limit says nothing.
        """
        refuted = any(one.status == "refuted" for one in self.audited.verdicts)
        trained, costs = (set(part["status"][part["label"] == self.name]) for part in (self.scores, self._weighed))
        return refuted or not costs <= {*AS_ASKED, "pending"} or not trained <= {*AS_ASKED, "pending", "timeout"}

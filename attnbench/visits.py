"""Which visits of a cell count, and how many are still to be made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from attnbench.settings import Measure

DISTURBED = "disturbed: "  # so begins the flag of a visit that the machine did not leave in peace
Key = tuple[str, Measure]
Visit = dict[str, Any]  # the record of one


def is_disturbed(visit: Mapping[str, Any]) -> bool:
    """Whether something else slowed the machine during this visit, as its flags say."""
    return any(flag.startswith(DISTURBED) for flag in visit.get("flags") or ())


def counted(visits: Iterable[Visit]) -> list[Visit]:
    """Of the visits of one measure of one cell, those that its figures are made of, in their order.

    Those that went well and undisturbed, where there is one; else all that went well.
    """
    good = [visit for visit in visits if visit["status"] == "ok"]
    return [visit for visit in good if not is_disturbed(visit)] or good


class Agenda:
    """How many visits of each (cell, measure) are still to be made.

    wanted: how many there are to be. records: what was made already; only good visits since the last one that went
    wrong count, and whether `unsupported` still holds is for a plan to say. repeats: how often at most a cell's
    disturbed visits of one measure are made again. retry: statuses after which all are wanted again.
    """

    def __init__(
        self,
        wanted: Mapping[Key, int],
        records: Iterable[Mapping[str, Any]] = (),
        *,
        repeats: int = 0,
        retry: Collection[str] = (),
    ) -> None:
        self.left = dict(wanted)
        self._repeats = repeats
        self._repeated: Counter[Key] = Counter()
        again, went_wrong = {"unsupported", *retry}, set[Key]()
        for record in records:
            key, status = (record["cell"], record["measure"]), record["status"]
            if key not in wanted:
                continue
            if status == "ok":
                if key in went_wrong:
                    self.left[key] = wanted[key]
                went_wrong.discard(key)
                self.settle(record)
            else:
                went_wrong.add(key)
                self.left[key] = wanted[key] if status in again else 0

    def settle(self, record: Mapping[str, Any]) -> int:
        """Take note of a visit; how many of the visits that were left it settles.

        All of them when it went wrong; none when it was disturbed and its cell has a repeat to spare.
        """
        key = (record["cell"], record["measure"])
        before = self.left[key]
        if record["status"] != "ok":
            self.left[key] = 0
        elif before and is_disturbed(record) and self._repeated[key] < self._repeats:
            self._repeated[key] += 1
        else:
            self.left[key] = max(0, before - 1)
        return before - self.left[key]

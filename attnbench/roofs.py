"""What a machine can do at most, as a run measured it, and how much of that a cell reaches.

    {"cpu": {"1": {"float32_flops_per_s": 9e10, "copy_bytes_per_s": 1e10}}}

is `peaks` in environment.json: by device, by number of threads, products by dtype and one copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COPY = "copy_bytes_per_s"


def product(dtype: str) -> str:
    """The name of the peak of products."""
    return f"{dtype}_flops_per_s"


def roofed(row: Mapping[str, Any], peaks: Any) -> dict[str, Any]:
    """A row of a run with the peaks that hold for it, and the share of its peak that it reaches by what it executes.

    peaks: as above; whatever else stands there (an older run, a text that says why there is none) gives no roof.
    """
    roofs = {
        "roof_flops_per_s": _number(peaks, row.get("device"), row.get("threads"), product(str(row.get("dtype")))),
        "roof_bytes_per_s": _number(peaks, row.get("device"), row.get("threads"), COPY),
    }
    time_s, executed, roof = row.get("time_s"), row.get("flops_executed"), roofs["roof_flops_per_s"]
    share = {} if executed is None or not time_s or not roof else {"roof_share": executed / time_s / roof}
    return {**row, **roofs, **share}


def _number(found: Any, *path: object) -> float | None:
    for step in path:
        found = found.get(str(step)) if isinstance(found, Mapping) else None
    return found if isinstance(found, float) else None

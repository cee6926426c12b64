"""Run what a trial shows into one folder, within two minutes on two cores.

What is learned comes first, under a limit of its own, then memory, which is quick. What is left of the time goes to
times, and what these leave over narrows their intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attnbench.analyse import tried
from attnbench.analyse.audit import Cost
from attnbench.analyse.audited import N_HEADS, OTHER_WIDTH, WIDTH, Claimed, cells
from attnbench.analyse.tried import BASELINE, RIVALS, Tried
from attnbench.certificate import Certificate
from attnbench.execute.listener import Listener
from attnbench.execute.local import FreshProcesses
from attnbench.execute.tables import run_tables
from attnbench.records import Run
from attnbench.registry import Source

BUDGET_S = 100.0  # no visit begins later
CERTIFICATE_S = 40.0
LEARNING_S = 30.0  # until costs come first; no training takes longer
VISIT_S = 12.0  # the limit of a visit that measures costs
TIMING = {"visits": 2, "warmup_s": 0.05, "max_s": 0.15, "precision": 0.05}
TRAIN = {"steps": 400, "batch_size": 64, "lr": 3e-3, "n_validation": 128, "n_test": 512, "stop_at": 0.99}
TASK_OPTIONS = {"mqar": {"n_pairs": 8, "vocab_size": 32}}
# No feed-forward, few heads, a small vocabulary: with more of any, attention itself stays on the floor of recall.
LEARNED: tuple[Mapping[str, Any], ...] = (
    {"task": "mqar", "T": 32, "d_model": 64, "n_heads": 1, "n_layers": 2, "d_ff": 0},
    {"task": "distance", "T": 64, "d_model": 64, "n_heads": 2, "n_layers": 2, "d_ff": 0},
)


def keeps_promises(processes: FreshProcesses, source: Source) -> tuple[bool, list[str]]:
    """Try the quick promises of a variant; whether it keeps them, and lines about those that it breaks, or one."""
    asked = (source, None, "cpu", False)
    outcome = processes.call("attnbench.execute.certified:issue", *asked, timeout_s=CERTIFICATE_S)
    if outcome.status != "ok":
        return False, [f"{source.name}: {outcome.status}: {outcome.reason}"]
    found: Certificate = outcome.value
    return found.ok, [*found.breaches(), found.verdict()]


def run(
    about: Claimed,
    certified: str,
    folder: Path,
    progress: Callable[[], AbstractContextManager[Listener]],
    *,
    plugins: list[Path],
    began_s: float,
) -> Tried:
    """Measure one variant beside its rivals into `folder`.

    certified: the line of its certificate. began_s: on the monotonic clock, when the time began to count.
    Raises RequestError before anything runs when the request is wrong.
    """
    learned, weighed, timed = _learned(about), _costs(about, "memory"), _costs(about, "time")
    stages = [(learned, LEARNING_S), ([*learned, *weighed], VISIT_S), ([*learned, *weighed, *timed], VISIT_S)]
    with TemporaryDirectory(prefix="attnbench-try-") as name:
        for n, (grids, timeout_s) in enumerate(stages):
            left_s = max(BUDGET_S - (time.monotonic() - began_s), 0.0)
            budget_s = left_s if n else min(left_s, LEARNING_S)
            asked: dict[str, Any] = {"plugins": plugins, "out": folder, "resume": n > 0, "budget_s": budget_s}
            with progress() as listener:
                run_tables(_tables(about, grids, timeout_s), Path(name), listener=listener, **asked)
    return Tried(about, certified, Run(folder).frame)


def _tables(about: Claimed, grids: list[dict[str, Any]], timeout_s: float) -> dict[str, Any]:
    """The sweep of one stage."""
    return {
        "timeout": timeout_s,
        "question": f"What does {about.name} cost, and what does it learn?",
        "baseline": BASELINE,
        "timing": TIMING,
        "train": TRAIN,
        "tasks": TASK_OPTIONS,
        "defaults": {"role": about.role},
        "grid": grids,
    }


def _learned(about: Claimed) -> list[dict[str, Any]]:
    """The variant and the control, on each task."""
    variants = list(dict.fromkeys((about.name, BASELINE)))
    return [{"measure": ["accuracy"], "variant": variants, **setting} for setting in LEARNED]


def _costs(about: Claimed, measure: Cost) -> list[dict[str, Any]]:
    """All variants over T × d, and of the one that is tried the few sizes more that its claim is judged by."""
    layer: dict[str, Any] = {"measure": [measure], "phase": about.phase, "level": "layer"}
    layer |= {"T": list(tried.LENGTHS), "d_model": list(tried.WIDTHS)}
    largest = tried.LENGTHS[-1]
    own = cells(about, measure, (largest // 4, largest // 2, largest), (WIDTH, OTHER_WIDTH, 2 * OTHER_WIDTH))
    grids = [layer | {"variant": list(dict.fromkeys((about.name, *RIVALS)))}]
    grids += [grid | {"variant": [about.name]} for grid in own]
    return [grid | {"n_heads": N_HEADS} for grid in grids]

"""Run what an audit reads: a small sweep that grows where a claim is still open, as far as time and memory allow."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnbench.analyse.audit import Verdict
from attnbench.analyse.audited import N_HEADS, OTHER_WIDTH, STATE_T, WIDTH, Audited, Claimed, cells
from attnbench.execute.listener import Listener
from attnbench.execute.local import FreshProcesses
from attnbench.execute.runner import answer
from attnbench.execute.tables import run_tables
from attnbench.registry import Source

TIMING = {"warmup_s": 0.05, "max_s": 0.2, "repeats": 0}
BUDGET_S = 110.0  # no visit begins later, and no stage that would end later
STAGE_S = 12.0  # of any further stage: to load torch, to try the promises again
MORE_VISITS = 2  # where an interval is too wide
MOST_VISITS = 9
CALLS = 24  # of the largest cell that a stage adds, over all its visits, roughly
MOST_BYTES = 2 * 2**30
LARGEST = {"T": 2**16, "d": 2**12}
PROBE_T = (128, 256)
PROBE_TIMEOUT_S = 60.0
VISIT_TIMEOUT = "60s"
Progress = Callable[[], AbstractContextManager[Listener]]


@dataclass(frozen=True)
class Extent:
    """The sizes of a sweep, of each axis in each cost. visits: of each timed cell."""

    T_time: tuple[int, ...] = (256, 512, 1024, 2048)
    T_memory: tuple[int, ...] = (256, 512, 1024, 2048)
    d_time: tuple[int, ...] = (64, 128, 256, 512)
    d_memory: tuple[int, ...] = (64, 128, 256, 512)
    visits: int = 3


def claimed(processes: FreshProcesses, source: Source) -> Claimed:
    """What a variant claims. Raises RequestError when it does not load or its claim cannot be read."""
    processes.warm_up()
    facts = answer(processes.call("attnbench.execute.probes:claimed", source, timeout_s=PROBE_TIMEOUT_S))
    found = Claimed(source.name, facts["claim"], tuple(facts["options"]), facts["role"], facts["core"], facts["phase"])
    for cost in ("time", "memory"):
        found.power(cost, "T")
    return found


def audit(
    processes: FreshProcesses,
    source: Source,
    about: Claimed,
    folder: Path,
    progress: Progress,
    extent: Extent = Extent(),
) -> Audited:
    """Measure one variant into `folder` until its claims are decided, or time, memory or sizes are at their end.

    extent: the sizes to begin with. What breaks its promises, or cannot run, is not measured: see `Audited.trouble`.
    """
    began_s = time.monotonic()
    files = [Path(source.target.rpartition(":")[0])] if source.origin.endswith(".py") else []
    folder.mkdir(parents=True, exist_ok=True)
    resume = False
    while True:
        with progress() as listener:
            left_s = max(0.0, BUDGET_S - (time.monotonic() - began_s))
            asked: dict[str, Any] = {"plugins": files, "listener": listener, "resume": resume}
            asked |= {"budget_s": left_s, "narrow": False}
            frame = run_tables(_tables(about, extent), folder, **asked).frame
        found = Audited(about, frame, {}, PROBE_T)
        further = extent if found.trouble else _further(found, extent, time.monotonic() - began_s)
        if further == extent:
            return replace(found, probe={} if found.trouble else _probe(processes, source, about))
        extent, resume = further, True


def _tables(about: Claimed, extent: Extent) -> dict[str, Any]:
    """The sweep. The largest T are measured at one width."""
    second = {"measure": ["time"], "T": list(extent.T_time[:4]), "d_model": [OTHER_WIDTH]}
    decoding = {"measure": ["memory"], "T": list(STATE_T), "d_model": [WIDTH]}
    return {
        "question": f"Does {about.name} cost what it claims?",
        "memory_limit": 2 * MOST_BYTES,
        "timeout": VISIT_TIMEOUT,
        "timing": TIMING | {"visits": extent.visits},
        "defaults": {"variant": [about.name], "role": about.role, "n_heads": N_HEADS},
        "grid": [
            *cells(about, "time", extent.T_time, extent.d_time),
            *cells(about, "memory", extent.T_memory, extent.d_memory),
            second | {"phase": about.phase, "level": about.level},
            decoding | {"phase": "prefill", "level": "layer"},
        ],
    }


def _probe(processes: FreshProcesses, source: Source, about: Claimed) -> dict[str, list[int | None]]:
    """Paths and steps; nothing where a probe fails: what it would show is then not known."""
    arguments = (source, about.role, PROBE_T)
    outcome = processes.call("attnbench.execute.probes:probed", *arguments, timeout_s=PROBE_TIMEOUT_S)
    return outcome.value if outcome.status == "ok" else {}


def _further(found: Audited, extent: Extent, took_s: float) -> Extent:
    """The sweep with one more size on each axis where that would decide a claim, or with more visits where these would.

    The same sweep where nothing would, or where what is left of BUDGET_S after took_s does not suffice.
    """
    left_s = BUDGET_S - took_s - max(STAGE_S, took_s / 3)  # a busy machine is slow at what a stage begins with too
    if left_s <= 0:
        return extent
    undecided = [one for one in found.verdicts if one.status == "not resolvable"]
    wanted = {f"{one.axis}_{one.cost}": one for one in undecided if one.resolved_from is not None}
    sizes = {name: (*getattr(extent, name), 2 * getattr(extent, name)[-1]) for name in wanted}
    wider: dict[str, Any] = {
        name: some
        for name, some in sizes.items()
        if some[-1] <= LARGEST[wanted[name].axis] and _affordable(found, wanted[name], left_s / len(sizes))
    }
    again_s = took_s * MORE_VISITS / extent.visits
    if not wider and any(one.noisy for one in undecided) and extent.visits < MOST_VISITS and again_s < left_s:
        return replace(extent, visits=extent.visits + MORE_VISITS)
    return replace(extent, **wider)


def _affordable(found: Audited, wanted: Verdict, left_s: float) -> bool:
    """Whether one more doubling fits the time or the memory that is left, should the cost grow four times."""
    largest = max((point.value for point in found.points(wanted.cost, wanted.axis)[0]), default=0.0)
    return 4 * CALLS * largest < left_s if wanted.cost == "time" else 4 * largest < MOST_BYTES

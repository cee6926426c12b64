"""Synthetic frames of a run, as attnbench.read returns them: plausible costs, some noise, some failures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from attnbench.records import COLUMNS

DEFAULTS: dict[str, Any] = {
    "options": "{}",
    "role": "causal",
    "level": "layer",
    "phase": "forward_backward",
    "measures": ["time", "memory"],
    "B": 1,
    "n_heads": 4,
    "dtype": "float32",
    "device": "cpu",
    "threads": 1,
    "seed": 0,
    "status": "ok",
}
TIMES: dict[str, Callable[[int, int], float]] = {  # seconds of a layer, T and d
    "fused": lambda T, d: 9e-5 + 7e-11 * (8 * T * d**2 + 2 * T**2 * d),
    "full": lambda T, d: 9e-5 + 7e-11 * (8 * T * d**2 + 4 * T**2 * d) + 2.4e-9 * 4 * T**2,
    "window": lambda T, d: 2.2e-4 + 7e-11 * (8 * T * d**2 + 4 * T * 64 * d) + 1.2e-8 * T * d,
    "linear": lambda T, d: 1.5e-4 + 7e-11 * (8 * T * d**2 + 4 * T * 64 * d) + 2.5e-8 * T * d,
    "lstm": lambda T, d: 1e-4 + 6e-6 * T + 1.6e-10 * 16 * T * d**2,
}
BYTES: dict[str, Callable[[int, int], float]] = {
    "fused": lambda T, d: 4.0 * (9 * T * d + 4 * T),
    "full": lambda T, d: 4.0 * (9 * T * d + 8 * T**2),
    "window": lambda T, d: 4.0 * (14 * T * d + 4 * T * 128),
    "linear": lambda T, d: 4.0 * 19 * T * d,
    "lstm": lambda T, d: 4.0 * 18 * T * d,
}
SCORED = {"slice_unit": "gap", "n_test": 2048, "n_scored": 4 * 2048}
SIZES = (64, 128, 256, 512, 1024, 2048)
WIDTHS = (64, 128, 256)


def frame(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """A frame with all columns; what a row does not say is missing."""
    filled = [DEFAULTS | {"cell": f"{i:012x}", "S": row["T"]} | row for i, row in enumerate(rows)]
    for row in filled:
        row.setdefault("variant", row["label"].partition("[")[0])
    return pd.DataFrame(filled, columns=COLUMNS)


def timed(label: str, T: int, d_model: int, time_s: float, *, spread: float = 0.02, **more: Any) -> dict[str, Any]:
    """A cell with a time and its interval; time_s NaN is a cell without one."""
    ends = {"time_low_s": time_s * (1 - spread), "time_high_s": time_s * (1 + spread)}
    return {"label": label, "T": T, "d_model": d_model, "time_s": time_s} | ends | more


def failed(label: str, T: int, d_model: int, status: str, **more: Any) -> dict[str, Any]:
    """A cell without a value."""
    return {"label": label, "T": T, "d_model": d_model, "status": status, "reason": f"made to be {status}"} | more


def costs(
    labels: Iterable[str] = tuple(TIMES), sizes: Iterable[int] = SIZES, widths: Iterable[int] = WIDTHS, seed: int = 0
) -> list[dict[str, Any]]:
    """Time and memory cells of all labels × T × d_model; a label without a law of its own is a slower `fused`."""
    noise = np.random.default_rng(seed)
    rows = []
    for i, (label, T, d) in enumerate(itertools.product(labels, sizes, widths)):
        time_s = TIMES.get(label, TIMES["fused"])(T, d) * (1 if label in TIMES else 1 + i % 37 / 12)
        flops = 8.0 * T * d**2 + 2 * T**2 * d
        more = {"peak_bytes": BYTES.get(label, BYTES["fused"])(T, d), "flops": flops, "n_params": 4 * d**2}
        more |= {"n_params_body": (8 if label == "lstm" else 4) * d**2, "param_bytes": 16 * d**2}
        more |= {"flops_executed": flops if label != "lstm" else None}
        rows.append(timed(label, T, d, time_s * noise.lognormal(0, 0.03), spread=noise.uniform(0.01, 0.06), **more))
    return rows


def scores(
    labels: Iterable[str] = ("fused", "linear", "window", "lstm"),
    sizes: Iterable[int] = (32, 64, 128),
    widths: Iterable[int] = (32, 64),
    seeds: Iterable[int] = (0, 1, 2),
) -> list[dict[str, Any]]:
    """Accuracy cells of the task distance: `window` sees 16 back, `lstm` fades, the others solve it."""
    noise = np.random.default_rng(1)
    rows = []
    for label, T, d, seed in itertools.product(labels, sizes, widths, seeds):
        octaves = [gap for gap in (4, 8, 16, 32, 64) if gap < T]
        by_gap = {str(gap): _score(label, gap, d, noise) for gap in octaves}
        slices = {gap: {"accuracy": score, "n": 800} for gap, score in by_gap.items()}
        more = {"seed": seed, "accuracy": float(np.mean(list(by_gap.values()))), "slices": slices}
        rows.append(_accuracy_cell(label, T, d) | more)
    return rows


def run_frame() -> pd.DataFrame:
    """Five variants with costs and accuracy, and one cell of each common failure."""
    rows = costs()
    for i, status in ((17, "oom"), (34, "timeout"), (35, "oom"), (71, "killed"), (89, "timeout")):
        row = rows[i]
        rows[i] = failed(row["label"], row["T"], row["d_model"], status)
    accuracy = scores()
    accuracy[-1] = _accuracy_cell("lstm", 128, 64) | {
        "seed": 2,
        "status": "diverged",
        "reason": "the loss left the floats",
    }
    return frame([*rows, *accuracy])


def _accuracy_cell(label: str, T: int, d: int) -> dict[str, Any]:
    cell = {"label": label, "T": T, "d_model": d, "level": "model", "phase": None, "measures": ["accuracy"], "B": 64}
    more = {"task": "distance", "task_options": json.dumps({"n_slots": 4}), "n_layers": 2, "d_ff": 4 * d}
    return cell | more | {"chance": 1 / 12, "floor": 0.125, "positions": "learned", "embedding_std": 0.02} | SCORED


def _score(label: str, gap: int, d: int, noise: np.random.Generator) -> float:
    reached = {"window": gap <= 16, "lstm": gap <= d / 2}.get(label, True)
    return float(np.clip((0.98 if reached else 0.14) + noise.normal(0, 0.015), 0, 1))

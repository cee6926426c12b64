"""Which records can be trusted: a line that a person or another program changed may be whole and still be no record."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

COUNTS = ("T", "S", "B", "max_T", "d_model", "d_ff", "threads", "calls", "seed", "switches")


def distrust(record: Mapping[str, Any]) -> str | None:
    """What is wrong with a record or a cell, in a few words; None when its times, counts and names can be used."""
    for key, value in record.items():
        kind, holds = _kind(key)
        if value is not None and not holds(value):
            return f"{key} is not {kind}"
    if record.get("measure") == "time" and record.get("status") == "ok" and not record.get("samples_s"):
        return "samples_s is missing"
    return None


def _kind(key: str) -> tuple[str, Callable[[Any], bool]]:
    """What a value under this key has to be, in words and as a test."""
    if key == "samples_s":
        return "a list of positive numbers", _is_samples
    if key in COUNTS or key.startswith("n_") or key.endswith("_bytes"):
        return "a count", _is_count
    if key.endswith("_s") or key in ("flops", "flops_executed", "accuracy", "pretrain_accuracy"):
        return "a number", _is_number
    if key in ("cell", "measure", "variant", "label"):
        return "a text", lambda value: isinstance(value, str)
    if key in ("extra", "options", "task_options", "pretrain_options"):
        return "an object", lambda value: isinstance(value, dict)
    if key in ("measures", "flags"):
        return "a list of texts", lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value)
    if key == "tested":
        return "a list of places", lambda value: isinstance(value, list) and all(_is_place(each) for each in value)
    return "", lambda value: True


def _is_place(value: Any) -> bool:
    return isinstance(value, dict) and _is_count(value.get("T")) and isinstance(value.get("options"), dict)


def _is_samples(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_number(each) and each > 0 for each in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

"""The certificate of a variant: every promise in every role, in several dtypes and as two layers, as plain data.

Loads the variant, so it runs in a fresh process.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from attnbench import registry
from attnbench.conformance import certify
from attnbench.execute import stages
from attnbench.execute.describe import class_digest
from attnbench.measure.device import open_device
from attnbench.options import resolve
from attnbench.registry import Source

DTYPES = ("float64", "float32", "bfloat16")  # the first tells faults from rounding


def certificate(
    variant: Source, dtype: str | None = None, device: str = "cpu", thorough: bool = True
) -> dict[str, Any]:
    """Try the promises of a variant with its default options.

    dtype: the only one to try; else all of DTYPES. Once more as a model's second layer, in the first dtype. thorough:
    also what takes seconds, once. Returns what `attnbench check --json` prints.
    """
    torch.set_num_threads(1)
    open_device(device)
    stages.importing(variant)
    cls = registry.load(variant)
    stages.at(f"trying the promises of {variant.name}")
    dtypes = [dtype] if dtype else list(DTYPES)
    passes = [(one, 0, thorough and not n) for n, one in enumerate(dtypes)] + [(dtypes[0], 1, False)]
    results = [
        asdict(result) | {"dtype": one, "layer": layer}
        for one, layer, deep in passes
        for result in certify(cls, dtype=one, device=device, layer=layer, thorough=deep).results
    ]
    return {
        "variant": variant.name,
        "options": resolve(cls, {})[0],
        "source": variant.target,
        "origin": variant.origin,
        "digest": class_digest(cls),
        "torch": torch.__version__,
        "device": device,
        "device_name": open_device(device).name,
        "dtypes": dtypes,
        "results": results,
    }

"""Issue the certificate of a variant: every promise in every role, in several dtypes and as two layers.

Loads the variant, so it runs in a fresh process.
"""

from __future__ import annotations

import torch

from attnbench import registry
from attnbench.certificate import Issued
from attnbench.conformance import certify
from attnbench.execute import stages
from attnbench.execute.describe import class_digest
from attnbench.measure.device import open_device
from attnbench.options import resolve
from attnbench.registry import Source

DTYPES = ("float64", "float32", "bfloat16")  # the first tells faults from rounding


def issue(variant: Source, dtype: str | None = None, device: str = "cpu", thorough: bool = True) -> Issued:
    """Try the promises of a variant with its default options.

    dtype: the only one to try; else all of DTYPES. Once more as a model's second layer, in the first dtype. thorough:
    also what takes seconds, once.
    """
    torch.set_num_threads(1)
    device_name = open_device(device).name
    stages.importing(variant)
    cls = registry.load(variant)
    stages.at(f"trying the promises of {variant.name}")
    dtypes = (dtype,) if dtype else DTYPES
    passes = [(one, 0, thorough and one == dtypes[0]) for one in dtypes] + [(dtypes[0], 1, False)]
    results = tuple(
        result
        for one, layer, deep in passes
        for result in certify(cls, dtype=one, device=device, layer=layer, thorough=deep).results
    )
    return Issued(
        variant.name,
        resolve(cls, {})[0],
        device,
        dtypes,
        results,
        source=variant.target,
        origin=variant.origin,
        digest=class_digest(cls),
        torch=torch.__version__,
        device_name=device_name,
    )

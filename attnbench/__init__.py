"""attnbench: what an attention variant costs, and what it can learn. Importing it imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.api import Run, run
    from attnbench.conformance import check_variant
    from attnbench.mixer import Attention, Claim, Flops, Mixer, Spec, Use
    from attnbench.records import read
    from attnbench.transformer import Decoder, Encoder, EncoderDecoder, LanguageModel

__version__ = "0.1.0"
__all__ = [
    "Attention",
    "Claim",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Flops",
    "LanguageModel",
    "Mixer",
    "Run",
    "Spec",
    "Use",
    "check_variant",
    "read",
    "run",
]

_HOMES = {
    "mixer": ("Attention", "Claim", "Flops", "Mixer", "Spec", "Use"),
    "transformer": ("Decoder", "Encoder", "EncoderDecoder", "LanguageModel"),
    "conformance": ("check_variant",),
    "records": ("read",),
    "api": ("Run", "run"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Errors that a plugin causes and that are raised in lines of ours, told by the plugin's file and class.

A result of the wrong kind is met where it is used: a tuple from `attend` breaks the line that joins the heads. Checks
in that line would be timed with it, so a class is looked at when it is built, and tried once more when it has failed.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnbench.mixer import Attention, Mixer, Spec
from attnbench.out_of_memory import is_out_of_memory
from attnbench.registry import PluginError

TRIED_T = 64  # whoever fails at a long T is not to fail a second time for its length


def who(cls: type) -> str:
    """`mine.py: Mine`."""
    file = _file(cls)
    return f"{Path(file).name if file else cls.__module__}: {cls.__name__}"


def built(cls: type[Mixer], spec: Spec, **options: Any) -> Mixer:
    """A mixer of this class. Raises PluginError when the constructor does not take a spec, or leaves the mixer bare."""
    try:
        mixer: Any = cls(spec, **options)
    except TypeError as error:
        if _raised_in(error, cls):
            raise
        raise PluginError([f"{who(cls)} cannot be built: {error}"]) from error
    if not (isinstance(mixer, Mixer) and "_modules" in vars(mixer) and isinstance(getattr(mixer, "spec", None), Spec)):
        raise PluginError([f"{who(cls)}.__init__ does not call super().__init__(spec)"])
    return mixer


@contextmanager
def naming(cls: type[Mixer], make: Callable[[], Mixer], T: int, S: int, B: int = 1) -> Iterator[None]:
    """Turn an error inside that a mixer of this class caused, but did not raise, into PluginError; others pass.

    make: gives the mixer to try, or one like it, on the CPU, once it has failed; at these lengths or at TRIED_T.
    """
    try:
        yield
    except (TypeError, AttributeError, IndexError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, PluginError) or _raised_in(error, cls) or is_out_of_memory(error):
            raise
        told = fault(make, min(T, TRIED_T), min(S, TRIED_T), B) or _signature_fault(cls, error)
        if told is None:
            raise
        raise PluginError([told]) from error


def fault(make: Callable[[], Mixer], T: int, S: int, B: int = 1) -> str | None:
    """What a mixer lacks, or returns and must not, tried once on (B, T, d_model); None when there is no such thing."""
    with torch.no_grad(), suppress(Exception):
        return _fault(make(), T, S, B)
    return None


def wrong(method: str, y: object, expected: tuple[int, ...], letters: str) -> str | None:
    """What is wrong with a result that is to be a tensor of this shape: `returned a tuple, expected a tensor ...`."""
    if isinstance(y, Tensor) and tuple(y.shape) == expected:
        return None
    got = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else _one(y)
    return f"{method} returned {got}, expected a tensor {letters} = {expected}"


def _fault(mixer: Mixer, T: int, S: int, B: int) -> str | None:
    cls, example = type(mixer), next(mixer.parameters(), torch.empty(0))
    x = example.new_ones(B, T, mixer.spec.d_model)
    context = example.new_ones(B, S, mixer.spec.d_model) if mixer.spec.role == "cross" else None
    if isinstance(mixer, Attention) and cls.forward is Attention.forward:
        if type(mixer).attend is Attention.attend:
            return f"{who(cls)} defines no attend(q, k, v, *, key_mask=None)"
        q, k, v, *extra = mixer.project(x, x if context is None else context)
        y = mixer.attend(q, k, v, *extra, key_mask=None)
        return wrong(f"{who(cls)}.attend", y, (B, mixer.spec.n_heads, T, mixer.d_v), "(B, H, T, d_v)")
    if cls.forward is Mixer.forward:
        return f"{who(cls)} defines no forward(x, *, context=None, key_mask=None)"
    return wrong(f"{who(cls)}.forward", mixer(x, context=context), tuple(x.shape), "(B, T, d_model)")


def _signature_fault(cls: type, error: Exception) -> str | None:
    """A method that does not take the arguments that we give it; Python's message begins with its name."""
    own = isinstance(error, TypeError) and str(error).startswith(f"{cls.__qualname__}.")
    return f"{who(cls).partition(':')[0]}: {error}" if own else None


def _raised_in(error: BaseException, cls: type) -> bool:
    """Whether a line of the class's own file is on the way to the error: then that line says enough."""
    return any(frame.filename == _file(cls) for frame in traceback.extract_tb(error.__traceback__))


def _file(cls: type) -> str | None:
    return getattr(sys.modules.get(cls.__module__), "__file__", None)


def _one(thing: object) -> str:
    name = type(thing).__name__
    return "None" if thing is None else f"a{'n' if name[0] in 'aeiou' else ''} {name}"

"""Kernels of other packages by the name of their backend: which one a call runs on, and why one cannot.

`torch` is the form written out here and runs everywhere. `fla` is the package flash-linear-attention (fla-core), whose
kernels are Triton's, for CUDA alone. `auto` takes fla where it serves, and torch everywhere else. A backend asked for
by name runs or is refused, and is never replaced in silence. The package is imported when a call on CUDA needs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar, get_args

import torch
from torch import Tensor

from attnbench.mixer import Mixer, Spec, Use, check_name

Backend = Literal["auto", "torch", "fla"]
Found = TypeVar("Found")

FLA_DEVICES = ("cuda",)
FLA_DTYPES = ("float16", "bfloat16")  # in float32 the delta rule is refused, and other products are TF32


@dataclass(frozen=True)
class FlaKernel:
    """One function of fla.ops, for tensors laid out as everywhere else here.

    name: its module below fla.ops and its own name, as in `FlaKernel("delta_rule.chunk_delta_rule", max_width=256)`.
    max_width: the widest d_k that it takes; None is any.
    """

    name: str
    max_width: int | None = None

    def refusal(self, backend: str, *, device: str, dtype: str, d_k: int) -> str | None:
        """Why `backend`, where it is fla, cannot serve; for `Mixer.unsupported`. The others serve everywhere."""
        return self._trouble(device, dtype, d_k) if backend == "fla" else None

    def chosen(self, backend: Backend, q: Tensor, dtype: torch.dtype | None = None) -> Literal["torch", "fla"]:
        """What a call with queries q (B, H, T, d_k) runs on. Raises RuntimeError where fla is named and cannot.

        dtype: the model's, where q has been widened.
        """
        if backend == "torch" or (backend == "auto" and q.device.type not in FLA_DEVICES):
            return "torch"
        reason = self._trouble(q.device.type, str(dtype or q.dtype).removeprefix("torch."), q.shape[-1])
        if reason and backend == "fla":
            raise RuntimeError(reason)
        return "torch" if reason else "fla"

    def __call__(self, *inputs: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """y (B, H, T, d_v) and the last state (B, H, d_k, d_v), with no scale on the scores.

        inputs: (B, H, T, width) or (B, H, T), in the order of the package's function; it has (B, T, H, ...).
        state: the first one, in float32; None is 0.
        """
        run = _function(self.name)
        if isinstance(run, str):
            raise RuntimeError(run)
        turned = [x.transpose(1, 2).contiguous() for x in inputs]
        y, last = run(*turned, scale=1.0, initial_state=state, output_final_state=True)
        return y.transpose(1, 2), last

    def _trouble(self, device: str, dtype: str, d_k: int) -> str | None:
        short = self.name.rpartition(".")[2]
        if device.partition(":")[0] not in FLA_DEVICES:
            return f"backend 'fla' has kernels for CUDA alone, not for {device}: backend = 'torch' runs there"
        if dtype not in FLA_DTYPES:
            return f"fla's {short} takes {' and '.join(FLA_DTYPES)}, not {dtype}: backend = 'torch' takes it"
        if self.max_width is not None and d_k > self.max_width:
            return f"fla's {short} takes keys up to {self.max_width} wide, got {d_k}"
        found = _function(self.name)
        return found if isinstance(found, str) else None


class WithBackend(Mixer):
    """A mixer with the option `backend`, which names what its recurrence may run on; the record says what it ran on.

    fla: the package's function for it. ran: what the last call ran on.
    """

    fla: ClassVar[FlaKernel]

    def __init__(self, spec: Spec, *, backend: Backend = "auto", **options: Any) -> None:
        super().__init__(spec, **options)
        check_name("backend", backend, get_args(Backend))
        self.backend = backend
        self.ran: Literal["torch", "fla"] = "torch"

    @classmethod
    def unsupported(cls, spec: Spec, use: Use, **options: Any) -> str | None:
        """Adds: fla only where it has a kernel."""
        if reason := super().unsupported(spec, use, **options):
            return reason
        backend, d_k = options.get("backend") or "auto", cls.key_width(spec, options)
        return cls.fla.refusal(backend, device=use.device, dtype=use.dtype, d_k=d_k)

    @classmethod
    def key_width(cls, spec: Spec, options: Mapping[str, Any]) -> int:
        """How wide the keys are with these options."""
        return options.get("d_k") or spec.d_head

    def extra_record(self) -> dict[str, str]:
        """The backend that the last call ran on."""
        return {"backend": self.ran}

    def choose(self, q: Tensor, dtype: torch.dtype | None = None) -> Literal["torch", "fla"]:
        """What this call runs on, from now on in `ran`; a token alone is always ours. As in `FlaKernel.chosen`."""
        self.ran = self.fla.chosen(self.backend, q, dtype) if q.shape[2] > 1 else "torch"
        return self.ran


def imported(load: Callable[[], Found], package: str, fix: str) -> Found | str:
    """What `load` imports of an optional package, or one line that says why it cannot be had, and what mends that.

    A package that was built for another torch, or finds no driver, may fail in any way, even exit.
    """
    try:
        return load()
    except (Exception, SystemExit) as error:
        why = str(error).strip().partition("\n")[0]
        return f"{package} cannot be used: {type(error).__name__}: {why} ({fix})"


@cache
def _function(name: str) -> Callable[..., tuple[Tensor, Tensor]] | str:
    """fla.ops.`name`, or why it cannot be had."""
    module, _, function = name.rpartition(".")

    def load() -> Callable[..., tuple[Tensor, Tensor]]:
        found: Callable[..., tuple[Tensor, Tensor]] = getattr(importlib.import_module(f"fla.ops.{module}"), function)
        return found

    return imported(load, "fla", "pip install fla-core, and a triton for this torch")

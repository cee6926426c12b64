"""The one place that knows devices: how to wait for one, time by its own clock, empty its cache, bound its memory."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from attnbench.measure.machine import processor
from attnbench.measure.memory import status_bytes

THREAD_STACK = 16 * 2**20  # what one more thread may map: its stack, and an arena's first pages
FLUSHED_CACHES = 2  # a cache in two halves keeps some of its lines when only its own size is written


class Event(Protocol):
    """A mark on the device's own time line."""

    def record(self) -> None:
        """Put the mark behind all work that the device has been given."""

    def elapsed_time(self, end: Any, /) -> float:
        """Milliseconds from this mark to `end`, once the device has passed both."""


class Device(Protocol):
    """What a measurement must know of a device."""

    @property
    def name(self) -> str:
        """What kind it is: "AMD EPYC 9654", "NVIDIA H200"."""

    def synchronize(self) -> None:
        """Return once all work given to the device is done."""

    def flush(self) -> None:
        """Leave nothing of the last sample in the device's cache, where a sample is to begin without."""

    def events(self) -> tuple[Event, Event] | None:
        """Two marks to record around a sample; None where the wall clock is exact."""

    def limit_memory(self, limit: int) -> None:
        """Bound what this process may allocate from now on, in bytes, so that too much is an error and not a kill."""


class CPU:
    """The processor: calls return when they are done, and repeated ones find their data in its caches, as in use."""

    @property
    def name(self) -> str:
        """The model name."""
        return processor()

    def synchronize(self) -> None:
        """There is nothing to wait for."""

    def flush(self) -> None:
        """Caches stay as they are."""

    def events(self) -> None:
        """The wall clock is exact."""

    def limit_memory(self, limit: int) -> None:
        """By RLIMIT_DATA, above what is held already; nothing happens on a system without it."""
        try:
            import resource
        except ImportError:
            return
        held = status_bytes("VmData")
        if held is not None:
            bound = held + limit + (torch.get_num_threads() + 1) * THREAD_STACK
            resource.setrlimit(resource.RLIMIT_DATA, (bound, resource.getrlimit(resource.RLIMIT_DATA)[1]))


class CUDA:
    """The current GPU. api: torch.cuda; place: where its tensors live. Both stand open for a device of a test's own."""

    def __init__(self, api: Any = torch.cuda, place: str = "cuda") -> None:
        self._api, self._place = api, place

    @property
    def name(self) -> str:
        """The model name."""
        return str(self._api.get_device_name())

    def synchronize(self) -> None:
        """Wait for all streams. Raises what any kernel before has raised."""
        self._api.synchronize()

    def flush(self) -> None:
        """Write over the whole L2 cache: else the first call of a sample reads what the last one left there."""
        self._cache_filler.zero_()

    def events(self) -> tuple[Event, Event]:
        """Two new events that keep time."""
        return self._api.Event(enable_timing=True), self._api.Event(enable_timing=True)

    def limit_memory(self, limit: int) -> None:
        """By the share of the GPU's memory that torch's allocator may take, a limit above all of it being all of it."""
        self._api.set_per_process_memory_fraction(min(1.0, limit / self._properties.total_memory))

    @cached_property
    def _cache_filler(self) -> Tensor:
        return torch.empty(FLUSHED_CACHES * self._properties.L2_cache_size, dtype=torch.uint8, device=self._place)

    @property
    def _properties(self) -> Any:
        return self._api.get_device_properties(self._api.current_device())


def open_device(kind: str) -> Device:
    """The device of a cell, "cpu" or "cuda", set to compute float32 as float32.

    cuDNN's recurrent layers would round to TF32, and they alone, so that no other variant could be compared with them.
    """
    if kind == "cpu":
        return CPU()
    torch.backends.cudnn.allow_tf32 = False
    return CUDA()


def kinds() -> dict[str, str]:
    """The devices that can be used here, the fastest last, with their names, as in {"cpu": "AMD EPYC 9654"}.

    Asking makes a device context, so it is asked in a fresh process. A GPU that does not answer is not there.
    """
    found = {"cpu": CPU().name}
    if torch.cuda.is_available():
        with suppress(RuntimeError):
            found["cuda"] = CUDA().name
    return found

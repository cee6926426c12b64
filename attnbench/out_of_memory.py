"""Which errors and which last words mean that memory was short."""

from __future__ import annotations

OOM_SIGNS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "not enough memory",
    "out of memory",
    "STATUS_ALLOC_FAILED",
    "std::bad_alloc",
    "can't start new thread",
    "Thread creation failed",
    "failed to create thread",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is a failed allocation, in any of the ways that torch, Python, C++ and the threads say so."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError | OSError) and any(sign in str(error) for sign in OOM_SIGNS)

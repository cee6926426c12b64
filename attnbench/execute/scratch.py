"""The folder in which a parent collects what its processes print; one that a kill left goes with the next run."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX = "attnbench-scratch-"
LOCK = ".scratch-lock"  # no other folder of ours has a file of this name
SETTLED_S = 60.0  # a younger folder may be one whose owner has not locked it yet


class Scratch:
    """A temporary folder that is locked while its owner lives."""

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = FileLock(self.path / LOCK)
        self._lock.acquire(timeout=0)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        self._lock.release()
        shutil.rmtree(self.path, ignore_errors=True)


def _sweep(home: Path) -> None:
    """Remove the folders of owners that are gone."""
    for folder in home.glob(f"{PREFIX}*"):
        with suppress(OSError, Timeout):  # in use, somebody else's, or gone by now
            if (folder / LOCK).is_file() and time.time() - folder.stat().st_mtime > SETTLED_S:
                with FileLock(folder / LOCK, timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)

"""The command line in this process: what `attnbench ARGUMENTS` prints and how it leaves, without a new interpreter.

Its questions go to the forkserver of this process, which has loaded torch. What only a process of its own shows
(imports, signals, a terminal, an environment) is tried in one.
"""

import contextlib
import io
import os
import subprocess
import sys
from types import ModuleType

import pytest

from attnbench import cli


def attnbench(*arguments: object, cwd: str | os.PathLike[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Exit status, output and errors of a command, as a process of its own would give them.

    Raises AssertionError when the command leaves with a text instead of a status.
    """
    words = [str(word) for word in arguments]
    output, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["attnbench", *words])
        patch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # or the usage would name pytest
        if cwd is not None:
            patch.chdir(cwd)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            status = _status()
    said, complained = (stream.buffer.getvalue().decode("utf-8") for stream in (output, errors))
    return subprocess.CompletedProcess(words, status, said, complained)


def _status() -> int:
    try:
        cli.main()
    except SystemExit as end:
        if isinstance(end.code, str):
            raise AssertionError(f"left with a text: {end.code}") from end
        return end.code or 0
    return 0

"""Sweeps for the tests of whole runs: tiny cells of plugin mixers, so that each visit takes milliseconds.

A busy machine repeats none of them, so that what is made can be counted.
"""

import sys
from pathlib import Path

PLUGINS = Path(__file__).parent / "plugins"

TINY = """
question = "Does it work?"
[timing]
warmup_s = 0.0
max_s = 0.005
repeats = 0
[defaults]
d_model = 8
n_heads = 2
"""


def write_sweep(folder, grid, head="", name="sweep.toml"):
    path = Path(folder) / name
    path.write_text(f"{head}\n{TINY}\n{grid}", encoding="utf-8")
    return path


# A command in front of another: forget what a suite that runs in the background, or under nohup, would hand on to it.
HEEDING = [
    sys.executable,
    "-c",
    "import os, signal, sys\n"
    "for name in ('SIGINT', 'SIGTERM', 'SIGHUP'): signal.signal(getattr(signal, name), signal.SIG_DFL)\n"
    "os.execv(sys.argv[1], sys.argv[1:])",
]

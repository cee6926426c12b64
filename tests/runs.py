"""Sweeps for the tests of whole runs: tiny cells of plugin mixers, so that each visit takes milliseconds.

A busy machine repeats none of them, so that what is made can be counted.
"""

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

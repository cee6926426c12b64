"""Folders, files and options with names that nobody would choose, from the sweep to the report."""

from commands import attnbench as command

import attnbench
from attnbench.records import Run

NASTY = "a \"b\" é\n'c'"

PLUGIN = """
from attnbench import Mixer


class Odd(Mixer):
    def __init__(self, spec, *, mark: str = "x"):
        super().__init__(spec)
        self.mark = mark

    def forward(self, x, *, context=None, key_mask=None):
        return x.clone()

    @classmethod
    def unsupported(cls, spec, use, **options):
        return None if spec.role == "causal" and use.mask == "none" and not use.decodes else "not tried"
"""
SWEEP = r"""
plugins = ["my \"plug\" é.py"]
[[grid]]
variant = [{ name = "odd", mark = "a \"b\" é\n'c'" }, { name = "odd", mark = "<b>|$x$" }]
T = [4, 8]
d_model = 8
measure = ["time", "memory"]
[timing]
max_s = 0.002
warmup_s = 0
"""


def test_nothing_is_lost_to_a_name(tmp_path):
    (tmp_path / 'my "plug" é.py').write_text(PLUGIN, encoding="utf-8")
    (tmp_path / f"{NASTY}.toml").write_text(SWEEP, encoding="utf-8")
    for arguments in (
        ("run", f"{NASTY}.toml", "--out", NASTY),
        ("run", f"{NASTY}/sweep.toml", "--out", NASTY, "--resume"),
        ("plot", NASTY, "--x", "T", "--y", "time_s", "--hue", "label", "-o", f"{NASTY}.svg"),
        ("table", NASTY, "--rows", "label", "--columns", "T", "--value", "time_s", "-o", f"{NASTY}.md"),
    ):
        done = command(*arguments, cwd=tmp_path)
        assert done.returncode == 0, (arguments, done.stderr)
    run = Run(tmp_path / NASTY)
    assert run.counts == {"ok": 4}
    assert sorted(set(run.frame["label"])) == ["odd[mark=<b>|$x$]", r"""odd[mark=a "b" é\u000a'c']"""]
    assert attnbench.read(tmp_path / NASTY)["time_s"].notna().all()
    lines = (tmp_path / f"{NASTY}.md").read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("|") for line in lines) == 4  # a head, a rule, and one line for each label
    assert "<b>|$x$" not in (tmp_path / NASTY / "report.html").read_text(encoding="utf-8")

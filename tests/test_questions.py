"""Questions on the command line: what is asked wrongly is told in one line, what is asked rightly is answered."""

import pytest
from runs import PLUGINS
from test_cli import attnbench

from attnbench.records import read

GOOD = str(PLUGINS / "good.py")
TWO_WAY = """from attnbench import Mixer


class TwoWay(Mixer):
    @classmethod
    def unsupported(cls, spec, use, **options):
        if spec.role != "bidirectional":
            return "both directions only"
        return super().unsupported(spec, use, **options)

    def forward(self, x, *, context=None, key_mask=None):
        return x if key_mask is None else x * key_mask[..., None]
"""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fused", "liner"], 'unknown variant "liner"; did you mean "linear"?'),
        (["fused", "fused"], "fused and fused: expected two variants, got fused twice"),
        (["fused", "absent.py"], "absent.py: no such plugin file"),
        (["fused", f"{GOOD}:Cosin"], f'{GOOD}: has no mixer Cosin; did you mean "Cosine"?'),
        (["fused", "linear", "--d", "64,x"], '--d 64,x: expected positive whole numbers such as "64,128"'),
        (["fused", "linear", "--B", "0"], '--B 0: expected positive whole numbers such as "64,128"'),
        (["fused", "linear", "--phase", "forwards"], '--phase forwards: unknown; did you mean "forward"?'),
        (["fused", "linear", "--level", "bloc"], '--level bloc: unknown; did you mean "block"?'),
        ([GOOD, "linear", "--plugin", "absent.py"], "absent.py: no such plugin file"),
        (["fused", "linear", "--budget", "soon"], '--budget soon: expected a duration such as "60s" or "5m"'),
    ],
)
def test_what_is_asked_wrongly_is_told_in_one_line(arguments, told):
    done = attnbench("crossover", *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {told}\n")


def test_what_serves_both_directions_alone_is_compared_in_that_role(tmp_path):
    file, out = tmp_path / "twoway.py", tmp_path / "run"
    file.write_text(TWO_WAY)
    done = attnbench("crossover", "none", file, "--d", "8", "--t-max", "2", "--budget", "1s", "--out", out)
    assert done.returncode == 0, done.stderr
    assert set(read(out)["role"]) == {"bidirectional"}


def test_two_variants_are_compared_and_a_block_is_taken_apart(tmp_path):
    out = tmp_path / "run"
    done = attnbench("crossover", "none", f"{GOOD}:Cosine", "--d", "8", "--t-max", "2", "--budget", "1s", "--out", out)
    assert done.returncode == 0, done.stderr
    for told in (
        "cosine beside none",
        "What a block is made of",
        "Time by level, relative to none",
        "at T = 2, d = 8 mixing",
    ):
        assert told in done.stdout
    assert done.stdout.splitlines()[-1] == f"report: {out / 'report.html'}"
    assert "time, d = 8: T = 2; memory, d = 8: T = 2" in done.stderr
    frame = read(out)
    assert set(frame["level"]) == {"core", "layer", "block", "model"}
    assert set(frame.loc[frame["level"] == "layer", "status"]) == {"ok"}
    assert (out / "plugins" / "good.py").is_file()

"""The command attnbench claims: runs that are gone on with, budgets, its page and what it refuses."""

import json
from pathlib import Path

import pytest
import typer
from commands import attnbench
from run_rows import cell, record, run_of

from attnbench.claims import command, conduct, page
from attnbench.claims.pack import Found, Pack, read
from attnbench.claims.verdict import Finding
from attnbench.errors import RequestError
from attnbench.records import Run
from attnbench.theory import statements
from attnbench.theory.statement import Finding as Number
from attnbench.theory.statement import Shown
from attnbench.theory.statements import Told

PACK = """
claim = "Attention <does>."
source = "A & B 2023"
shrunk = "everything"
quick = ["seed = 0"]
[sweep]
timeout = "60s"
[[sweep.grid]]
measure = ["accuracy"]
variant = ["fused", "mean"]
task = "distance"
T = 8
d_model = 8
n_heads = 1
n_layers = 1
d_ff = 0
seed = [0, 1]
[sweep.train]
steps = 2
batch_size = 4
lr = 1e-3
n_validation = 8
n_test = 16
[[expect]]
where = { variant = "fused" }
at_least = -9.0
"""

ORDER = """
[[expect]]
order = [{ variant = "fused" }, { variant = "mean", T = 8 }]
"""


@pytest.fixture
def pack(tmp_path):
    (tmp_path / "experiments" / "claims").mkdir(parents=True)
    file = tmp_path / "experiments" / "claims" / "tiny.toml"
    file.write_text(PACK)
    return file


def found_of(pack):
    return Found(pack.stem, pack, read(pack))


def visits(folder):
    return [json.loads(line)["cell"] for line in (folder / "records.jsonl").read_text().splitlines()]


def test_a_budget_leaves_the_rest_and_the_next_call_goes_on(pack, tmp_path):
    first = attnbench("claims", "tiny", "--out", "made", "--budget", "1ms", "--workers", "1", cwd=tmp_path)
    assert first.returncode == 1, first.stderr
    assert first.stdout.startswith("tiny: not finished; Attention <does>.\n")
    n_first = len(visits(tmp_path / "made" / "tiny"))
    assert 0 < n_first < 4
    second = attnbench("claims", "--out", "made", "--workers", "1", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert second.stdout.startswith("tiny: reproduced; ")
    assert second.stdout.endswith("1 claim: 1 reproduced\npage: made/claims.html\n")
    made = visits(tmp_path / "made" / "tiny")
    assert (len(made), len(set(made))) == (4, 4)
    text = (tmp_path / "made" / "claims.html").read_text()
    for shown in (
        "Attention &lt;does&gt;.",
        "A &amp; B 2023",
        "everything",
        "attnbench claims tiny",
        "4 of 4 cells ok",
    ):
        assert shown in text
    assert "quick look" not in text


def test_a_quick_look_has_a_folder_of_its_own_and_says_what_it_left_out(pack, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.Exit) as caught:
        command.claims(["tiny"], quick=True, out=tmp_path / "made")
    assert caught.value.exit_code == 0
    assert "  quick: seed = 0\n" in capsys.readouterr().out
    assert len(visits(tmp_path / "made" / "tiny-quick")) == 2
    text = (tmp_path / "made" / "claims.html").read_text()
    assert "quick look" in text
    assert "quick: seed = 0" in text
    assert "attnbench claims tiny --quick" in text


def test_what_is_wrong_is_told_a_line_each_before_anything_runs(pack, tmp_path):
    (pack.parent / "other.toml").write_text(PACK.replace('variant = "fused" }', 'variant = "gru" }'))
    (pack.parent / "third.toml").write_text(PACK.replace("T = 8", "T = 0"))
    (pack.parent / "fourth.toml").write_text(PACK.replace("T = 8", "T = [8, 16]") + ORDER)
    done = attnbench("claims", "--out", "made", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    ambiguous, first, second = sorted(done.stderr.splitlines())
    place = "error: experiments/claims/fourth.toml: expect[1].order"
    assert ambiguous == f"{place}: expected one setting for {{'variant': 'fused'}}, got 2; name what differs"
    assert first == "error: experiments/claims/other.toml: expect[0]: no cell has {'variant': 'gru'}"
    assert second == "error: experiments/claims/third.toml: sweep: grid[0].T: expected at least 1, got 0"
    assert not (tmp_path / "made").exists()


def test_a_file_for_the_folder_is_refused(pack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made").write_text("")
    with pytest.raises(RequestError, match="--out made: expected a folder, got a file"):
        command.claims(None, out=Path("made"))


def test_what_was_judged_before_an_interruption_is_in_the_page(pack, tmp_path, monkeypatch):
    def carry_out(processes, found, *_):
        if found.name == "zlast":
            raise KeyboardInterrupt
        return conduct.not_run(found, "told <before>")

    (pack.parent / "zlast.toml").write_text(PACK)
    monkeypatch.setattr(conduct, "carry_out", carry_out)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        command.claims(None, quick=True, out=tmp_path / "made")
    assert "told &lt;before&gt;" in (tmp_path / "made" / "claims.html").read_text()


def test_packs_after_the_budget_are_told_as_not_finished(pack, tmp_path, monkeypatch):
    monkeypatch.setattr(conduct, "carry_out", lambda *_: pytest.fail("ran"))
    (result,) = command._each(None, [found_of(pack)], conduct.Conduct(tmp_path), 0.0, False)
    assert (result.verdict, result.reason, result.as_asked) == ("not finished", "the budget is spent", False)


def test_what_an_earlier_call_found_stands_when_the_budget_is_spent(pack, tmp_path, monkeypatch):
    cells = [cell(name, seed=seed, **TRAINED) for seed, name in enumerate("ab")]
    good = [record(name, "accuracy", variant="fused", accuracy=0.9, chance=0.1, floor=0.1) for name in "ab"]
    run_of(tmp_path / "tiny", cells, good)
    (result,) = command._each(None, [found_of(pack)], conduct.Conduct(tmp_path), 0.0, False)
    assert (result.verdict, result.cells, result.as_asked) == ("reproduced", "2 of 2 cells ok", True)
    (anew,) = command._each(None, [found_of(pack)], conduct.Conduct(tmp_path, overwrite=True), 0.0, False)
    assert (anew.verdict, anew.reason) == ("not finished", "the budget is spent")


def test_a_folder_that_holds_another_run_stops_its_own_pack_alone(pack, tmp_path, monkeypatch):
    def carry_out(processes, found, *_):
        if found.name == "tiny":
            raise RequestError(["made/tiny: no cell of tiny.toml is in the run that it holds"])
        return conduct.Result(found, (), "reproduced")

    other = pack.with_name("zlast.toml")
    other.write_text(PACK)
    monkeypatch.setattr(conduct, "carry_out", carry_out)
    packs = [found_of(pack), found_of(other)]
    first, last = command._each(None, packs, conduct.Conduct(tmp_path), None, False)
    assert (first.verdict, first.as_asked, last.verdict) == ("not finished", False, "reproduced")
    assert "no cell of tiny.toml" in first.reason


def test_two_packs_of_one_name_are_refused(pack, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    twin = tmp_path / "mine" / "tiny.toml"
    twin.parent.mkdir()
    twin.write_text(PACK)
    with pytest.raises(RequestError, match=r"mine.tiny\.toml: has the name of .*claims.tiny\.toml"):
        command.claims(["tiny", str(twin)], out=Path("made"))


# Judging


TRAINED = {"variant": "fused", "label": "fused", "measures": ["accuracy"], "task": "distance", "level": "model"}


def test_a_run_is_judged_by_its_rows_and_a_failed_cell_is_not_as_asked(pack, tmp_path):
    cells = [cell(name, seed=seed, **TRAINED) for seed, name in enumerate("abc")]
    good = [record(name, "accuracy", variant="fused", accuracy=0.9, chance=0.1, floor=0.1) for name in "abc"]
    made = Run(run_of(tmp_path / "good", cells, good))
    whole = conduct.of_run(found_of(pack), made, quick=False)
    assert (whole.verdict, whole.cells, whole.as_asked) == ("reproduced", "3 of 3 cells ok", True)
    bad = [*good[:2], record("c", "accuracy", "oom", variant="fused")]
    torn = conduct.of_run(found_of(pack), Run(run_of(tmp_path / "bad", cells, bad)), quick=False)
    assert (torn.verdict, torn.cells) == ("not resolvable at this size", "2 of 3 cells ok; 1 oom")
    assert not torn.as_asked
    left = conduct.of_run(found_of(pack), Run(run_of(tmp_path / "left", cells, good[:1])), quick=False)
    assert left.verdict == "not finished"


THEORY = {"claim": "c", "source": "s", "shrunk": "t", "theory": "C7"}


@pytest.mark.parametrize(
    ("findings", "told"),
    [
        ([("1", True, ""), ("2", True, "")], "reproduced"),
        ([("1", True, ""), ("2", False, "a cache")], "trend reproduced"),
        ([("1", True, ""), ("2", False, "")], "refuted"),
        ([("not run (--quick)", True, "")], "not resolvable at this size"),
    ],
)
def test_the_verdict_of_a_statement_is_that_of_its_numbers(tmp_path, monkeypatch, findings, told):
    shown = tuple(Number("x", "1", measured, ok, reason) for measured, ok, reason in findings)
    given = statements.Result("C7", Told("C7", "t", "c", statement_of(shown)), "", 1.0)
    monkeypatch.setattr(statements, "show_apart", lambda *_, **__: given)
    found = Found("capacity", tmp_path / "capacity.toml", Pack.model_validate(THEORY))
    assert conduct.carry_out(None, found, conduct.Conduct(tmp_path), None).verdict == told


def statement_of(findings):
    return Shown(findings)


def test_the_terminal_tells_every_number(pack):
    found = Finding("fused", "≥ 0.9", "0.95 ± 0.01 (3 seeds)", "holds")
    result = conduct.Result(found_of(pack), (found,), "reproduced")
    assert page.lines(result) == [
        "tiny: reproduced; Attention <does>.",
        "  holds        fused: 0.95 ± 0.01 (3 seeds) (expected ≥ 0.9)",
    ]
    others = [conduct.not_run(found_of(pack), "x"), result]
    assert page.total([*others, result]) == "3 claims: 2 reproduced, 1 not finished"


def test_baselines_are_measured_without_training():
    from attnbench import registry
    from attnbench.claims.guesses import measure

    source = registry.installed(registry.TASKS)["distance"]
    assert measure(source, 16, {"n_values": 2}, 500, 0)["position"] == pytest.approx(0.5, abs=0.1)
    with pytest.raises(RequestError, match=r"distance\.n_value"):
        measure(source, 16, {"n_value": 2}, 500, 0)

"""The statements of theory: their list, their rules, their page and their command."""

import json
import subprocess
import sys
from importlib import import_module

import pandas as pd
import pytest
from commands import attnbench
from hypothesis import given
from hypothesis import strategies as st

from attnbench.errors import RequestError
from attnbench.theory import page, pictures, rules, statements
from attnbench.theory.statement import Curves, Finding, Maps, Shown
from attnbench.theory.statements import STATEMENTS, Result, Told

MISS = Finding("slope", "2 ± 0.1", "1.7", False, "a <cache> serves it")
PASS = Finding("rows & columns", "1", "1", True)
CURVES = Curves(
    "decay",
    "Decay over distance",
    pd.DataFrame({"label": ["a", "a", "b", "b"], "gap": [1, 2, 1, 2], "size": [1.0, 0.1, 0.5, 0.0]}),
    "gap",
    "size",
    x_log=True,
    y_log=True,
)
MAPS = Maps("seen", "What is seen", {"left": [[1, 0], [1, 1]], "right": [[0, 0], [0, 0]]})


def told(*findings, pictures=()):
    return Result("C3", Told("C3", "Rows", "Rows sum to 1.", Shown(findings, pictures)), "", 1.5)


FAILED = Result("C4", None, "failed: RuntimeError: <out of luck>", 0.5)


# The list


def test_statements_are_found_by_key_and_by_name_in_the_order_of_the_list():
    assert statements.chosen([]) == list(STATEMENTS)
    assert statements.chosen(["paths", "c3", "C3"]) == ["C3", "C5"]


def test_an_unknown_statement_is_refused_with_the_nearest_name():
    with pytest.raises(RequestError) as caught:
        statements.chosen(["C3", "saturaton", "C99"])
    first, second = caught.value.mistakes
    assert first == 'unknown statement "saturaton"; did you mean "saturation"?'
    assert second.startswith('unknown statement "C99"')


@pytest.mark.parametrize("key", STATEMENTS)
def test_each_module_holds_the_statement_of_its_key(key):
    module = import_module(STATEMENTS[key])
    assert module.STATEMENT.key == key
    assert module.STATEMENT.claim.endswith(".")


# The rules


@given(st.floats(0.1, 10), st.floats(0.01, 0.5), st.floats(0.0, 2.0))
def test_near_and_within_pass_up_to_their_width_and_not_beyond(expected, width, by):
    for sign in (1, -1):
        measured = expected + sign * by * width
        assert rules.within("x", expected, measured, off=width).ok == (abs(measured - expected) <= width)
        scaled = expected * (1 + sign * by * width)
        assert rules.near("x", expected, scaled, share=width).ok == (abs(scaled - expected) <= width * expected)


def test_limits_are_strict_and_a_number_that_is_none_passes_nothing():
    assert rules.below("x", 1.0, 0.9).ok
    assert not rules.below("x", 1.0, 1.0).ok
    assert rules.above("x", 1.0, 1.1).ok
    assert not rules.above("x", 1.0, 1.0).ok
    for rule in (rules.below, rules.above):
        assert not rule("x", 1.0, float("nan")).ok
    assert not rules.near("x", 1.0, float("nan"), share=0.5).ok


def test_a_reason_is_told_of_a_miss_alone():
    assert rules.exactly("x", 1, 2, "because").reason == "because"
    assert rules.exactly("x", 1, 1, "because").reason == ""
    assert rules.near("x", 1.0, 3.0, share=0.1, reason="because").reason == "because"
    assert rules.near("x", 1.0, 1.0, share=0.1, reason="because").reason == ""


def test_numbers_read_as_people_write_them():
    assert rules.near("x", 2.0e7, 2.1e7, share=0.1)[1:3] == ("20.0 M ± 10 %", "21.0 M")
    assert rules.below("x", 1e-6, 7.51e-8).measured == "7.51e-08"
    assert rules.within("x", 4.352, 4.38, off=0.05)[1:3] == ("4.352 ± 0.05", "4.38")


def test_what_was_not_run_is_no_pass():
    assert rules.verdict(rules.not_run("x", "solved")) == "not run"
    assert [rules.verdict(finding) for finding in (PASS, MISS)] == ["pass", "differs"]


# The result


def test_a_miss_with_a_reason_is_as_asked_and_one_without_is_not():
    assert told(PASS, MISS).as_asked
    assert not told(PASS, MISS).holds
    assert not told(PASS, MISS._replace(reason="")).as_asked
    assert told(PASS).holds
    assert not FAILED.holds
    assert not FAILED.as_asked


# The page


def test_the_terminal_tells_every_number_and_every_reason():
    first, *numbers = page.lines(told(PASS, MISS))
    assert first == "C3 Rows: 1 pass, 1 differs"
    assert numbers == [
        "  pass     rows & columns: 1 (expected 1)",
        "  differs  slope: 1.7 (expected 2 ± 0.1)",
        "           because a <cache> serves it",
    ]
    assert page.lines(FAILED) == ["C4 equivariance: failed: RuntimeError: <out of luck>"]


def test_the_page_escapes_what_it_tells_and_embeds_its_pictures(tmp_path):
    results = [told(PASS, MISS, pictures=(CURVES, MAPS)), FAILED]
    file = page.write(results, tmp_path, quick=True, environment={"cpu": {"cores": 2}})
    text = file.read_text()
    assert file.name == "theory.html"
    for shown in (
        "Rows sum to 1.",
        "rows &amp; columns",
        "a &lt;cache&gt; serves it",
        "&lt;out of luck&gt;",
        "cpu.cores",
    ):
        assert shown in text
    assert text.count("data:image/svg+xml;base64,") == 2
    assert "<out of luck>" not in text
    assert "quick look" in text
    assert [name.name for name in tmp_path.iterdir()] == ["theory.html"]
    whole = page.write(results, tmp_path, quick=False, environment={}).read_text()
    assert "quick look" not in whole


def test_many_numbers_that_pass_are_folded_and_those_that_differ_are_not(tmp_path):
    few = page.write([told(PASS, MISS)], tmp_path, quick=True, environment={}).read_text()
    many = page.write([told(*[PASS] * 30, MISS)], tmp_path, quick=True, environment={}).read_text()
    assert "<details>" not in few
    assert "30 numbers more that pass" in many
    assert many.index("slope") < many.index("<details>") < many.index("rows &amp; columns")


# Pictures


def test_curves_have_one_panel_per_facet_and_leave_out_what_a_logarithm_cannot_show():
    frame = CURVES.frame.assign(facet=["one", "one", "two", "two"])
    figure = pictures.figure(Curves("x", "title", frame, "gap", "size", x_log=True, y_log=True))
    one, two = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one", "two"]
    assert list(one.lines[0].get_ydata()) == [1.0, 0.1]
    assert list(two.lines[0].get_ydata()) == [0.5]
    assert (one.get_xscale(), one.get_yscale()) == ("log", "log")


def test_curves_without_logarithms_show_zero_and_below():
    frame = pd.DataFrame({"label": "a", "step": [0, 10, 20], "loss": [0.5, 0.0, -1.0]})
    (axes,) = pictures.figure(Curves("x", "title", frame, "step", "loss")).axes
    assert list(axes.lines[0].get_ydata()) == [0.5, 0.0, -1.0]
    low, high = axes.get_xlim()
    assert low < 0 < 20 < high


def test_each_map_has_a_panel_with_its_numbers():
    figure = pictures.figure(MAPS)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["left", "right"]
    assert figure.axes[0].images[0].get_array().tolist() == [[1, 0], [1, 1]]


# The command


def test_the_command_tells_numbers_and_writes_the_page(tmp_path):
    done = attnbench("theory", "equivariance", "--quick", "--out", "made", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("C4 ")
    assert done.stdout.endswith("page: made/theory.html\n")
    assert done.stderr == "C4 equivariance (1 of 1)\n"
    assert "C4 equivariance" in (tmp_path / "made" / "theory.html").read_text()


def test_a_wrong_name_is_refused_before_anything_runs(tmp_path):
    done = attnbench("theory", "saturaton", "--out", "made", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'error: unknown statement "saturaton"; did you mean "saturation"?\n'
    assert not (tmp_path / "made").exists()


def test_a_file_is_no_folder_for_the_page(tmp_path):
    (tmp_path / "made").write_text("")
    done = attnbench("theory", "C4", "--quick", "--out", "made", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: --out made: expected a folder, got a file\n")


def test_help_names_every_statement(tmp_path):
    told = " ".join(attnbench("theory", "--help", cwd=tmp_path).stdout.split())
    assert [key for key in STATEMENTS if f"{key} {statements.name_of(key)}" not in told] == []


def test_what_was_shown_before_an_interruption_is_in_the_page(monkeypatch, tmp_path):
    from attnbench.theory import command

    def show_apart(processes, key, *, quick):
        if key == "C4":
            raise KeyboardInterrupt
        return told(PASS)

    monkeypatch.setattr(statements, "show_apart", show_apart)
    with pytest.raises(KeyboardInterrupt):
        command.theory(["C3", "C4"], quick=True, out=tmp_path)
    assert "rows &amp; columns" in (tmp_path / "theory.html").read_text()


def test_a_statement_that_crashes_is_told_and_harms_no_other(monkeypatch):
    from attnbench.execute.local import FreshProcesses

    monkeypatch.setattr(statements, "STATEMENTS", {"C1": "attnbench.theory.no_such_module", "C4": STATEMENTS["C4"]})
    with FreshProcesses() as processes:
        crashed, shown = (statements.show_apart(processes, key, quick=True) for key in ("C1", "C4"))
    assert crashed.told is None
    assert crashed.failure.startswith("failed: ModuleNotFoundError: No module named 'attnbench.theory.no_such_module'")
    assert "Traceback" in crashed.detail
    assert shown.as_asked


def test_the_page_and_the_list_behind_it_need_no_torch():
    script = "import json, sys, attnbench.theory.page; print(json.dumps('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) is False

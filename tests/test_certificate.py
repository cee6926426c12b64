"""One verdict on results from several dtypes and layers, and a page that tells each thing once."""

import json
from dataclasses import replace

import pytest
import typer

from attnbench import certificate_page as page
from attnbench import check_command
from attnbench.certificate import Issued, Result
from attnbench.registry import Source

ABOUT = {"source": "mine:Mine", "origin": "mine.py", "digest": "0", "torch": "2", "device_name": "a machine"}


def result(name, status="kept", detail="", role="causal", dtype="float64", layer=0):
    return Result(name, role, status, detail, dtype, layer)


def issued(*results, variant="mine"):
    return Issued(variant, {"window": 64, "size": None}, "cpu", ("float64", "bfloat16"), results, **ABOUT)


KEPT = issued(result("shape"), result("finite"), result("shape", dtype="bfloat16"), result("finite", layer=1))
BROKEN = issued(
    result("shape"),
    result("finite", "broken", "NaN at T = 1"),
    result("finite", "broken", "NaN at T = 2", dtype="bfloat16"),
    result("shape", "error", "no such luck", role="cross"),
)
UNTRIED = issued(result("shape", "not applicable", "CUDA alone"), result("shape", "not applicable", "CUDA alone"))


def test_a_promise_counts_once_however_often_it_was_tried():
    assert (KEPT.ok, KEPT.n_kept, KEPT.broken, KEPT.refusal) == (True, 2, (), None)
    assert KEPT.verdict() == "mine keeps its promises (2 kept)"


def test_a_breach_in_any_dtype_stands_and_the_first_one_is_told():
    assert (BROKEN.ok, BROKEN.n_kept, BROKEN.refusal) == (False, 1, None)
    assert BROKEN.verdict() == "mine: 2 promises broken"
    assert BROKEN.breaches() == [
        "mine [causal] finite: broken: NaN at T = 1",
        "mine [cross] shape: error: no such luck",
    ]
    assert replace(BROKEN, results=BROKEN.results[:3]).verdict() == "mine: 1 promise broken"


def test_nothing_tried_is_neither_kept_nor_broken_and_has_a_reason():
    assert (UNTRIED.ok, UNTRIED.broken, UNTRIED.refusal) == (False, (), "CUDA alone")
    assert UNTRIED.verdict() == "mine: nothing could be tried: CUDA alone"


def test_the_table_has_a_row_per_promise_and_a_column_per_role():
    assert page.roles(BROKEN) == ["causal", "cross"]
    assert page.table(BROKEN) == [["shape", "kept", "broken"], ["finite", "broken", "–"]]


def test_the_head_names_what_was_tried_and_leaves_out_options_that_are_not_set():
    assert page.head(KEPT) == [
        "certificate of mine",
        "options: window = 64",
        "source: mine:Mine, mine.py, digest 0",
        "tried on a machine (cpu) with torch 2, in float64, bfloat16, and in float64 as a model's second layer",
    ]


def test_each_reason_is_told_once_with_all_that_it_is_about():
    found = issued(
        result("shape"),
        result("decoding", "not applicable", "no steps"),
        result("packing", "not applicable", "no steps"),
        result("shape", "not applicable", "one way", role="cross"),
        result("decoding", "not applicable", "no steps", role="bidirectional"),
        result("shape", dtype="bfloat16"),
        result("decoding", "not applicable", "told above", dtype="bfloat16"),
        result("packing", "not applicable", "no steps", dtype="bfloat16"),
        result("shape", "not applicable", "too coarse", dtype="bfloat16"),
    )
    assert page.reasons(found) == [
        "– decoding [causal, bidirectional], packing [causal]: no steps",
        "– cross: one way",
        "– causal in bfloat16: too coarse",
    ]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    ("found", "red_alone", "red_among_all"),
    [(KEPT, 0, 0), (BROKEN, 1, 1), (UNTRIED, 1, 0), ("failed: no certificate", 1, 1)],
)
def test_the_exit_status_is_1_whenever_anything_is_red(
    found, red_alone, red_among_all, every, as_json, monkeypatch, capsys
):
    source = Source("mine", "mine.py:Mine", "mine.py")
    monkeypatch.setattr(check_command, "targets", lambda *given: (["mine"], {"mine": source}))
    monkeypatch.setattr(check_command, "_checked", lambda *given: [check_command._Check("mine", found, 1.0)])
    with pytest.raises(typer.Exit) as stopped:
        check_command.check(None if every else "mine", every, as_json=as_json)
    assert stopped.value.exit_code == (red_among_all if every else red_alone)
    printed = capsys.readouterr().out
    if not as_json:
        assert ("1 red" in printed) == (every and bool(red_among_all))
        return
    (told,) = json.loads(printed) if every else [json.loads(printed)]
    assert told["green"] == (found is KEPT)
    assert told.get("untried") == ("CUDA alone" if found is UNTRIED else None)

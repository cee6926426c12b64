"""The report as files: self-contained, safe with any name, whole or not there, and right in what it says."""

import base64
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from frames import costs, failed, frame, run_frame, scores, timed
from pandas import DataFrame

from attnbench.report import PAGE, write
from attnbench.report.answer import answer

VOID = {"meta", "img", "br", "link", "hr"}
NASTY = "<script>alert(1)</script>\"'&{{ 7*7 }}$x$|_"


class Page(HTMLParser):
    """Reads a page, its tags balanced, and keeps text, headings and addresses."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.addresses, self.tags = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def report(run_dir, whole, **more):
    asked = {"question": "Which is faster?", "baseline": "fused", "environments": {"": {}}} | more
    return write(run_dir, whole, **asked)


def read(path):
    return Page(path.read_text(encoding="utf-8"))


def headings(path):
    return re.findall(r"<h2>(.*?)</h2>", path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """A run folder with the report of all kinds of cells."""
    folder = tmp_path_factory.mktemp("run")
    report(
        folder,
        run_frame(),
        environments={
            "": {
                "torch": "2.13.0",
                "cpu": {"cores": 2, "flags": ["avx2", "fma"]},
                "overrides": [],
                "train": {"steps": 5},
            }
        },
    )
    return folder


def test_the_page_stands_alone(whole_run):
    page = read(whole_run / PAGE)
    assert len(page.addresses) == 10
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.addresses)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "@import" not in (whole_run / PAGE).read_text(encoding="utf-8")
    assert base64.b64decode(page.addresses[0].partition(",")[2]).startswith(b"<?xml")


def test_every_picture_and_table_is_a_file_too(whole_run):
    plots = {path.name for path in (whole_run / "plots").iterdir()}
    stems = {"time", "time_ratio", "time_crossover_d", "fits_time", "memory", "memory_ratio", "fits_memory"}
    stems |= {"accuracy", "accuracy_plane", "accuracy_gap"}
    assert plots == {f"{stem}.{kind}" for stem in stems for kind in ("svg", "png")}
    tables = {path.stem for path in (whole_run / "tables").iterdir()}
    assert {"status", "problems", "time", "crossovers_time", "slopes_time", "accuracy_gap", "cost"} <= tables
    assert {path.suffix for path in (whole_run / "tables").iterdir()} == {".csv", ".md", ".tex"}
    assert {path.name for path in whole_run.iterdir()} == {"plots", "tables", PAGE}


def test_the_page_says_what_was_measured(whole_run):
    page = read(whole_run / PAGE).words
    assert "Which is faster?" in page
    assert "156 of 162 cells ok." in page
    assert "cpu.cores 2" in page
    assert "avx2, fma" in page
    assert "overrides" not in page
    assert "made to be oom" in page
    assert "train.steps – 5" in page
    assert "lstm 36 34 1 1 0 0" in page
    assert headings(whole_run / PAGE) == [
        "Cells",
        "Time",
        "Memory",
        "Accuracy",
        "Learning",
        "Cost",
        "Settings",
        "Environment",
    ]


def test_the_answer_names_the_crossovers_per_width():
    T = (64, 128, 256, 512)
    rows = [timed("full", t, d, 1e-8 * t**2 * d) for t in T for d in (64, 128)]
    rows += [timed("linear", t, d, 1e-8 * t * d * 2 * d) for t in T for d in (64, 128)]
    rows += [timed("slow", t, d, 1) for t in T for d in (64, 128)]
    (finding,) = [one for one in answer(frame(rows), "full") if one.about == "Time"]
    assert finding.text == (
        "linear is faster than full from T ≈ 128 (d = 64), 256 (d = 128). "
        "slow is slower than full at every measured T (d = 64, 128)."
    )


def test_the_answer_tells_one_size_and_several_crossings_from_none():
    rows = [timed("a", T, 8, 1, spread=0.001) for T in (64, 128, 256)] + [
        timed("b", 64, 8, 0.431),
        timed("e", 64, 8, 1.01, spread=0.2),
    ]
    rows += [timed("c", T, 8, value) for T, value in ((64, 2), (128, 0.5), (256, 2))]
    rows += [timed("d", T, 8, 1, spread=0.001) for T in (64, 128, 256)]
    text = answer(frame(rows), "a")[0].text
    assert "b takes 0.43 (d = 8) of a's time at T = 64." in text
    assert "e takes 1.01 (d = 8) of a's time at T = 64, ambiguous." in text
    assert "c changes places with a at T ≈ 91 and 181 (d = 8)." in text
    assert "d takes the same time as a within 3 % (d = 8)." in text


def test_the_answer_announces_nothing_out_of_noise():
    noise = np.random.default_rng(0)
    rows = [timed(name, T, 8, noise.normal(1, 0.01), spread=0.02) for name in "ab" for T in (64, 128, 256, 512)]
    rows += [timed("c", T, 8, value, spread=0.4) for T, value in ((64, 1.2), (128, 0.8), (256, 1.1), (512, 5))]
    text = answer(frame(rows), "a")[0].text
    assert text.split(". ") == [
        "b is nowhere told apart from a (d = 8)",
        "c is slower than a at every measured T where they differ (d = 8).",
    ]


def test_a_variant_measured_only_where_the_baseline_is_not_is_not_compared():
    rows = [timed("a", 64, 8, 1), timed("b", 128, 8, 1)]
    assert answer(frame(rows), "a")[0].text == "b was not measured beside a (d = 8)."


def test_the_answer_says_how_far_back_each_variant_reaches():
    (finding,) = answer(run_frame().query("task == 'distance'"), "fused")
    assert finding.about == "Accuracy on distance"
    assert finding.text.startswith(
        "At T = 128, the gap up to which it stays above 0.9: d = 32: fused 64, linear 64, wind"
    )


def learned(*guessing):
    """Two widths at which these (label, d_model) guess."""
    rows = scores(["none", "fused"], sizes=[32], widths=[32, 64])
    bad = {"accuracy": 0.13, "slices": {"4": {"accuracy": 0.13, "n": 9}}}
    return frame(row | (bad if (row["label"], row["d_model"]) in guessing else {}) for row in rows)


def test_the_answer_says_what_is_no_result_and_opens_with_the_control():
    (finding,) = answer(learned(("none", 32), ("none", 64)), "fused")
    assert finding.text == (
        "At T = 32, the gap up to which it stays above 0.9: "
        "d = 32: fused 16, none 0.130 (not above chance); d = 64: fused 16, none 0.130 (not above chance)."
    )


def test_nothing_is_ranked_where_the_control_has_learned_nothing():
    (finding,) = answer(learned(("fused", 32), ("none", 32)), "fused")
    assert finding.text == (
        "At T = 32, variants are not ranked where fused, the control, has learned nothing: "
        "d = 32: 0.130 (not above chance). "
        "At T = 32, the gap up to which it stays above 0.9: d = 64: fused 16, none 16."
    )
    (finding,) = answer(learned(("fused", 32), ("fused", 64)), "fused")
    assert "above 0.9" not in finding.text


def test_the_answer_says_where_parameters_do_not_match():
    by_about = {one.about: one.text for one in answer(run_frame(), "fused")}
    assert by_about["Parameters (layer)"] == (
        "variants are not matched: d = 64: 16.4 k (fused) to 32.8 k (lstm); "
        "d = 128: 65.5 k (fused) to 131 k (lstm); d = 256: 262 k (fused) to 524 k (lstm)."
    )


def test_tasks_in_which_the_same_parameters_differ_share_a_sentence():
    rows = [row | {"n_params_body": 9} for row in scores(["a"], sizes=[32], widths=[32], seeds=[0])]
    rows += [row | {"label": "b", "n_params_body": 18} for row in rows]
    rows += [row | {"task": "copy"} for row in rows]
    found = [one for one in answer(frame(rows), "a") if one.about.startswith("Parameters")]
    assert found == [("Parameters (model, distance, copy)", "variants are not matched: d = 32: 9.00 (a) to 18.0 (b).")]


def test_the_answer_calls_slices_what_the_task_calls_them():
    rows = [row | {"slice_unit": "nesting depth"} for row in scores(["fused"], sizes=[32], widths=[32])]
    assert "the nesting depth up to which it stays above 0.9" in answer(frame(rows), "fused")[0].text


def test_groups_are_told_apart_in_the_answer():
    rows = [timed(name, T, 8, T, threads=n) for name in "ab" for n in (1, 2) for T in (64, 128)]
    times = [one.about for one in answer(frame(rows), "a") if one.about.startswith("Time")]
    assert times == ["Time (1 thread)", "Time (2 threads)"]


def test_names_cannot_run_in_the_page(tmp_path):
    rows = [timed(name, T, 8, 1e-3, phase=NASTY) for name in ("fused", NASTY) for T in (64, 128)]
    rows.append(failed("fused", 256, 8, "failed", phase=NASTY, reason=NASTY))
    rows += [row | {"task": NASTY} for row in scores([NASTY], sizes=[32], widths=[32], seeds=[0])]
    path = report(tmp_path, frame(rows), question=NASTY, environments={"": {NASTY: NASTY}})
    page = read(path)
    assert "script" not in page.tags
    assert NASTY in page.words
    assert "49" not in page.words.replace(NASTY, "")
    names = [part.name for part in (tmp_path / "plots").iterdir()]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names)


def test_sections_without_cells_are_left_out(tmp_path):
    times = [timed("a", 64, 8, 1.0, measures=["time"])]
    assert headings(report(tmp_path, frame(times), baseline="a")) == ["Cells", "Time", "Cost", "Settings"]
    learned = scores(["a"], sizes=[32], widths=[32], seeds=[0])
    assert headings(report(tmp_path, frame(learned), baseline="a")) == [
        "Cells",
        "Accuracy",
        "Learning",
        "Cost",
        "Settings",
    ]


@pytest.mark.parametrize("empty", [DataFrame(), frame([])])
def test_a_run_without_cells_has_a_report(tmp_path, empty):
    page = read(report(tmp_path, empty))
    assert "0 of 0 cells ok." in page.words
    assert "Nothing has been measured yet." in page.words


def test_a_run_that_has_not_begun_has_a_report(tmp_path):
    rows = [failed(name, T, 8, "pending", reason=None) for name in ("fused", "linear") for T in (64, 128)]
    page = read(report(tmp_path, frame(rows))).words
    assert "0 of 4 cells ok." in page
    assert "pending 4 no reason recorded" in page


def test_a_baseline_that_is_not_there_is_said(tmp_path):
    page = read(report(tmp_path, frame([timed("a", 64, 8, 1.0)]), baseline="absent")).words
    assert "The baseline absent is not among the cells" in page


def test_a_second_report_replaces_its_own_files_and_no_others(tmp_path):
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "mine.png").write_text("mine")
    (tmp_path / "records.jsonl").write_text("{}\n")
    report(tmp_path, frame([timed("a", 64, 8, 1.0)]), question="first")
    report(tmp_path, frame([timed("a", 64, 8, 1.0)]), question="second")
    assert "second" in read(tmp_path / PAGE).words
    assert (tmp_path / "plots" / "mine.png").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"plots", "tables", "records.jsonl", PAGE}


@pytest.mark.parametrize("last_write", ["report.html", "time.tex"])
def test_a_full_disk_leaves_the_earlier_report(tmp_path, monkeypatch, last_write):
    report(tmp_path, frame([timed("a", 64, 8, 1.0)]), question="first")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    written = Path.write_text

    def full(path, *args, **kwargs):
        if path.name == last_write:
            raise OSError(28, os.strerror(28))
        return written(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        report(tmp_path, frame([timed("a", 64, 8, 2.0)]), question="second")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_folder_may_have_any_name(tmp_path):
    folder = tmp_path / "läuft: 100% <sure> 'yes'"
    folder.mkdir()
    assert report(folder, frame([timed("a", 64, 8, 1.0)])) == folder / PAGE
    assert read(folder / PAGE).words


def test_long_tables_are_folded(tmp_path):
    page = read(report(tmp_path, frame(costs(["fused"], sizes=[64], widths=range(8, 8 * 30, 8)))))
    assert page.tags.count("details") == len([tag for tag in page.tags if tag == "summary"]) >= 2

"""What the machine can do, in fresh processes, in the environment of a run, and as the roof over its cells."""

import json
import math

import pytest
from frames import frame, timed
from run_rows import cell, record, run_of, tiny_cell
from run_rows import timed as measured

import attnbench
from attnbench.analyse.points import groups
from attnbench.execute.local import FreshProcesses
from attnbench.execute.peaks import peaks
from attnbench.execute.peaks import timed as timed_cells
from attnbench.measure import peaks as measure_peaks
from attnbench.report import tables
from attnbench.report.figures import pictures
from attnbench.report.roofline import roofline
from attnbench.roofs import roofed

PEAKS = {"cpu": {"1": {"float32_flops_per_s": 8e10, "copy_bytes_per_s": 1e10}}}
ROOF = {"roof_flops_per_s": 8e10, "roof_bytes_per_s": 1e10}


def reached(label, T, d, *, flops, moved, time_s, **more):
    facts = {"flops_executed": flops, "bytes_moved": moved, "roof_share": flops / time_s / 8e10}
    return timed(label, T, d, time_s, **facts | ROOF | more)


@pytest.mark.parametrize(("convolution_s", "peak"), [(1.0, 64**3), (0.125, 6 * 64 * 16**2 * 8)])
def test_peaks_are_those_of_the_faster_product_and_of_a_copy(monkeypatch, convolution_s, peak):
    seconds = iter([2.0, convolution_s, 4.0])
    monkeypatch.setattr(measure_peaks, "_best_s", lambda call, device: (call(), next(seconds))[1])
    monkeypatch.setattr(measure_peaks, "WIDTHS", {"cpu": 64})
    monkeypatch.setattr(measure_peaks, "COPIED_BYTES", 4096)
    assert measure_peaks.product_flops_per_s("float64", 1, "cpu") == peak
    assert measure_peaks.copy_bytes_per_s(1, "cpu") == 2048


def test_each_peak_is_measured_once_and_what_fails_says_why():
    with FreshProcesses() as processes:
        found = peaks(processes, [("cpu", 1, "float32"), ("cpu", 1, "no_such_dtype"), ("cpu", 1, "float32")])
    assert set(found["cpu"]["1"]) == {"copy_bytes_per_s", "float32_flops_per_s", "no_such_dtype_flops_per_s"}
    assert found["cpu"]["1"]["float32_flops_per_s"] > 1e8
    assert found["cpu"]["1"]["copy_bytes_per_s"] > 1e7
    assert found["cpu"]["1"]["no_such_dtype_flops_per_s"].startswith("not available: AttributeError")


def test_only_times_are_compared_with_peaks():
    cells = [tiny_cell(measures=("memory",)), tiny_cell(measures=("time", "memory"), threads=2), tiny_cell(threads=2)]
    assert timed_cells(cells) == {("cpu", 2, "float32")}


def test_a_row_has_the_roof_of_its_device_threads_and_dtype():
    row = {"device": "cpu", "threads": 1, "dtype": "float32", "time_s": 2.0, "flops_executed": 4e10}
    assert roofed(row, PEAKS) == row | ROOF | {"roof_share": 0.25}
    for other in ({"threads": 2}, {"device": "cuda"}):
        assert roofed(row | other, PEAKS)["roof_flops_per_s"] is None
    assert "roof_share" not in roofed(row | {"dtype": "bfloat16"}, PEAKS)
    assert "roof_share" not in roofed(row | {"flops_executed": None}, PEAKS)


@pytest.mark.parametrize("peaks", [None, {}, [], {"cpu": 1}, {"cpu": {"1": {"float32_flops_per_s": "not available"}}}])
def test_without_a_measured_peak_there_is_no_roof(peaks):
    row = {"device": "cpu", "threads": 1, "dtype": "float32", "time_s": 2.0, "flops_executed": 4e10}
    assert roofed(row, peaks) == row | {"roof_flops_per_s": None, "roof_bytes_per_s": None}


def test_a_run_read_back_has_its_own_roofs(tmp_path):
    run = run_of(tmp_path, [cell("a")], [measured("a", 1e-3, flops_executed=2e7)])
    (run / "environment.json").write_text(json.dumps({"peaks": PEAKS}))
    (row,) = attnbench.read(run).to_dict("records")
    assert (row["roof_flops_per_s"], row["roof_share"]) == (8e10, pytest.approx(0.25))


def test_flags_of_all_visits_of_a_cell_are_kept(tmp_path):
    seen = [measured("a", 1e-3, flags=["one sample"]), record("a", measure="memory", flags=["differ"])]
    run = run_of(tmp_path, [cell("a", measures=["time", "memory"])], seen)
    assert attnbench.read(run)["flags"].tolist() == [["one sample", "differ"]]


def test_a_point_stands_at_operations_per_byte_and_per_second():
    rows = [reached("full", T, 64, flops=1e6 * T, moved=1e6, time_s=1e-2) for T in (64, 128)]
    rows.append(timed("silent", 64, 64, 1e-3, **ROOF))
    (group,) = groups(frame(rows))
    found = roofline(group)
    assert found.points["label"].tolist() == ["full", "full"]
    assert found.points["x"].tolist() == [64, 128]
    assert found.points["value"].tolist() == pytest.approx([6.4e9, 1.28e10])
    assert found.roof["value"].max() == 8e10
    ridge = found.roof.loc[found.roof["x"] == 8, "value"]
    assert ridge.tolist() == [8e10]
    assert found.roof["value"].min() == 1e10 * min(found.marks)
    assert min(found.marks) <= 4
    assert max(found.marks) >= 128


@pytest.mark.parametrize("gone", ["bytes_moved", "flops_executed"])
def test_who_is_left_out_for_want_of_a_formula_is_named_below_the_picture(gone):
    rows = [reached(label, 64, 64, flops=1e8, moved=1e6, time_s=1e-2) for label in ("full", "mine", "slow")]
    rows[1][gone] = None
    rows[2] |= {"time_s": math.nan, "status": "timeout"}
    (roof,) = (picture.figure for picture in pictures(frame(rows), "full") if "roofline" in picture.name)
    (note,) = (text.get_text() for text in roof.texts if "cells" in text.get_text())
    assert note.replace("\n", " ").endswith("; no formula of operations or bytes: mine")
    (whole,) = (picture.figure for picture in pictures(frame(rows[:1]), "full") if "roofline" in picture.name)
    assert not [text for text in whole.texts if "no formula" in text.get_text()]


@pytest.mark.parametrize("gone", ["bytes_moved", "flops_executed", "roof_flops_per_s", "roof_bytes_per_s", "time_s"])
def test_a_picture_is_drawn_only_where_bytes_and_peaks_are_known(gone):
    rows = [reached("full", T, 64, flops=1e6 * T, moved=1e6, time_s=1e-2) for T in (64, 128)]
    names = [picture.name for picture in pictures(frame(rows), "full")]
    assert [name for name in names if "roofline" in name] == ["time_roofline"]
    without = frame([row | {gone: math.nan} for row in rows])
    assert not [picture.name for picture in pictures(without, "full") if "roofline" in picture.name]


def test_the_cost_table_says_the_share_of_the_peak():
    rows = [reached("full", 64, 64, flops=1e6, moved=2**20, time_s=1e-3), timed("silent", 64, 64, 1e-3)]
    (cost,) = (table for table in tables.tables(frame(rows), "full") if table.name == "cost")
    assert cost.shown["roof_share"].tolist() == ["1.2 %", "not available"]
    assert cost.shown["bytes_moved"].tolist() == ["1.00 MiB", "not available"]

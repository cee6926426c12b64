"""Figures of crossovers show what was measured once, beside what operations say, and nothing between."""

import numpy as np
import pytest
from frames import frame, timed

from attnbench.analyse.points import TIME, asked, groups
from attnbench.report import crossover_plot
from attnbench.report.figures import pictures

SIZES = [64, 128, 181, 256, 362, 512, 1024, 2048]


def rows(laws, widths=(64, 128), batches=(1,)):
    """Cells of laws of (T, d, B); operations of `fused` are T² d, those of others T d · 2 d, mixing half of that."""
    found = []
    for label, law in laws.items():
        for d, B, T in [(d, B, T) for d in widths for B in batches for T in SIZES]:
            flops = float(T**2 * d if label == "fused" else T * d * 2 * d)
            core = flops if label == "fused" else flops / 2
            found.append(timed(label, T, d, law(T, d, B), spread=0.005, B=B, flops=flops, flops_core=core))
    return found


def fused(T, d, B):
    return 1e-9 * T**2 * d


def crossing_at(at):
    return lambda T, d, B: fused(T, d, B) * at(d, B) / T


def split(laws, **more):
    return groups(asked(frame(rows(laws, **more)), TIME))


def test_the_crossover_stands_over_the_width_beside_that_of_operations():
    (group,) = split({"fused": fused, "quick": crossing_at(lambda d, B: 3 * d)})
    found = crossover_plot.over_width(group, "fused")
    assert found.points["value"].tolist() == pytest.approx([3 * 64, 3 * 128])
    assert (found.points["low"] < found.points["value"]).all()
    assert (found.points["value"] < found.points["high"]).all()
    by_name = {name: part["value"].tolist() for name, part in found.references.groupby("name")}
    assert by_name["T = d"] == [64, 128]
    assert by_name["equal operations"] == pytest.approx([128, 256])
    assert by_name["equal operations of mixing alone"] == pytest.approx([128])  # at d = 64 on no side of its range


def test_a_variant_without_a_crossover_at_two_widths_is_not_drawn():
    laws = {
        "fused": fused,
        "one": crossing_at(lambda d, B: 200 if d == 64 else 1e6),
        "none": crossing_at(lambda d, B: 1),
    }
    (group,) = split(laws)
    assert crossover_plot.over_width(group, "fused") is None


def test_a_width_without_a_crossover_is_a_hole_and_is_counted():
    (group,) = split(
        {"fused": fused, "quick": crossing_at(lambda d, B: 1e6 if d == 128 else 3 * d)}, widths=(64, 128, 256)
    )
    found = crossover_plot.over_width(group, "fused")
    assert found.n_other == 1
    assert np.isnan(found.points.set_index("x").loc[128, "value"])


def test_over_the_batch_the_crossover_counts_in_widths():
    parts = split({"fused": fused, "quick": crossing_at(lambda d, B: 8 * d / B)}, batches=(1, 2, 4))
    found = crossover_plot.over_batch(parts, "fused")
    by_width = found.points.groupby("facet")["value"].apply(list).to_dict()
    assert by_width["d = 64"] == pytest.approx([8, 4, 2])
    assert set(found.references["value"]) == {1.0}


def test_one_batch_is_no_figure():
    assert crossover_plot.over_batch(split({"fused": fused, "quick": crossing_at(lambda d, B: 3 * d)}), "fused") is None


def test_a_report_holds_both_figures_where_widths_and_batches_are_several():
    cells = rows({"fused": fused, "quick": crossing_at(lambda d, B: 8 * d / B)}, batches=(1, 4))
    names = [picture.name for picture in pictures(frame(cells), "fused")]
    assert {"time_crossover_d_B-1", "time_crossover_d_B-4", "time_crossover_B"} <= set(names)

"""Variants at widths that give them as many parameters as another."""

import pytest
from run_rows import tiny_cell
from runs import write_sweep

import attnbench
from attnbench.errors import RequestError
from attnbench.execute.match import at_width, matched
from attnbench.registry import VARIANTS, installed
from attnbench.report import of_runs
from attnbench.sweep import VariantUse

GRID = '[[grid]]\nvariant = ["full", "lstm", "none"]\nT = 16\nlevel = "model"\nmeasure = "memory"\nd_model = 64\n'


def a_cell(variant="lstm", **changes):
    return tiny_cell(**{"parts": (VariantUse(variant),), "d_model": 64, "n_heads": 4} | changes)


def test_each_row_tells_the_width_that_gives_it_the_parameters_of_the_reference(tmp_path):
    frame = attnbench.run(write_sweep(tmp_path, GRID, 'match_parameters = "full"'), out=tmp_path / "run").frame
    assert list(frame["status"]) == ["ok"] * 3
    assert set(frame["d_model"]) == {64}  # by which they are compared
    n = dict(zip(frame["variant"], frame["n_params_body"], strict=True))
    d = dict(zip(frame["variant"], frame["d_used"], strict=True))
    assert d["full"] == 64
    assert d["lstm"] < 64 < d["none"]
    assert not (frame["d_used"] % frame["n_heads"]).any()
    assert all(abs(count / n["full"] - 1) < 0.03 for count in n.values())  # the next width changes it by 6 %
    assert list(frame["d_ff"]) == [4 * width for width in d.values()]


def test_without_the_request_every_width_is_the_one_asked_for(tmp_path):
    frame = attnbench.run(write_sweep(tmp_path, GRID), out=tmp_path / "run").frame
    assert set(frame["d_used"]) == {64}


def test_the_report_tells_widths_only_where_they_were_changed(tmp_path):
    for name, head in (("asked", ""), ("matched", 'match_parameters = "full"')):
        (tmp_path / name).mkdir()
        run = attnbench.run(write_sweep(tmp_path / name, GRID, head), out=tmp_path / name / "run")
        of_runs([run.path])
        first = (run.path / "tables" / "cost.csv").read_text().splitlines()[0]
        assert ("d_used" in first) == (name == "matched")


def test_no_other_width_comes_nearer_to_the_parameters_of_the_reference():
    (found,) = matched([a_cell()], (VariantUse("fused"),), installed(VARIANTS))
    aim = 4 * 64 * 64
    n = {d: 8 * d * d + 8 * d for d in range(4, 129, 4)}  # torch's LSTM: four gates, two matrices and two biases each
    assert abs(n[found.width] - aim) == min(abs(count - aim) for count in n.values())


@pytest.mark.parametrize("changes", [{"level": "core"}, {"role": "bidirectional", "d_model": 65, "n_heads": 1}])
def test_a_cell_without_parameters_or_that_cannot_be_built_stays_as_it_is(changes):
    cell = a_cell("linear" if "level" in changes else "lstm", **changes)
    assert matched([cell], (VariantUse("fused"),), installed(VARIANTS)) == [cell]


def test_what_runs_both_ways_is_matched_at_a_width_that_it_can_halve():
    cell = a_cell("gru", role="bidirectional", d_model=66, n_heads=3)
    (found,) = matched([cell], (VariantUse("fused"),), installed(VARIANTS))
    assert found.d_used is not None
    assert found.width % 6 == 0
    assert found.width < 66


def test_a_changed_width_is_a_cell_of_its_own_and_the_asked_one_is_not():
    cell = a_cell()
    assert at_width(cell, 48).id != cell.id
    assert at_width(a_cell(d_ff=256), 32).d_ff == 128


def test_a_reference_that_is_not_measured_is_refused(tmp_path):
    sweep = write_sweep(tmp_path, GRID, 'match_parameters = "ful"')
    with pytest.raises(RequestError, match=r'match_parameters: "ful" is not among the variants; did you mean "full"\?'):
        attnbench.run(sweep, out=tmp_path / "run")

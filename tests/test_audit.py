"""A claim is judged by how a cost grows at its largest sizes: made-up costs, then the memory and the runs of cheats."""

import math
from dataclasses import replace

import pytest
import torch
import typer
from hypothesis import given
from hypothesis import strategies as st
from runs import PLUGINS
from typer.testing import CliRunner

from attnbench import audit as auditing
from attnbench import audit_command, cli
from attnbench.analyse.audit import ABOVE, BELOW, LEAVING, Point, growth, judge, resolved_from
from attnbench.errors import RequestError
from attnbench.execute.listener import Listener
from attnbench.execute.local import FreshProcesses
from attnbench.measure.memory import peak_bytes
from attnbench.mixer import Spec
from attnbench.registry import file_sources, load
from attnbench.report import complexity, writers

SIZES = (256, 512, 1024, 2048)


def points(cost, sizes=SIZES, spread=0.0):
    """cost(size) at each size, with an interval of so large a share to both sides."""
    return [Point(size, cost(size), cost(size) * (1 - spread), cost(size) * (1 + spread)) for size in sizes]


# Growth


@given(power=st.floats(0, 3), factor=st.floats(1e-9, 1e9))
def test_the_exponent_of_a_power_law_is_its_power(power, factor):
    found = growth(points(lambda T: factor * T**power))
    assert found.exponent == pytest.approx(power, abs=1e-9)
    assert (found.low, found.high) == pytest.approx((power, power), abs=1e-9)
    assert (found.smallest, found.largest) == (512, 2048)


@given(spread=st.floats(0.01, 0.5), power=st.floats(0, 3))
def test_the_interval_holds_the_exponent_and_widens_with_the_noise(spread, power):
    narrow, wide = (growth(points(lambda T: T**power, spread=part)) for part in (spread / 2, spread))
    assert narrow.low < narrow.exponent < narrow.high
    assert wide.low < narrow.low
    assert wide.high > narrow.high


def test_the_errors_of_both_ends_add_up_in_quadrature():
    found = growth(points(lambda T: T, spread=0.1))
    half = math.hypot(math.log(1 / 0.9), math.log(1.1)) / math.log(4)
    assert found.exponent - found.low == pytest.approx(half)
    assert found.high - found.exponent == pytest.approx(half)


def test_small_sizes_do_not_count():
    late = points(lambda T: T**2, (1024, 2048, 4096))
    assert growth([*points(lambda T: 1e9, (128, 256, 512)), *late]) == growth(late)


@pytest.mark.parametrize("sizes", [(), (256,), (256, 512), (256, 2048), (512, 700, 1024)])
def test_too_few_sizes_give_no_growth_and_no_verdict(sizes):
    assert growth(points(lambda T: T, sizes)) is None
    found = judge("time", "T", 1, points(lambda T: T, sizes), "oom")
    assert (found.status, found.growth) == ("not resolvable", None)
    assert "oom" in found.why


def test_a_point_without_a_value_is_no_point():
    broken = [Point(4096, math.nan, math.nan, math.nan), Point(8192, 0.0, 0.0, 0.0)]
    assert growth([*points(lambda T: T), *broken]) == growth(points(lambda T: T))


# Verdicts


def status(cost, claimed, law, spread=0.03, sizes=SIZES):
    return judge(cost, "T", claimed, points(law, sizes, spread if cost == "time" else 0.0)).status


@pytest.mark.parametrize("cost", ["time", "memory"])
def test_growth_as_claimed_is_confirmed_and_growth_by_a_power_more_is_refuted(cost):
    for claimed in (1, 1.5, 2):
        assert status(cost, claimed, lambda T: 1e-9 * T**claimed) == "confirmed"  # noqa: B023  # called at once
        assert status(cost, claimed, lambda T: 1e-9 * T ** (claimed + 1)) == "refuted"  # noqa: B023  # called at once


def test_a_logarithm_refutes_nothing():
    assert status("time", 1, lambda T: T * math.log(T)) == "confirmed"


def test_attention_that_leaves_the_caches_is_not_refuted():
    assert status("time", 2, lambda T: T**2.3, spread=0.02) == "confirmed"
    assert status("time", 2, lambda T: T**2.6, spread=0.02) == "not resolvable"
    assert status("time", 2, lambda T: T**2.6, spread=0.02, sizes=(*SIZES, 4096)) == "refuted"


LEFT = {
    256: 0.97e-3,
    512: 4.5e-3,
    1024: 27.2e-3,
    2048: 195.6e-3,
}  # `full`, as measured: at 512 its weights fit the caches


def test_a_step_is_waited_out_and_then_told_from_growth():
    found = judge("time", "T", 2, points(LEFT.__getitem__, tuple(LEFT), 0.03))
    assert (found.status, found.noisy, found.resolved_from) == ("not resolvable", False, 4096)
    for power, told in ((2.1, "confirmed"), (3, "refuted")):
        law = LEFT | {4096: LEFT[2048] * 2**power}
        later = judge("time", "T", 2, points(law.__getitem__, tuple(law), 0.03))
        assert later.status == told
    assert later.growth.smallest == 1024  # a verdict against a claim is never read from one doubling


def test_a_step_in_memory_is_growth():
    law = LEFT | {4096: LEFT[2048] * 4}
    assert judge("memory", "T", 2, points(law.__getitem__, tuple(law))).status == "refuted"


def test_bytes_know_no_caches():
    assert status("memory", 1, lambda T: T**1.3) == "refuted"


def test_a_claim_that_is_larger_than_the_growth_is_never_refuted():
    for law in (lambda T: 1.0, lambda T: T, lambda T: T + 1e-5 * T**2):
        assert status("time", 2, law) == "not resolvable"


def test_a_cheat_whose_cheap_terms_still_show_is_refuted():
    assert status("memory", 1, lambda T: 4 * (9 * T * 64 + 2 * 4 * T**2)) == "refuted"
    assert status("time", 1, lambda T: 1e-4 + 2e-7 * T + 2e-9 * T**2, sizes=(*SIZES, 4096)) == "refuted"


def test_noise_keeps_a_claim_open_and_a_cheat_unproved():
    for law, larger in ((lambda T: T**2, None), (lambda T: T**3, 4096)):
        found = judge("time", "T", 2, points(law, spread=0.7))
        assert (found.status, found.noisy, found.resolved_from) == ("not resolvable", True, larger)


def test_a_hidden_term_is_told_with_the_size_that_would_show_it():
    def law(T):
        return 1e-4 + 1e-6 * T + 1e-10 * T**2

    found = judge("time", "T", 2, points(law, spread=0.02))
    assert (found.status, found.noisy) == ("not resolvable", False)
    assert "hide" in found.why
    assert found.resolved_from > 2048
    at = (found.resolved_from / 4, found.resolved_from / 2, found.resolved_from)
    assert growth(points(law, at)).exponent >= 2 - BELOW
    before = tuple(size / 2 for size in at)
    assert growth(points(law, before)).exponent < 2 - BELOW
    assert judge("time", "T", 2, points(law, at)).status == "confirmed"


def test_a_term_that_is_not_there_is_resolved_by_no_size():
    assert resolved_from(points(lambda T: 3 + 2 * T), 2, "memory") is None
    assert "no term in T^2 shows" in judge("memory", "T", 2, points(lambda T: 3 + 2 * T)).why


@given(claimed=st.sampled_from([1, 1.5, 2, 3]), power=st.floats(0, 4), cost=st.sampled_from(["time", "memory"]))
def test_exact_power_laws_are_judged_by_the_distance_to_the_claim(claimed, power, cost):
    distance = power - claimed
    found = judge(cost, "d", claimed, points(lambda d: d**power)).status
    if distance > max(ABOVE[cost], math.log(LEAVING[cost]) / math.log(SIZES[-1] / SIZES[0])) + 1e-6:
        assert found == "refuted"
    elif distance > ABOVE[cost] + 1e-6:
        assert found == "not resolvable"
    elif -BELOW + 1e-6 < distance < ABOVE[cost] - 1e-6:
        assert found == "confirmed"
    elif distance < -BELOW - 1e-6:
        assert found == "not resolvable"


# Cheats


def source(name):
    return next(one for one in file_sources(PLUGINS / "cheats.py") if one.name == name)


def core_bytes(name, T, d_model):
    """The peak of one forward and backward pass of the core."""
    mixer, H = load(source(name))(Spec(d_model, 4, T)), 4
    q, k, v = (torch.randn(1, H, T, d_model // H, requires_grad=True) for _ in range(3))
    return float(peak_bytes(lambda: torch.autograd.grad(mixer.attend(q, k, v).sum(), (q, k, v)), "cpu"))


@pytest.mark.parametrize("name", ["dense_window", "says_linear"])
def test_all_pairs_behind_a_claim_of_few_are_refuted_by_their_memory(name):
    measured = points(lambda T: core_bytes(name, T, 64), (256, 512, 1024))
    assert judge("memory", "T", 1, measured).status == "refuted"


def test_a_state_for_each_position_is_refuted_by_its_memory_in_d_and_not_in_T():
    over_d = points(lambda d: core_bytes("stored_states", 128, d) - core_bytes("stored_states", 64, d), (64, 128, 256))
    assert judge("memory", "d", 1, over_d).status == "refuted"
    over_T = points(lambda T: core_bytes("stored_states", T, 64), (128, 256, 512))
    assert judge("memory", "T", 1, over_T).status == "confirmed"


class Quiet(Listener):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


SMALL = auditing.Extent((256, 512, 1024), (256, 512, 1024), d_time=(32, 64, 128), d_memory=(32, 64, 128), visits=1)


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """A real audit of a cheat, at small sizes, and one of what breaks its promises."""
    folder = tmp_path_factory.mktemp("audit")
    with pytest.MonkeyPatch.context() as patch, FreshProcesses() as processes:
        patch.setattr(auditing, "_further", lambda found, extent, took_s: extent)
        patch.setattr(auditing, "PROBE_T", (32, 64))
        patch.setattr(auditing, "TIMING", {"warmup_s": 0.0, "max_s": 0.01, "repeats": 0})
        unsound = file_sources(PLUGINS / "leaks_future.py")[0]
        return [
            auditing.audit(processes, one, auditing.claimed(processes, one), folder / one.name, Quiet, SMALL)
            for one in (source("dense_window"), unsound)
        ]


def test_a_run_refutes_a_window_on_a_dense_mask(audited):
    found = audited[0]
    told = complexity.lines(found)
    assert found.wrong
    assert [line.split(": ")[0] for line in told[1:]] == ["time in T", "memory in T", "time in d", "memory in d"]
    assert told[2].startswith("memory in T: refuted: claimed T, measured T^")
    assert "T = 256 to 1024 (core, d = 64)" in told[2]
    assert found.probe["layers"] == [math.ceil(31 / 15), math.ceil(63 / 15)]
    assert found.state_bytes == pytest.approx([2 * 64 * 4 * T for T in (256, 512)], rel=1e-3)


def test_what_breaks_its_promises_is_not_measured_and_told_why(audited):
    found = audited[1]
    assert found.wrong
    (line,) = complexity.lines(found)
    assert line.startswith("block_mean: not measured: nonconformant: causal_values: ")


def test_table_one_has_a_row_for_each_with_claims_beside_measurements(audited):
    table = complexity.table(audited)
    assert [row[0] for row in table.rows] == ["variant", "dense_window", "block_mean"]
    cheat = dict(zip(table.rows[0], table.rows[1], strict=True))
    assert cheat["time"] == "T d^2 + T d window"
    assert cheat["path"] == "T / window"
    assert cheat["layers at T = 32 and 64"] == "3, 5"
    assert cheat["state at T = 256 and 512"] == "128 KiB, 256 KiB"
    assert " refuted" in cheat["measured in T "]
    assert " at T = 2048, d = 96" in cheat["predicted"]
    for text in (writers.markdown(table), writers.latex(table)):
        assert "dense" in text
    assert set(table.data["status"]) <= {"confirmed", "refuted", "not resolvable"}


@pytest.mark.parametrize("keep", [True, False])
def test_an_audit_of_all_leaves_table_one_and_the_exit_status_of_the_worst(audited, tmp_path, monkeypatch, keep):
    monkeypatch.setattr(audit_command, "_audits", lambda *arguments, **more: audited)
    done = CliRunner().invoke(cli.app, ["audit", "--all", *(["--out", str(tmp_path)] if keep else [])])
    assert done.exit_code == 1, done.output
    assert {file.name for file in tmp_path.iterdir()} == (
        {f"table1{end}" for end in writers.FORMATS} if keep else set()
    )
    assert ("dense" in done.stdout) != keep


def test_a_sweep_grows_where_a_claim_is_open_and_time_is_left(audited):
    found = audited[0]
    (claim,) = [one for one in found.verdicts if (one.cost, one.axis) == ("memory", "d")]
    wider = auditing._further(found, SMALL, took_s=10.0)
    assert (wider.d_memory != SMALL.d_memory) == (claim.resolved_from is not None)
    assert wider != SMALL
    assert auditing._further(found, SMALL, took_s=200.0) == SMALL


def test_what_claims_nothing_is_given_its_growth_and_no_verdict(audited):
    silent = replace(audited[0], claimed=replace(audited[0].claimed, claim=None))
    assert (silent.wrong, silent.verdicts) == (False, [])
    head, *told = complexity.lines(silent)
    assert head == "dense_window: makes no claim, so there is no verdict"
    assert told
    assert all(": no claim: measured " in line for line in told)
    assert complexity.table([silent]).rows[1][1] == "–"


def test_one_of_all_that_cannot_be_read_is_told_and_the_others_are_audited(monkeypatch, capsys, tmp_path, audited):
    def claimed(processes, source):
        if source.name != "gru":
            return audited[0].claimed
        raise RequestError(["gru: no module named bricks"])

    monkeypatch.setattr(auditing, "claimed", claimed)
    monkeypatch.setattr(auditing, "audit", lambda *arguments: audited[0])
    with pytest.raises(typer.Exit) as ended:
        audit_command.audit(every=True, out=tmp_path)
    assert ended.value.exit_code == 1
    assert "gru: not measured: gru: no module named bricks" in capsys.readouterr().out
    assert (tmp_path / "table1.md").read_text().count("dense") > 5


def test_what_was_audited_before_an_interruption_stands_in_the_table(monkeypatch, tmp_path, audited):
    def interrupted(*arguments, **more):
        yield audited[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(audit_command, "_audits", interrupted)
    with pytest.raises(KeyboardInterrupt):
        audit_command.audit(every=True, out=tmp_path)
    assert "dense" in (tmp_path / "table1.md").read_text()

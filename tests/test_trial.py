"""A trial says of one variant what it costs and learns, beside rivals: made-up runs, and a real one at small sizes."""

import shlex
import time
from pathlib import Path

import pytest
from commands import attnbench
from frames import costs, failed, frame, scores, timed
from runs import PLUGINS
from test_html import NASTY, Page

from attnbench import trial
from attnbench.analyse import tried as shape
from attnbench.analyse.audited import Claimed
from attnbench.analyse.tried import BASELINE, Tried
from attnbench.execute.listener import Listener
from attnbench.execute.local import FreshProcesses
from attnbench.records import read
from attnbench.registry import file_sources
from attnbench.report import tried, try_page

ROOT = Path(__file__).parent.parent
LABELS = ("mine", "fused", "linear", "lstm")
CLAIM = {"time": "T d^2 + T^2 d", "memory": "T d + H T^2"}
KEPT = "mine keeps its promises (44 kept)"


def cost_rows(change=lambda row: {}):
    """Costs of four layers, and what the claim of `mine` is read from; `change` gives what differs of a row."""
    rows = costs(LABELS, shape.LENGTHS, shape.WIDTHS)
    rows += (
        costs(("mine",), (1024,), (64,)) + costs(("mine",), (64,), (64, 128, 256)) + costs(("mine",), (128,), (128,))
    )
    return [row | change(row) for row in rows]


def score_rows(**changes):
    """One task, with an accuracy for each label of `changes`, or the status of what has none."""
    rows = scores(("mine", "fused"), (64,), (64,), (0,))
    for row in rows:
        found = changes.get(row["label"], 1.0)
        row.update({"accuracy": found} if not isinstance(found, str) else {"status": found, "accuracy": None})
        row["slices"] = row["slices"] if row["accuracy"] else None
    return rows


def made(costs=None, scores=None, claim=CLAIM, name="mine"):
    rows = [*(cost_rows() if costs is None else costs), *(score_rows() if scores is None else scores)]
    return Tried(Claimed(name, claim, (), "causal", core=False), KEPT, frame(rows))


def texts(table):
    return "; ".join(cell for row in table.rows for cell in row) + table.note


def of_mine(law):
    """A change of time that makes `mine` take law(T, d) times as long as fused."""

    def change(row):
        fused = 1e-6 * row["T"] * row["d_model"]
        return timed(row["label"], row["T"], row["d_model"], fused * (law(row["T"]) if row["label"] == "mine" else 1))

    return change


def test_every_variant_stands_at_every_size_with_its_ratio_to_the_baseline():
    for table, word in zip(tried.costs(made()), ("faster", "heavier", "same"), strict=True):
        assert table.rows[0] == ["d_model", "variant", "T = 128", "T = 512", "T = 2048"]
        assert [row[:2] for row in table.rows[1:]] == [[str(d), label] for d in shape.WIDTHS for label in LABELS]
        assert all((", " in cell) == (row[1] != BASELINE) for row in table.rows[1:] for cell in row[2:])
        assert word in texts(table)


def test_operations_of_a_variant_without_a_formula_are_not_available_and_nothing_is_guessed():
    table = tried.costs(made(cost_rows(lambda row: {"flops": None} if row["label"] == "mine" else {})))[2]
    assert [set(row[2:]) for row in table.rows if row[1] == "mine"] == [{"not available"}] * len(shape.WIDTHS)


def test_a_cell_without_a_value_shows_why():
    lost = cost_rows(lambda row: failed(row["label"], row["T"], row["d_model"], "oom") if row["T"] == 2048 else {})
    found = made([row | ({"time_s": None, "peak_bytes": None} if row.get("status") else {}) for row in lost])
    assert "oom" in texts(tried.costs(found)[0])
    assert "made to be oom" in texts(tried.troubles(found))
    assert found.wrong


def test_a_crossover_inside_the_measured_range_is_told_and_none_is_said_so():
    crossing = tried.crossovers(made(cost_rows(of_mine(lambda T: (T / 512) ** -0.5))))
    assert "faster from T ≈ 512 [" in texts(crossing)
    none = tried.crossovers(made(cost_rows(of_mine(lambda T: 2.0))))
    assert "no crossover in the measured range (slower, T = 128 to 2048)" in texts(none)


def test_without_any_ratio_the_reason_stands_in_its_place():
    def lost(row):
        return failed(row["label"], row["T"], row["d_model"], "timeout", time_s=None) if row["label"] == "mine" else {}

    assert "timeout: made to be timeout" in texts(tried.crossovers(made(cost_rows(lost))))


def test_the_baseline_itself_is_compared_with_nothing():
    found = made(scores=score_rows()[1:], name=BASELINE)
    assert tried.crossovers(found) is None
    assert [row[0] for row in tried.scores(found).rows[1:]] == [BASELINE, "floor"]
    assert "crossover fused linear" in tried.following(found, BASELINE, [])[1].text


def test_scores_stand_beside_the_control_and_the_floor():
    table = tried.scores(made())
    assert [row[:2] for row in table.rows[1:]] == [["mine", "1.000"], ["fused", "1.000"], ["floor", "0.125"]]
    assert "control has" not in table.note


def test_what_guessing_reaches_is_not_above_chance():
    table = tried.scores(made(scores=score_rows(mine=0.126)))
    assert table.rows[1][1] == "0.126, not above chance"
    assert "control has" not in table.note


@pytest.mark.parametrize(
    ("score", "told"), [(0.126, "has learned nothing"), ("timeout", "has no score (timeout)"), ("pending", "(pending)")]
)
def test_where_the_control_fails_nothing_follows_for_others(score, told):
    table = tried.scores(made(scores=score_rows(fused=score)))
    assert told in table.note
    assert "so that nothing follows for others" in table.note


def test_a_claim_below_what_is_measured_is_refuted():
    claim = CLAIM | {"memory": "T d"}
    square = cost_rows(lambda row: {"peak_bytes": 4.0 * (9 * row["T"] * row["d_model"] + 8 * row["T"] ** 2)})
    found = made(square, claim=claim)
    assert found.wrong
    assert any(line.startswith("memory in T: refuted: claimed T") for line in tried.verdict(found))
    assert "refuted" in tried.following(found, "mine.py", [])[0].why


def test_a_time_that_something_disturbed_refutes_nothing():
    def cubic(row):
        return timed(row["label"], row["T"], row["d_model"], 1e-9 * row["T"] ** 3)

    assert made(cost_rows(cubic)).wrong
    busy = made([row | {"flags": ["disturbed: sentinel slow"]} for row in cost_rows(cubic)])
    assert "time in T: not resolvable" in tried.verdict(busy)[1]
    assert "(disturbed)" in tried.verdict(busy)[1]
    assert not busy.wrong
    assert "memory in T: " in tried.verdict(busy)[2]
    assert "fewer than three" not in tried.verdict(busy)[2]
    assert f"{len(cost_rows())} of {len(busy.frame)} cells have no undisturbed time" in tried.cautions(busy)[0]
    assert "refuted" not in tried.following(busy, "mine", [])[0].why


@pytest.mark.parametrize(("status", "wrong"), [("timeout", False), ("failed", True), ("oom", True)])
def test_training_that_began_late_speaks_against_nobody(status, wrong):
    assert made(scores=score_rows(mine=status)).wrong == wrong


def test_no_claim_has_no_verdict_and_is_not_wrong():
    found = made(claim=None)
    assert "makes no claim" in tried.verdict(found)[0]
    assert not found.wrong


def test_what_time_did_not_suffice_for_is_counted_and_no_failure():
    found = made(cost_rows(lambda row: {"status": "pending", "reason": "1 of 2 visits made"}))
    assert f"{len(cost_rows())} of {len(found.frame)} cells have fewer visits" in tried.cautions(found)[0]
    assert tried.troubles(found) is None
    assert not found.wrong


def test_nothing_is_said_of_trouble_where_there_is_none():
    assert (tried.troubles(made()), tried.cautions(made())) == (None, [])


@pytest.mark.parametrize(
    ("target", "plugins", "told"),
    [
        ("a b.py:Mine", [], "--plugin 'a b.py' --set"),
        ("mine", ["x.py"], "--plugin x.py --set"),
        ("mine.py", [], "--plugin mine.py --set"),
        ("mine", [], "recall.toml --set"),
    ],
)
def test_the_commands_to_run_next_are_those_of_this_variant(target, plugins, told):
    commands = [one.text for one in tried.following(made(), target, plugins)]
    assert [shlex.split(text)[:2] for text in commands] == [
        ["attnbench", what] for what in ("audit", "crossover", "run")
    ]
    assert told in commands[2]
    assert all(target in shlex.split(text) for text in commands[:2])
    assert all(("--plugin" in text) == bool(plugins) for text in commands[:2])


def test_the_page_is_whole_and_no_name_breaks_it(tmp_path):
    rows = [*cost_rows(), *score_rows()]
    rows = [row | {"label": NASTY, "variant": NASTY} if row["label"] == "mine" else row for row in rows]
    found = Tried(Claimed(NASTY, None, (), "causal", core=False), f"{NASTY} keeps its promises", frame(rows))
    page = Page(try_page.write(found, tried.following(found, NASTY, []), tmp_path).read_text(encoding="utf-8"))
    assert page.tags.count("img") == len(try_page.PICTURES)
    assert all(address.startswith("data:") or address == "report.html" for address in page.addresses)
    assert NASTY in page.words
    for heading in ("What it costs", "What it learns in a few hundred steps", "What to run next"):
        assert heading in page.words


# Whole runs


class Quiet(Listener):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_a_real_trial_at_small_sizes_fills_every_part(tmp_path, monkeypatch):
    monkeypatch.setattr(shape, "LENGTHS", (16, 512, 1024))
    monkeypatch.setattr(shape, "WIDTHS", (16,))
    monkeypatch.setattr(trial, "RIVALS", (BASELINE,))
    monkeypatch.setattr(trial, "TIMING", {"visits": 1, "warmup_s": 0.0, "max_s": 0.01, "precision": 100.0})
    monkeypatch.setattr(trial, "TRAIN", trial.TRAIN | {"steps": 2, "n_validation": 8, "n_test": 8})
    source = next(one for one in file_sources(PLUGINS / "cheats.py") if one.name == "says_linear")
    about = Claimed("says_linear", {"time": "T d^2", "memory": "T d"}, (), "causal", core=True)
    asked = {"plugins": [PLUGINS / "cheats.py"], "began_s": time.monotonic()}
    with FreshProcesses() as processes:
        processes.warm_up()
        assert trial.keeps_promises(processes, source) == (True, ["says_linear keeps its promises (44 kept)"])
    found = trial.run(about, "kept", tmp_path / "run", Quiet, **asked)
    assert set(found.frame["status"]) == {"ok"}
    assert tried.troubles(found) is None
    assert any(line.startswith("memory in T: refuted") for line in tried.verdict(found))
    assert found.wrong
    assert texts(tried.scores(found)).count("not above chance") == 5  # both variants on both tasks, and the note
    assert "not available" in texts(tried.costs(found)[2])
    assert len(read(tmp_path / "run")) == len(found.frame)


def test_a_broken_promise_ends_a_trial(tmp_path):
    done = attnbench("try", PLUGINS / "leaks_future.py", "--out", tmp_path / "out")
    assert done.returncode == 1
    assert "block_mean [causal] causal_values: broken: " in done.stdout
    assert "promises broken" in done.stdout.splitlines()[-1]
    assert "kept" not in done.stdout
    assert not (tmp_path / "out").exists()


def test_what_needs_a_gpu_is_unsupported_with_its_reason_and_no_failure(tmp_path):
    (tmp_path / "tiles.py").write_text(
        "from attnbench import Attention\n"
        "class Tiles(Attention):\n"
        "    @classmethod\n"
        "    def unsupported(cls, spec, use, **options):\n"
        "        return None if use.device == 'cuda' else f'device={use.device}: its kernel is for GPUs'\n"
    )
    done = attnbench("try", tmp_path / "tiles.py")
    assert done.returncode == 0
    assert done.stdout.startswith("tiles: unsupported: device=cpu: its kernel is for GPUs; nothing was measured")
    assert "GPU, attnbench run SWEEP --set device=cuda" in done.stdout


def test_a_trial_that_cannot_be_is_refused_in_one_line(tmp_path):
    (tmp_path / "bad.py").write_text("import no_such_module_at_all\n")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "cells.jsonl").touch()
    for arguments, told in [
        (("ful",), 'unknown variant "ful"; did you mean "full"?'),
        ((tmp_path / "bad.py",), "ModuleNotFoundError: No module named 'no_such_module_at_all' (bad.py:1)"),
        ((PLUGINS / "cheats.py",), "say which"),
        (("full", "--out", tmp_path / "used"), "holds a run already; give --out another folder"),
    ]:
        done = attnbench("try", *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert told in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_the_longest_of_the_commands_to_run_next_is_valid():
    (*_, recall) = tried.following(made(name="cosine"), "tests/plugins/good.py", [])
    done = attnbench(*shlex.split(recall.text)[1:], "--dry-run", cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cosine" in done.stdout

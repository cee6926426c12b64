"""The settings of a run: each with all its values, of timed and trained cells apart."""

from frames import frame, run_frame, scores, timed

from attnbench.report.settings import ALONE, settings


def told(whole, environment=None):
    """The table of one run as setting -> values."""
    return told_of_several(whole, {ALONE: environment or {}})


def told_of_several(whole, environments):
    return {row[0]: row[1:] for row in settings(whole, environments).rows}


def test_timed_and_trained_cells_stand_apart():
    found = told(run_frame())
    assert found["setting"] == ["time and memory", "accuracy"]
    assert found["B"] == ["1", "64"]
    assert found["phase"] == ["forward_backward", "–"]
    assert found["seed"] == ["0", "0, 1, 2"]
    assert found["d_ff"] == ["–", "128, 256"]
    assert found["options of task distance"] == ["–", "n_slots = 4"]


def test_a_run_of_one_kind_has_one_column():
    assert told(frame([timed("a", 64, 8, 1)]))["setting"] == ["time and memory"]
    assert told(frame(scores(["a"])))["setting"] == ["accuracy"]
    assert told(frame([])) == {"setting": []}


def test_options_stand_by_their_variant_with_every_value_they_took():
    rows = [timed("s", T, 8, 1, options=f'{{"block": {T // 8}, "kind": "elu"}}') for T in (128, 64)]
    rows += [timed("w[window=16]", 64, 8, 1, options='{"window": 16, "extra": null}')]
    found = told(frame([*rows, timed("plain", 64, 8, 1)]))
    assert found["options of s"] == ["block = 8, 16; kind = elu"]
    assert found["options of w[window=16]"] == ["window = 16; extra = none"]
    assert "options of plain" not in found


def test_how_cells_were_timed_and_trained_comes_from_the_run():
    found = told(run_frame(), {"timing": {"max_s": 0.5}, "train": {"lr": [0.003, 0.001], "stop_at": None}})
    assert found["timing.max_s"] == ["0.5", "–"]
    assert found["train.lr"] == ["–", "0.001, 0.003"]
    assert found["train.stop_at"] == ["–", "none"]


def test_many_values_are_told_by_their_ends():
    rows = [timed("a", T, 8, 1) for T in range(1, 41)]
    assert told(frame(rows))["T"] == ["1 to 40 (40 values)"]


def test_nothing_that_a_repetition_needs_is_left_out():
    rows = [timed("a", T, 8, 1, S=2 * T, max_T=3 * T, device_name="A CPU", compile=T > 64) for T in (64, 128)]
    found = told(frame(rows), {"memory_limit": 2**30, "timeout": 90.0})
    assert (found["S"], found["max_T"]) == (["128, 256"], ["192, 384"])
    assert (found["device_name"], found["compile"]) == (["A CPU"], ["false, true"])
    assert (found["memory_limit"], found["timeout"]) == (["1 GiB"], ["90 s"])
    assert told(frame(rows), {"memory_limit": None})["memory_limit"] == ["none"]


def test_options_that_are_true_or_false_are_no_numbers():
    rows = [timed("a", T, 8, 1, options=f'{{"gated": {value}}}') for T, value in ((64, "true"), (128, "false"))]
    assert told(frame(rows))["options of a"] == ["gated = true, false"]


def test_several_runs_have_columns_of_their_own_whatever_they_are_called():
    rows = [timed("a", 64 * n, 8, 1, run=run) for n, run in ((1, "timing"), (2, "train"))]
    rows += [row | {"run": "train"} for row in scores(["a"], sizes=[32])]
    environments = {"timing": {"timing": {"max_s": 1}}, "train": {"timing": {"max_s": 2}, "train": {"steps": 5}}}
    found = told_of_several(frame(rows), environments)
    assert found["setting"] == ["time and memory, timing", "time and memory, train", "accuracy, train"]
    assert found["T"] == ["64", "128", "32"]
    assert found["timing.max_s"] == ["1", "2", "–"]
    assert found["train.steps"] == ["–", "–", "5"]

"""The settings of a run: each with all its values, of timed and trained cells apart."""

from frames import frame, run_frame, scores, timed

from attnbench.report.settings import settings


def told(whole, environment=None):
    """The table as setting -> values."""
    return {row[0]: row[1:] for row in settings(whole, environment or {}).rows}


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

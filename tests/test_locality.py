"""Locality: the number of sequences that is enough, and the training behind it."""

import pytest

from attnbench.theory import locality


@pytest.mark.parametrize(
    ("by_count", "expected"),
    [
        ({32: 0.95, 64: 1.0}, 32),
        ({32: 0.5, 64: 1.0}, 64),
        ({32: 0.95, 64: 0.5, 128: 1.0}, 128),
        ({32: 0.1, 64: 0.2}, None),
        ({64: 1.0, 32: 0.9}, 32),
    ],
)
def test_enough_is_where_accuracy_stays(by_count, expected):
    assert locality.enough(by_count) == expected


def test_a_convolution_needs_few_sequences_to_learn_what_is_near():
    few = {name: locality.score(name, 64, steps=60, d_model=32) for name in ("tcn", "none")}
    assert few["tcn"].fresh > few["none"].fresh + 0.3
    assert few["tcn"].trained == pytest.approx(few["tcn"].fresh, abs=0.1)


def test_few_sequences_are_what_attention_learns_by_heart(monkeypatch):
    known = {
        "tcn": {64: 1.0, 256: 1.0},
        "lstm": {64: 0.95, 256: 1.0},
        "fused": {64: 0.2, 256: 0.95},
    }
    monkeypatch.setattr(locality, "score", lambda name, n, steps: locality.Score(known[name][n], 1.0))
    shown = locality.show(True)
    assert all(finding.ok for finding in shown.findings)
    assert len(shown.pictures[0].frame) == 6
    known["fused"][64] = 1.0
    assert [finding.what for finding in locality.show(True).findings if not finding.ok] == [
        "accuracy on fresh sequences (chance 0.125), N = 64: fused",
        "N for 90 %: fused",
    ]

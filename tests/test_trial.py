"""A trial says of one variant what it costs and learns, beside rivals: made-up runs, and a real one at small sizes."""

from frames import WIDTHS, costs, frame
from frames import scores as trained

from attnbench.analyse import tried as shape
from attnbench.analyse.audited import Claimed
from attnbench.analyse.tried import BASELINE, Tried
from attnbench.report import tried

LABELS = ("mine", "fused", "linear", "lstm")
CLAIM = {"time": "T d^2 + T^2 d", "memory": "T d + H T^2", "sequential": None, "path": None}
ABOUT = Claimed("mine", CLAIM, (), "causal", core=False)


def cells(**changes):
    """A run's rows by (label, T, d): costs of four variants at the sizes of a trial."""
    assert set(WIDTHS) >= {64}
    rows = costs(LABELS, shape.LENGTHS, shape.WIDTHS)
    rows += costs(("mine",), (1024,), (64,))
    return rows


def made(rows=None, about=ABOUT, **more):
    scores = trained(("mine", "fused"), (64,), (64,), (0,))
    for row in scores:
        row["n_test"] = row["n_scored"] = 1000
    return Tried(about, "mine keeps its promises (38 kept)", frame([*(rows or cells()), *scores]))


def texts(table):
    return " ".join(" ".join(row) for row in table.rows)


def test_every_variant_stands_at_every_size_with_its_ratio():
    time, memory, operations = tried.costs(made())
    for table in (time, memory, operations):
        assert table.rows[0] == ["d_model", "variant", "T = 128", "T = 512", "T = 2048"]
        assert [row[:2] for row in table.rows[1:]] == [[str(d), label] for d in shape.WIDTHS for label in LABELS]
        for row in table.rows[1:]:
            assert all((", " in cell) == (row[1] != BASELINE) for cell in row[2:])
    assert "faster" in texts(time)
    assert "leaner" in texts(memory) or "heavier" in texts(memory)

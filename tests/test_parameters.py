"""Parameter counts: variants that do not match are named, and so are counts that depend on T."""

from frames import frame, timed

from attnbench.analyse.parameters import SPREAD, Spread, grows, spreads


def counted(**counts):
    """Two T and two d_model; the second width has nine times as many."""
    return frame(
        timed(name, T, d, 1, n_params_body=n * (d // 8) ** 2)
        for name, n in counts.items()
        for T in (64, 128)
        for d in (8, 24)
    )


def test_a_spread_above_a_tenth_is_named_per_width():
    found = spreads(counted(a=1000, b=1500, c=1200))
    assert found == [Spread(8, ("a", 1000), ("b", 1500)), Spread(24, ("a", 9000), ("b", 13500))]


def test_a_spread_of_a_tenth_is_none():
    assert spreads(counted(a=1000, b=round(1000 * (1 + SPREAD)))) == []
    assert spreads(counted(a=1000, b=round(1000 * (1 + SPREAD)) + 1)) != []


def test_a_variant_without_parameters_does_not_match_one_with_some():
    assert spreads(counted(none=0, a=10))[0] == Spread(8, ("none", 0), ("a", 10))
    assert spreads(counted(none=0, mean=0)) == []


def test_counts_that_nobody_took_are_left_out():
    assert spreads(counted(a=1000).assign(n_params_body=None)) == []
    assert spreads(frame([])) == []


def test_a_count_grows_where_it_has_several_values_over_T():
    rows = [timed(name, T, 8, 1, n_params=n) for name, T, n in (("a", 8, 1), ("a", 16, 2), ("b", 8, 1), ("b", 16, 1))]
    assert grows(frame(rows), "n_params", ["label", "d_model"]).tolist() == [True, True, False, False]

"""A sweep file written by a program is read back as what was meant."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from attnbench.execute.tables import toml

KEYS = st.text(min_size=1, max_size=8)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(
    plain=st.dictionaries(KEYS.filter(lambda key: key != "grid"), VALUES, max_size=4),
    grids=st.lists(st.dictionaries(KEYS, VALUES, max_size=3), min_size=1, max_size=3),
)
def test_what_is_written_is_read_back(plain, grids):
    assert tomllib.loads(toml({**plain, "grid": grids})) == {**plain, "grid": grids}

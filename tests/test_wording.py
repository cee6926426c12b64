import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from attnbench.settings import size
from attnbench.wording import complaint, key_path, shown


class Anything(BaseModel):
    model_config = ConfigDict(strict=True)
    whole: int = 0
    words: list[str] = []
    flag: bool = False
    table: dict[str, int] = {}
    either: int | str = 0


def test_a_key_path_holds_what_the_file_says_and_no_names_of_types():
    tables = {"grid": [{"T": 3, "B": [1, 2]}]}
    assert key_path(tables, ("grid", 0, "T", 0)) == "grid[0].T"
    assert key_path(tables, ("grid", 0, "B", 1)) == "grid[0].B[1]"
    assert key_path(tables, ("grid", 0, "missing")) == "grid[0].missing"
    assert key_path({"either": 1.5}, ("either", "int")) == "either"


@pytest.mark.parametrize(
    ("given_values", "expected"),
    [
        ({"whole": "64"}, 'expected a whole number, got "64"'),
        ({"words": "a.py"}, 'expected a list, got "a.py"'),
        ({"words": [True]}, "expected a string, got true"),
        ({"flag": 1}, "expected true or false, got 1"),
        ({"table": 5}, "expected a table, got 5"),
    ],
)
def test_findings_are_told_in_words_of_toml(given_values, expected):
    with pytest.raises(ValidationError) as caught:
        Anything.model_validate(given_values)
    assert [complaint(detail) for detail in caught.value.errors()] == [expected]


def test_values_are_shown_as_toml_writes_them():
    assert (
        shown({"name": "window", "on": True, "sizes": [1, 2.5]}) == '{ name = "window", on = true, sizes = [1, 2.5] }'
    )
    assert shown([float("nan"), float("-inf")]) == "[nan, -inf]"
    assert shown({}) == "{}"


@given(st.recursive(st.none() | st.text() | st.integers() | st.dates(), lambda inner: st.lists(inner, max_size=5)))
def test_a_value_is_shown_on_one_short_line(value):
    assert len(shown(value)) <= 63
    assert len(f"x{shown(value)}x".splitlines()) == 1


def test_what_a_terminal_would_obey_is_shown_and_not_printed():
    assert shown("a\u2028b\x85\x1b[2J") == '"a\\u2028b\\u0085\\u001b[2J"'


@pytest.mark.parametrize(
    ("n_bytes", "text"), [(2**30, "1 GiB"), (8 * 10**9, "8 GB"), (1536 * 2**20, "1536 MiB"), (4097, "4097 B")]
)
def test_sizes_read_as_a_sweep_file_writes_them(n_bytes, text):
    assert size(n_bytes) == text

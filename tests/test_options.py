import functools
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import given
from hypothesis import strategies as st

from attnbench.options import listing, resolve


class Base:
    def __init__(
        self, spec: object, *, n_kv_heads: Annotated[int, Ge(1)] | None = None, scale: float = 1.0
    ) -> None: ...


class Inherits(Base):
    """Has no constructor of its own."""


class PassesOn(Base):
    def __init__(self, spec: object, *, window: Annotated[int, Ge(1), Le(99)] = 64, **options: Any) -> None: ...


class Stops(Base):
    def __init__(self, spec: object, *, window: int = 64) -> None: ...


class Changes(PassesOn):
    def __init__(self, spec: object, *, scale: float = 0.5, **options: Any) -> None: ...


class Kinds:
    def __init__(
        self,
        spec: object,
        *,
        needed: int,
        kind: Literal["elu", "relu"] = "elu",
        ratio: Annotated[float, Gt(0), Lt(1)] = 0.5,
        gated: bool = False,
        dilations: tuple[int, ...] = (1, 2),
        sizes: list[int] | None = None,
        either: int | str = 1,
    ) -> None: ...


ROUNDED = functools.partial(round, ndigits=1)


class HoldsFunctions:
    def __init__(
        self,
        spec: object,
        *,
        feature: Callable[[float], float] = lambda x: x + 1,
        rounded=ROUNDED,
        thing: object = print,
        n: int = 3,
    ) -> None: ...


def mistakes(cls: type, **given_options: Any) -> list[tuple[str, str]]:
    return resolve(cls, given_options)[1]


@pytest.mark.parametrize(
    ("cls", "names"),
    [
        (Base, {"n_kv_heads", "scale"}),
        (Inherits, {"n_kv_heads", "scale"}),
        (PassesOn, {"window", "n_kv_heads", "scale"}),
        (Stops, {"window"}),
        (Changes, {"window", "n_kv_heads", "scale"}),
        (object, set()),
    ],
)
def test_options_are_inherited_as_far_as_constructors_pass_them_on(cls, names):
    assert set(resolve(cls, {})[0]) == set(listing(cls)) == names


def test_the_nearest_default_counts():
    assert resolve(Changes, {})[0] == {"scale": 0.5, "window": 64, "n_kv_heads": None}


def test_every_option_in_force_is_told_not_only_the_given_ones():
    assert resolve(PassesOn, {"window": 8}) == ({"window": 8, "n_kv_heads": None, "scale": 1.0}, [])


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"kind": "elo"}, 'expected "elu" or "relu", got "elo"; did you mean "elu"?'),
        ({"kind": 3}, 'expected "elu" or "relu", got 3'),
        ({"ratio": 0}, "expected more than 0, got 0"),
        ({"ratio": 1.0}, "expected less than 1, got 1"),
        ({"ratio": "0.1"}, 'expected a number, got "0.1"'),
        ({"gated": 1}, "expected true or false, got 1"),
        ({"gated": "no"}, 'expected true or false, got "no"'),
        ({"dilations": 3}, "expected a list, got 3"),
        ({"dilations": [1, 2.5]}, "at [1]: expected a whole number, got 2.5"),
        ({"sizes": ["a"]}, 'at [0]: expected a whole number, got "a"'),
        ({"rati": 0.1}, 'unknown option; did you mean "ratio"?'),
        ({"ratio": 2**63}, "expected a whole number below 2^63, got 9223372036854775808"),
    ],
)
def test_each_wrong_option_is_told_by_name_with_what_would_be_right(option, told):
    assert mistakes(Kinds, needed=1, **option) == [(next(iter(option)), told)]


def test_all_wrong_options_are_told_in_one_go():
    found = mistakes(Kinds, kind="elo", ratio=2, windw=3)
    assert [name for name, _ in found] == ["needed", "kind", "ratio", "windw"]
    assert found[0][1] == "missing; this option has no default"


def test_what_a_union_refuses_is_told_under_the_name_of_the_option():
    assert mistakes(Kinds, needed=1, either=1.5) == [
        ("either", "expected a whole number, got 1.5"),
        ("either", "expected a string, got 1.5"),
    ]


def test_a_class_without_options_says_so():
    assert mistakes(object, window=8) == [("window", "unknown option; it takes none")]


def test_a_list_of_a_file_serves_as_a_tuple():
    assert resolve(Kinds, {"needed": 1, "dilations": [4, 8]})[0]["dilations"] == (4, 8)


@given(st.integers(1, 99))
def test_a_whole_float_is_the_same_option_as_the_whole_number(n):
    assert resolve(PassesOn, {"window": float(n)}) == resolve(PassesOn, {"window": n})
    assert type(resolve(PassesOn, {"window": float(n)})[0]["window"]) is int
    assert type(resolve(PassesOn, {"scale": n})[0]["scale"]) is float


@given(st.one_of(st.integers(max_value=0), st.integers(min_value=100), st.booleans(), st.text(), st.none(), st.dates()))
def test_nothing_beyond_the_limits_gets_through(value):
    options, found = resolve(PassesOn, {"window": value})
    assert options == {}
    assert [name for name, _ in found] == ["window"]


def test_a_default_that_no_file_can_hold_is_left_to_the_constructor():
    assert resolve(HoldsFunctions, {"n": 4}) == ({"n": 4}, [])
    assert [name for name, _ in mistakes(HoldsFunctions, feature="softmax")] == ["feature"]
    assert listing(HoldsFunctions)["n"] == "integer (default 3)"


def test_a_listing_says_type_limits_and_default():
    assert listing(PassesOn) == {
        "window": "integer >= 1 <= 99 (default 64)",
        "n_kv_heads": "integer >= 1 (default auto)",
        "scale": "number (default 1.0)",
    }
    assert listing(Kinds) == {
        "needed": "integer",
        "kind": '"elu" | "relu" (default "elu")',
        "ratio": "number > 0 < 1 (default 0.5)",
        "gated": "boolean (default false)",
        "dilations": "array (default [1, 2])",
        "sizes": "array (default auto)",
        "either": "integer | string (default 1)",
    }

"""What pydantic found wrong, in the words of a sweep file: `expected a whole number, got "64"`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, time
from typing import Any

from pydantic_core import ErrorDetails

from attnbench.errors import nearest
from attnbench.settings import whole

_KINDS: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "too_short": "a list of {min_length} or more",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
}
_LONGEST = 60


def complaint(detail: ErrorDetails) -> str:
    """One finding without its place: what was expected, what was got, and the nearest right word."""
    got = detail["input"]
    context = {key: whole(value) for key, value in detail.get("ctx", {}).items()}
    if detail["type"] == "literal_error":
        wanted = str(context["expected"]).replace("'", '"')
        near = nearest(got, wanted.replace('"', "").replace(" or ", ", ").split(", ")) if isinstance(got, str) else None
        return f"expected {wanted}, got {shown(got)}" + (f'; did you mean "{near}"?' if near else "")
    if detail["type"] in _KINDS:
        return f"expected {_KINDS[detail['type']].format(**context)}, got {shown(got)}"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    return f"{message}, got {shown(got)}"


def key_path(tables: Any, loc: tuple[int | str, ...]) -> str:
    """`grid[0].T[1]`: only what a file can say; indices into single values and names of types are left out."""
    path = ""
    for part in loc:
        if isinstance(part, int) and isinstance(tables, list):
            path += f"[{part}]"
            tables = tables[part] if part < len(tables) else None
        elif isinstance(part, str) and isinstance(tables, Mapping):
            path += f".{toml_key(part)}" if path else toml_key(part)
            tables = tables.get(part)
    return path


def toml_key(name: str) -> str:
    """A key as TOML writes it: bare when it is a plain word, else quoted."""
    return name if name.replace("-", "_").isidentifier() and name.isprintable() else shown(name)


def shown(value: Any) -> str:
    """A value as TOML writes it, on one line, cut when it is long."""
    text = printable(_toml(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def printable(text: str) -> str:
    """The text on one line: a line break, or another character that cannot be seen, as `\\u000a`."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {_toml(item)}' for key, item in value.items())} }}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    return value.isoformat() if isinstance(value, date | time) else str(value)

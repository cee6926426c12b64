"""Options of a variant or a task, read from its constructor: keyword-only arguments with types, limits, defaults."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails

from attnbench.errors import did_you_mean
from attnbench.settings import whole
from attnbench.wording import complaint, key_path, shown


def model_of(cls: type) -> type[BaseModel]:
    """A strict pydantic model of a class's options, its bases' included while constructors pass `**options` on."""
    fields: dict[str, Any] = {}
    for owner in cls.__mro__:
        init = owner.__dict__.get("__init__")
        if not inspect.isfunction(init):
            continue
        hints = typing.get_type_hints(init, include_extras=True)
        parameters = inspect.signature(init).parameters.values()
        for parameter in parameters:
            if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in fields:
                default = ... if parameter.default is parameter.empty else parameter.default
                fields[parameter.name] = (hints.get(parameter.name, Any), default)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    config = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
    return create_model(cls.__name__, __config__=config, **fields)


def resolve(cls: type, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The options in force when `given` are set, and a (name, message) for each one that cannot be.

    As in a grid, 64.0 is 64. A default that no file can hold (a function, say) is left to the constructor.
    """
    model = model_of(cls)
    values = {name: whole(value) for name, value in given.items()}
    if huge := [
        (name, f"expected a whole number below 2^63, got {value}") for name, value in values.items() if _huge(value)
    ]:
        return {}, huge
    try:  # by way of JSON, whose arrays pass for tuples even where types are strict
        options = model.model_validate_json(json.dumps(values, default=str)).model_dump()
    except ValidationError as error:
        return {}, [_mistake(model, values, detail) for detail in error.errors(include_url=False)]
    return {name: value for name, value in options.items() if name in given or _plain(value)}, []


def listing(cls: type) -> dict[str, str]:
    """Each option as a person reads it: type, limits and default."""
    properties = model_of(cls).model_json_schema(schema_generator=_Lenient).get("properties", {})
    return {name: _described(schema) for name, schema in properties.items()}


class _Lenient(GenerateJsonSchema):
    """Types and defaults that JSON cannot describe are left out of a listing, not errors."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Say nothing of a default that JSON cannot hold."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        """Describe a type that JSON does not have as any."""
        return {}


def _huge(value: Any) -> bool:
    """Whether a whole number is one that torch has no room for."""
    return isinstance(value, int) and abs(value) >= 2**63


def _plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _mistake(model: type[BaseModel], given: Mapping[str, Any], detail: ErrorDetails) -> tuple[str, str]:
    name = str(detail["loc"][0])
    if detail["type"] == "extra_forbidden":
        return name, f"unknown option{did_you_mean(name, model.model_fields) or '; it takes none'}"
    if detail["type"] == "missing":
        return name, "missing; this option has no default"
    inside = key_path(given, detail["loc"]).removeprefix(name)
    return name, f"{f'at {inside}: ' if inside else ''}{complaint(detail)}"


def _described(schema: Mapping[str, Any]) -> str:
    kinds = [_kind(kind) for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    default = schema.get("default")
    tail = f" (default {'auto' if default is None else shown(default)})" if "default" in schema else ""
    return " | ".join(kinds) + tail


def _kind(schema: Mapping[str, Any]) -> str:
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if choices:
        return " | ".join(map(shown, choices))
    limits = [f"{sign} {schema[key]}" for key, sign in _LIMITS.items() if key in schema]
    return " ".join([schema.get("type", "any"), *limits])


_LIMITS = {
    "minimum": ">=",
    "exclusiveMinimum": ">",
    "maximum": "<=",
    "exclusiveMaximum": "<",
    "multipleOf": "a multiple of",
}

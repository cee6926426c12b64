"""Options of a variant or a task, read from its constructor: keyword-only arguments with types, limits, defaults."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from attnbench.errors import did_you_mean
from attnbench.wording import complaint, key_path


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
    return create_model(cls.__name__, __config__=ConfigDict(strict=True, extra="forbid"), **fields)


def resolve(cls: type, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The options in force when `given` are set, and a (name, message) for each one that cannot be."""
    model = model_of(cls)
    try:
        return model.model_validate(dict(given)).model_dump(), []
    except ValidationError as error:
        return {}, [_mistake(model, given, detail) for detail in error.errors(include_url=False)]


def listing(cls: type) -> dict[str, str]:
    """Each option as a person reads it: type, limits and default."""
    properties = model_of(cls).model_json_schema().get("properties", {})
    return {name: _described(schema) for name, schema in properties.items()}


def _mistake(model: type[BaseModel], given: Mapping[str, Any], detail: ErrorDetails) -> tuple[str, str]:
    name = str(detail["loc"][0])
    if detail["type"] == "extra_forbidden":
        return name, f"unknown option{did_you_mean(name, model.model_fields) or '; it takes none'}"
    if detail["type"] == "missing":
        return name, "missing; this option has no default"
    inside = key_path(given, detail["loc"]).removeprefix(name)
    return name, f"{f'at {inside}: ' if inside else ''}{complaint(detail)}"


def _described(schema: Mapping[str, Any]) -> str:
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    words = []
    for kind in kinds:
        words.append(" | ".join(map(repr, kind["enum"])) if "enum" in kind else kind.get("type", "any"))
        words += [f"{sign} {kind[key]}" for key, sign in _LIMITS.items() if key in kind]
    default = schema.get("default", "none" if "default" in schema else None)
    return " ".join(words) + ("" if "default" not in schema else f" (default {'auto' if default is None else default})")


_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}

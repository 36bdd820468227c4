"""Answers as the openai package's own types have them, strictly: a client may validate what the package only reads."""

from __future__ import annotations

import typing
from functools import cache
from typing import Any

import orjson
from openai.types.responses import ResponseCreateParams
from pydantic import TypeAdapter, ValidationError

_adapter_of = cache(TypeAdapter)
"""Making one takes 20 ms for a type with as many members as events have."""


def mismatches(kind: Any, answer: bytes | Any) -> dict[str, Any]:
    """Returns each value of an answer that is not of its type in `kind`, by its path. `answer`: JSON, or its value."""
    encoded = answer if isinstance(answer, bytes) else orjson.dumps(answer)
    try:
        _adapter_of(kind).validate_json(encoded, strict=True)
    except ValidationError as error:
        return {".".join(map(str, each["loc"])): each["input"] for each in error.errors(include_url=False)}
    return {}


def check(kind: Any, answer: bytes | Any) -> None:
    """Fails unless the answer is a `kind`, in every value."""
    assert mismatches(kind, answer) == {}


def openai_fields() -> set[str]:
    """The fields of every variant of openai's ResponseCreateParams."""
    variants = typing.get_args(ResponseCreateParams)
    return {name for variant in variants for name in variant.__annotations__}


def kinds_of(union: Any) -> set[str]:
    """The `type`s of the members of a union of typed dicts."""
    schema = TypeAdapter(union).json_schema()
    found: set[str] = set()
    for member in schema.get("oneOf") or schema.get("anyOf") or [schema]:
        shape = schema["$defs"][member["$ref"].rsplit("/", 1)[-1]] if "$ref" in member else member
        kind = shape["properties"]["type"]
        options = kind.get("anyOf", [kind])
        found |= {name for option in options for name in option.get("enum", [option.get("const")]) if name}
    return found

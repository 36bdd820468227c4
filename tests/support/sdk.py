"""Answers as the openai package's own types have them, strictly: a client may validate what the package only reads."""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson
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

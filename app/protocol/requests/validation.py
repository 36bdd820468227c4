"""Pydantic's errors about a request, as one short sentence about the first field at fault.

The sentences and codes are those of OpenAI's API, as far as they are known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from app.protocol.errors import InvalidRequest
from app.protocol.text import MAX_SHOWN_CHARS, bounded, shortened

Model = TypeVar("Model", bound=BaseModel)

REFUSED = "refused"
"""The type of errors that our own validators raise; see `refused`."""

NO_NUL = "Invalid '{path}': the character U+0000 is not allowed."

_TAG = re.compile(r"<[\w:]+>")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_\-]+")

_JSON_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "a boolean"),
    (str, "a string"),
    (int, "an integer"),
    (float, "a decimal number"),
    (list, "an array"),
    (dict, "an object"),
)

_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
}


def kind_of(value: Any) -> str:
    """Returns the JSON type of `value`, with its article."""
    return next((name for python_type, name in _JSON_TYPES if isinstance(value, python_type)), "null")


def refused(message: str, code: str, field: str = "") -> PydanticCustomError:
    """Returns an error for a validator to raise. `{path}` in `message` becomes the field; `field` is a key in it."""
    return PydanticCustomError(REFUSED, "{message}", {"message": message, "code": code, "field": field})


def wrong_kind(expected: str, value: Any) -> PydanticCustomError:
    """Returns an error for a validator to raise: the value has another JSON type than `expected`."""
    return refused(f"Invalid type for '{{path}}': {_but_got(expected, value)}", "invalid_type")


def validate(model: type[Model], body: Mapping[str, Any]) -> Model:
    """Returns `body` as a `model`. Raises InvalidRequest about the first field at fault, in the model's order."""
    try:
        return model.model_validate(body)
    except ValidationError as caught:
        error = caught.errors(include_url=False)[0]
        raise error_at(render(_path(error)), error) from None


def render(path: Sequence[str | int]) -> str:
    """Returns `("input", 2, "content")` as `input[2].content`."""
    return "".join(map(_step, path)).removeprefix(".")


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    if _PLAIN_KEY.fullmatch(key) and len(key) <= MAX_SHOWN_CHARS:
        return f".{key}"
    return f"[{shortened(key)!r}]"


def error_at(where: str, error: ErrorDetails) -> InvalidRequest:
    """Returns what a client is told of pydantic's error at the field `where`."""
    message, code = _sentence(error, where)
    where = bounded(where)
    return InvalidRequest(bounded(message).replace("{path}", where), where or None, code)


def _path(error: ErrorDetails) -> list[str | int]:
    """Where the error is. pydantic's own steps are left out: tags of unions, and the marker of keys."""
    path = [step for step in error["loc"] if isinstance(step, int) or not (_TAG.fullmatch(step) or step == "[key]")]
    field = error.get("ctx", {}).get("field") if error["type"] == REFUSED else None
    return [*path, field] if field else path


def _sentence(error: ErrorDetails, where: str) -> tuple[str, str]:
    kind, context = error["type"], error.get("ctx", {})
    if kind == REFUSED:
        return context["message"], context["code"]
    if kind in _EXPECTED:
        return f"Invalid type for '{where}': {_but_got(_EXPECTED[kind], error['input'])}", "invalid_type"
    if (write := _SENTENCES.get(kind)) is not None:
        return write(where, error["input"], context)
    return f"Invalid value for '{where}'.", "invalid_value"


def _but_got(expected: str, value: Any) -> str:
    return f"expected {expected}, but got {kind_of(value)} instead."


Sentence = Callable[[str, Any, Mapping[str, Any]], tuple[str, str]]


def _plain(message: str, code: str) -> Sentence:
    """Returns a writer of the same sentence about every value."""
    return lambda where, _, context: (message.format(where=where, **context), code)


def _choice(where: str, value: Any, context: Mapping[str, Any]) -> tuple[str, str]:
    shown = f"'{shortened(value)}'" if isinstance(value, str) else kind_of(value)
    return f"Invalid value for '{where}': {shown}. Supported values are: {context['expected']}.", "invalid_value"


def _bound(key: str, relation: str, side: str) -> Sentence:
    """Returns a writer of sentences about a number out of range; `key` names the bound in pydantic's context."""

    def write(where: str, value: Any, context: Mapping[str, Any]) -> tuple[str, str]:
        limit = context[key]
        noun = "integer" if isinstance(value, int) and isinstance(limit, int) else "decimal"
        message = f"Invalid '{where}': expected a value {relation} {limit}, but got {value} instead."
        return message, f"{noun}_{side}_value"

    return write


def _length(noun: str, unit: str, key: str, side: str) -> Sentence:
    """Returns a writer of sentences about a wrong size; `key` names the limit in pydantic's context."""

    def write(where: str, value: Any, context: Mapping[str, Any]) -> tuple[str, str]:
        limit, actual = context[key], len(value)
        if side == "min" and actual == 0:
            return f"Invalid '{where}': empty {noun}.", f"empty_{noun}"
        relation = "at most" if side == "max" else "at least"
        message = f"Invalid '{where}': expected {relation} {limit} {unit}, but got {actual} instead."
        return message, f"{noun}_{'above' if side == 'max' else 'below'}_{side}_length"

    return write


def _sized(key: str, side: str) -> Sentence:
    """The same for `too_long` and `too_short`, which pydantic uses for arrays and for objects."""
    array, mapping = _length("array", "items", key, side), _length("object", "keys", key, side)

    def write(where: str, value: Any, context: Mapping[str, Any]) -> tuple[str, str]:
        return (mapping if isinstance(value, dict) else array)(where, value, context)

    return write


_SENTENCES: dict[str, Sentence] = {
    "missing": _plain("Missing required parameter: '{where}'.", "missing_required_parameter"),
    "extra_forbidden": _plain("Unknown parameter: '{where}'.", "unknown_parameter"),
    "literal_error": _choice,
    "string_pattern_mismatch": _plain(
        "Invalid '{where}': expected a string that matches the pattern '{pattern}'.", "invalid_value"
    ),
    "finite_number": _plain("Invalid '{where}': expected a finite number.", "invalid_value"),
    "greater_than": _bound("gt", ">", "below_min"),
    "greater_than_equal": _bound("ge", ">=", "below_min"),
    "less_than": _bound("lt", "<", "above_max"),
    "less_than_equal": _bound("le", "<=", "above_max"),
    "string_too_long": _length("string", "characters", "max_length", "max"),
    "string_too_short": _length("string", "characters", "min_length", "min"),
    "too_long": _sized("max_length", "max"),
    "too_short": _sized("min_length", "min"),
}

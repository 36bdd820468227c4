"""A request's body as a JSON object that is safe to validate, store and send on."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import orjson

from app.protocol.errors import InvalidRequest
from app.protocol.requests.validation import NO_NUL, render
from app.sizes import is_large

MAX_DEPTH = 64
"""Levels of nesting. orjson writes at most 254, and no request needs 64."""
MAX_KEYS = 1024
"""Keys in one object; this also bounds the errors that one object can have."""

MAX_CONTAINERS = 50_000
"""Objects and arrays in one body: other requests wait while they are checked."""
MAX_VALUES = 500_000
"""Values of any kind in one body, and keys of objects."""

MAY_HAVE_NUL = frozenset({"client_metadata", "input", "instructions", "items", "messages", "previous_input_messages"})
"""Fields whose text may have U+0000, because tools return it and models write it. Ids may not (base.py)."""

Path = tuple[str | int, ...]

_NUL = b"\\u0000"


def loads(body: bytes) -> Any:
    """Parses large JSON without the garbage collector: a million small objects take 0.2 s, and 1.1 s with it."""
    if not is_large(len(body)) or not gc.isenabled():
        return orjson.loads(body)
    gc.disable()
    try:
        return orjson.loads(body)
    finally:
        gc.enable()


def decode_object(
    body: bytes, *, checked: bool = True, what: str = "body", code: str = "invalid_json"
) -> dict[str, Any]:
    """Returns the JSON object in `body`; unless `checked`, only to look at it. Raises InvalidRequest.

    NaN, Infinity, invalid UTF-8 and lone surrogates are not JSON (RFC 8259 §§6, 8). The last of equal keys counts.
    U+0000 is refused in names and settings, which become columns, keys and headers; no such thing can hold it.
    """
    try:
        value = loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The {what} is {_explain(body, error)}", code=code) from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"The {what} must be a JSON object.", code=code)
    if checked:
        _check(value, _containers_and_strings if _NUL in body else _containers)
    return value


def _explain(body: bytes, error: orjson.JSONDecodeError) -> str:
    if not body.strip():
        return "empty; a JSON object is expected."
    if "not valid UTF-8" in error.msg:
        return "not in UTF-8."
    where = f"line {error.lineno} column {error.colno}" if b"\n" in body else f"column {error.colno}"
    return f"not valid JSON: {error.msg}: {where}."


def _check(body: dict[str, Any], children: Any) -> None:
    """Checks nesting, sizes and U+0000 in one walk: in the client's order, and without recursion."""
    waiting: list[tuple[Path, Any]] = [((), body)]
    containers = values = 0
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, str):
            _refuse_nul(value, path)
            continue
        may_have_nul = bool(path) and path[0] in MAY_HAVE_NUL
        containers += 1
        values += len(value)
        if values > MAX_VALUES:
            raise too_complex(path[:1], f"the body has more than {MAX_VALUES} values")
        if containers > MAX_CONTAINERS or (isinstance(value, list) and len(value) > MAX_CONTAINERS):
            raise too_complex(path[:1], f"more than {MAX_CONTAINERS} values")
        if len(path) > MAX_DEPTH:
            raise too_complex(path[:1], f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, dict) and len(value) > MAX_KEYS:
            raise too_complex(path, f"an object with more than {MAX_KEYS} keys")
        found = _containers(value) if may_have_nul else children(value)
        waiting.extend([((*path, key), child) for key, child in found][::-1])


def _entries(value: Any) -> Iterable[tuple[str | int, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value)


def _containers(value: Any) -> Iterable[tuple[str | int, Any]]:
    return ((key, child) for key, child in _entries(value) if isinstance(child, dict | list))


def _containers_and_strings(value: Any) -> Iterable[tuple[str | int, Any]]:
    for key, child in _entries(value):
        if isinstance(key, str):
            yield key, key
        if isinstance(child, dict | list | str):
            yield key, child


def _refuse_nul(value: str, path: Path) -> None:
    if "\0" in value and path[0] not in MAY_HAVE_NUL:
        where = render(path)
        raise InvalidRequest(NO_NUL.format(path=where), where, "invalid_value")


def too_complex(path: Path, what: str) -> InvalidRequest:
    """Returns the error for a body that takes too long to check; `what` says why."""
    where = render(path)
    return InvalidRequest(f"Invalid {(where and repr(where)) or 'body'}: {what}.", where or None, "invalid_value")

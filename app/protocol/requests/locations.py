"""Paths to the fields of a request, as the client wrote it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from app.protocol.text import MAX_SHOWN_CHARS, shortened

Path = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_\-]+")


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    if _PLAIN_KEY.fullmatch(key) and len(key) <= MAX_SHOWN_CHARS:
        return f".{key}"
    return f"[{shortened(key)!r}]"


def render(path: Sequence[str | int]) -> str:
    """Returns `("input", 2, "content")` as `input[2].content`."""
    return "".join(map(_step, path)).removeprefix(".")


def follow(body: Any, key: str | int) -> Any:
    """Returns the value at `key`. Raises LookupError if `body` has no such key."""
    if isinstance(body, dict) and isinstance(key, str):
        return body[key]
    if isinstance(body, list) and isinstance(key, int):
        return body[key]
    raise LookupError(key)


def as_written(location: Sequence[str | int], body: Any, *, keep_last: bool) -> Path:
    """Returns a pydantic location without the steps that are not in the body: tags of unions, markers of keys.

    `keep_last` keeps the last step even if the body lacks it (a missing field).
    """
    path: list[str | int] = []
    value = body
    for number, key in enumerate(location):
        try:
            value = follow(value, key)
        except LookupError:
            if not (keep_last and number == len(location) - 1):
                continue
        path.append(key)
    return tuple(path)


def rank(path: Path, body: Any) -> tuple[int, ...]:
    """Returns a sort key: paths in the order in which the client wrote them, missing fields last."""
    indexes: list[int] = []
    value = body
    for key in path:
        keys = list(value) if isinstance(value, dict) else []
        indexes.append(keys.index(key) if key in keys else key if isinstance(key, int) else len(keys))
        try:
            value = follow(value, key)
        except LookupError:
            break
    return tuple(indexes)

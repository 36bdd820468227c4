"""Where in a request something is: paths as the caller wrote them."""

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
    """`("input", 2, "content")` as `input[2].content`."""
    return "".join(map(_step, path)).removeprefix(".")


def follow(body: Any, key: str | int) -> Any:
    """What `body` holds under `key`. Raises LookupError where it holds no such key."""
    if isinstance(body, dict) and isinstance(key, str):
        return body[key]
    if isinstance(body, list) and isinstance(key, int):
        return body[key]
    raise LookupError(key)


def as_written(location: Sequence[str | int], body: Any, *, keep_last: bool) -> Path:
    """A pydantic location without what is not in the body: tags of unions, markers of keys.

    With `keep_last` the last step stays though the body lacks it (a missing field).
    """
    path: list[str | int] = []
    here = body
    for number, key in enumerate(location):
        try:
            here = follow(here, key)
        except LookupError:
            if not (keep_last and number == len(location) - 1):
                continue
        path.append(key)
    return tuple(path)


def rank(path: Path, body: Any) -> tuple[int, ...]:
    """Sorts paths in the order in which the caller wrote them; what is missing comes last."""
    places: list[int] = []
    here = body
    for key in path:
        keys = list(here) if isinstance(here, dict) else []
        places.append(keys.index(key) if key in keys else key if isinstance(key, int) else len(keys))
        try:
            here = follow(here, key)
        except LookupError:
            break
    return tuple(places)

"""The query of `GET /v1/responses/{id}`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.protocol.errors import InvalidRequest
from app.protocol.locations import shortened

NAMES = ("stream", "starting_after", "include", "include[]", "include_obfuscation")

MAX_SEQUENCE = 2**31 - 2
"""Postgres counts them in 32 bits, and looks for the one after."""

_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """How a response is to be read."""

    stream: bool
    after: int
    """Events after this sequence number; -1: all of them."""


def read_query(query: Mapping[str, str]) -> ReadQuery:
    """Raises InvalidRequest about the first parameter that cannot be honoured."""
    for name in ("include", "include[]"):
        if query.get(name):
            raise InvalidRequest(f"'{name}' is not supported yet.", name, "unsupported_parameter")
    if _boolean(query, "include_obfuscation"):
        message = "'include_obfuscation' is not supported yet."
        raise InvalidRequest(message, "include_obfuscation", "unsupported_parameter")
    stream = _boolean(query, "stream")
    after = _after(query.get("starting_after"))
    if after is not None and not stream:
        raise InvalidRequest("'starting_after' needs 'stream' to be true.", "starting_after", "invalid_value")
    return ReadQuery(stream, -1 if after is None else after)


def _boolean(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in _BOOLEANS:
        message = f"Invalid value for '{name}': '{shortened(value)}'. Supported values are: 'true', 'false'."
        raise InvalidRequest(message, name, "invalid_value")
    return _BOOLEANS[value]


def _after(value: str | None) -> int | None:
    if value is None:
        return None
    # Python's int() takes more than that: spaces, underscores, signs, other scripts' digits.
    if not (value.isascii() and value.isdecimal()):
        message = f"Invalid value for 'starting_after': '{shortened(value)}'. Expected an integer >= 0."
        raise InvalidRequest(message, "starting_after", "invalid_value")
    return min(int(value[:20]), MAX_SEQUENCE)

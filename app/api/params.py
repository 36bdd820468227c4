"""Query parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import QueryParams

from app.protocol.errors import InvalidRequest
from app.protocol.include import INCLUDED, NOT_INCLUDED
from app.protocol.text import shortened
from app.responses.paging import DEFAULT_LIMIT, MAX_LIMIT, PageQuery, unknown_cursor

INCLUDE = ("include", "include[]")
"""The parameter that may be repeated, and the name by which the openai package sends it."""

READ = ("stream", "starting_after", "include_obfuscation", *INCLUDE)
LIST = ("after", "limit", "order", *INCLUDE)

MAX_SEQUENCE = 2**31 - 2
"""The column has 32 bits, and queries ask for the number after it."""

_BOOLEANS = {"true": True, "false": False}

# Longer numbers are out of range in any case, and int() takes time that grows with the square of their length.
_MAX_LIMIT_DIGITS = 4
_MAX_SEQUENCE_DIGITS = 20


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """The query of `GET /v1/responses/{id}`."""

    stream: bool
    after: int
    """Events after this sequence number; -1: all events."""
    included: tuple[tuple[str, str], ...] = ()
    """Values of `include`, each after the name of its parameter."""
    obfuscation: bool = False


def read_query(query: QueryParams) -> ReadQuery:
    """Raises InvalidRequest for the first parameter that is not supported."""
    check_include(query)
    stream, obfuscation = _boolean(query, "stream"), _boolean(query, "include_obfuscation")
    after = _after(query.get("starting_after"))
    for name, asked in (("starting_after", after is not None), ("include_obfuscation", obfuscation)):
        if asked and not stream:
            raise InvalidRequest(f"'{name}' needs 'stream' to be true.", name, "invalid_value")
    included = tuple((name, value) for name in INCLUDE for value in query.getlist(name))
    return ReadQuery(stream, -1 if after is None else after, included, obfuscation)


def page_query(query: QueryParams) -> PageQuery:
    """Raises InvalidRequest for the first parameter that is not supported."""
    check_include(query)
    after = query.get("after")
    if after is not None and "\0" in after:  # Postgres' text cannot hold it.
        raise unknown_cursor(after)
    return PageQuery(after, _limit(query.get("limit")), _descending(query.get("order", "desc")))


def check_include(query: QueryParams) -> None:
    """Raises InvalidRequest for an `include` that is not supported; answers contain the supported ones in any case."""
    for name in INCLUDE:
        for value in query.getlist(name):
            shown = shortened(value)
            if value in NOT_INCLUDED:
                raise InvalidRequest(f"'{name}': '{shown}' is not supported yet.", name, "unsupported_parameter")
            if value not in INCLUDED:
                raise _unsupported_value(name, shown, INCLUDED)


def _boolean(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in _BOOLEANS:
        raise _unsupported_value(name, value, tuple(_BOOLEANS))
    return _BOOLEANS[value]


def _descending(value: str) -> bool:
    if value not in ("asc", "desc"):
        raise _unsupported_value("order", value, ("asc", "desc"))
    return value == "desc"


def _unsupported_value(name: str, value: str, supported: tuple[str, ...]) -> InvalidRequest:
    values = ", ".join(f"'{each}'" for each in supported)
    message = f"Invalid value for '{name}': '{shortened(value)}'. Supported values are: {values}."
    return InvalidRequest(message, name, "invalid_value")


def _limit(value: str | None) -> int:
    if value is None:
        return DEFAULT_LIMIT
    limit = int(value[:_MAX_LIMIT_DIGITS]) if _is_number(value) else 0
    if not 1 <= limit <= MAX_LIMIT:
        message = f"Invalid value for 'limit': '{shortened(value)}'. Expected an integer between 1 and {MAX_LIMIT}."
        raise InvalidRequest(message, "limit", "invalid_value")
    return limit


def _after(value: str | None) -> int | None:
    if value is None:
        return None
    if not _is_number(value):
        message = f"Invalid value for 'starting_after': '{shortened(value)}'. Expected an integer >= 0."
        raise InvalidRequest(message, "starting_after", "invalid_value")
    return min(int(value[:_MAX_SEQUENCE_DIGITS]), MAX_SEQUENCE)


def _is_number(value: str) -> bool:
    # int() alone accepts spaces, underscores, signs and the digits of other scripts.
    return value.isascii() and value.isdecimal()

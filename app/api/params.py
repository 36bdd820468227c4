"""The queries of GET requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import QueryParams

from app.protocol.errors import InvalidRequest
from app.protocol.include import INCLUDED, NOT_INCLUDED
from app.protocol.text import shortened
from app.responses.paging import DEFAULT_LIMIT, MAX_LIMIT, PageQuery

INCLUDE = ("include", "include[]")
"""The parameter that may come several times, and how the openai package writes it."""

READ = ("stream", "starting_after", "include_obfuscation", *INCLUDE)
LIST = ("after", "limit", "order", *INCLUDE)

MAX_SEQUENCE = 2**31 - 2
"""Postgres counts them in 32 bits, and looks for the one after."""

_BOOLEANS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """How a response is to be read."""

    stream: bool
    after: int
    """Events after this sequence number; -1: all of them."""
    included: tuple[tuple[str, str], ...] = ()
    """What is to be there, each with the name of the parameter that says so."""


def read_query(query: QueryParams) -> ReadQuery:
    """Raises InvalidRequest about the first parameter that cannot be honoured."""
    check_include(query)
    if _boolean(query, "include_obfuscation"):
        message = "'include_obfuscation' is not supported yet."
        raise InvalidRequest(message, "include_obfuscation", "unsupported_parameter")
    stream = _boolean(query, "stream")
    after = _after(query.get("starting_after"))
    if after is not None and not stream:
        raise InvalidRequest("'starting_after' needs 'stream' to be true.", "starting_after", "invalid_value")
    included = tuple((name, value) for name in INCLUDE for value in query.getlist(name))
    return ReadQuery(stream, -1 if after is None else after, included)


def page_query(query: QueryParams) -> PageQuery:
    """Raises InvalidRequest about the first parameter that cannot be honoured."""
    check_include(query)
    return PageQuery(query.get("after"), _limit(query.get("limit")), _descending(query.get("order", "desc")))


def check_include(query: QueryParams) -> None:
    """What may be included is there anyhow; what may not is refused. Raises InvalidRequest."""
    for name in INCLUDE:
        for value in query.getlist(name):
            shown = shortened(value)
            if value in NOT_INCLUDED:
                raise InvalidRequest(f"'{name}': '{shown}' is not supported yet.", name, "unsupported_parameter")
            if value not in INCLUDED:
                raise _unknown(name, shown, INCLUDED)


def _boolean(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in _BOOLEANS:
        raise _unknown(name, value, tuple(_BOOLEANS))
    return _BOOLEANS[value]


def _descending(value: str) -> bool:
    if value not in ("asc", "desc"):
        raise _unknown("order", value, ("asc", "desc"))
    return value == "desc"


def _unknown(name: str, value: str, known: tuple[str, ...]) -> InvalidRequest:
    allowed = ", ".join(f"'{word}'" for word in known)
    message = f"Invalid value for '{name}': '{shortened(value)}'. Supported values are: {allowed}."
    return InvalidRequest(message, name, "invalid_value")


def _limit(value: str | None) -> int:
    if value is None:
        return DEFAULT_LIMIT
    limit = int(value[:4]) if _is_number(value) else 0
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
    return min(int(value[:20]), MAX_SEQUENCE)


def _is_number(value: str) -> bool:
    # Python's int() takes more than that: spaces, underscores, signs, other scripts' digits.
    return value.isascii() and value.isdecimal()

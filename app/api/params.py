"""Query parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import QueryParams

from app.protocol.errors import InvalidRequest
from app.protocol.include import REFUSED_INCLUDES, SUPPORTED_INCLUDES
from app.protocol.text import shortened
from app.responses.ids import may_exist
from app.responses.paging import DEFAULT_LIMIT, MAX_LIMIT, PageQuery, unknown_cursor
from app.store.paging import Page

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
_MAX_INTEGER_DIGITS = 20

MAX_VALUES = 100
"""Of a parameter that may be repeated."""


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


def list_page(
    query: QueryParams, *, descending: bool = False, default: int = DEFAULT_LIMIT, any_id: bool = False
) -> Page:
    """The page of a list without `include`; `descending` and `default` hold if `order` and `limit` are left out.

    Cursors have the form of an id, unless `any_id`. Raises InvalidRequest.
    """
    after, before = query.get("after"), query.get("before")
    if after is not None and before is not None:
        raise InvalidRequest("Send 'after' or 'before', but not both.", "before", "invalid_value")
    for name, cursor in (("after", after), ("before", before)):
        if cursor is not None and not any_id and not may_exist(cursor):
            raise unknown_cursor(cursor, name)
    order = query.get("order", "desc" if descending else "asc")
    return Page(_limit(query.get("limit"), default), after, before, descending=_descending(order))


def values_of(query: QueryParams, name: str) -> tuple[str, ...]:
    """All values of a parameter that may be repeated, also as `name[]`. Raises InvalidRequest."""
    values = (*query.getlist(name), *query.getlist(f"{name}[]"))
    if len(values) > MAX_VALUES or any("\0" in value for value in values):
        message = f"Invalid '{name}': expected at most {MAX_VALUES} values, without the character U+0000."
        raise InvalidRequest(message, name, "invalid_value")
    return values


def repeatable(*names: str) -> tuple[str, ...]:
    """The names by which such parameters come."""
    return tuple(each for name in names for each in (name, f"{name}[]"))


def boolean(query: QueryParams, name: str) -> bool:
    """False, if it is left out. Raises InvalidRequest."""
    return _boolean(query, name)


def integer(query: QueryParams, name: str, low: int, high: int) -> int | None:
    """None, if it is left out. Raises InvalidRequest."""
    value = query.get(name)
    if value is None:
        return None
    number = int(value[:_MAX_INTEGER_DIGITS]) if _is_number(value) else -1
    if not low <= number <= high:
        message = f"Invalid value for '{name}': '{shortened(value)}'. Expected an integer between {low} and {high}."
        raise InvalidRequest(message, name, "invalid_value")
    return number


def one_of(query: QueryParams, name: str, supported: tuple[str, ...]) -> str:
    """The first of them, if it is left out. Raises InvalidRequest."""
    value = query.get(name, supported[0])
    if value not in supported:
        raise unsupported_value(name, value, supported)
    return value


def check_include(query: QueryParams) -> None:
    """Raises InvalidRequest for an `include` that is not supported; answers contain the supported ones in any case."""
    for name in INCLUDE:
        for value in query.getlist(name):
            shown = shortened(value)
            if value in REFUSED_INCLUDES:
                raise InvalidRequest(f"'{name}': '{shown}' is not supported yet.", name, "unsupported_parameter")
            if value not in SUPPORTED_INCLUDES:
                raise unsupported_value(name, shown, SUPPORTED_INCLUDES)


def _boolean(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in _BOOLEANS:
        raise unsupported_value(name, value, tuple(_BOOLEANS))
    return _BOOLEANS[value]


def _descending(value: str) -> bool:
    if value not in ("asc", "desc"):
        raise unsupported_value("order", value, ("asc", "desc"))
    return value == "desc"


def unsupported_value(name: str, value: str, supported: tuple[str, ...]) -> InvalidRequest:
    values = ", ".join(f"'{each}'" for each in supported)
    message = f"Invalid value for '{name}': '{shortened(value)}'. Supported values are: {values}."
    return InvalidRequest(message, name, "invalid_value")


def _limit(value: str | None, default: int = DEFAULT_LIMIT) -> int:
    if value is None:
        return default
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

"""Query parameters: the route's model checks them, and `/docs` shows it.

FastAPI's own query models keep the last value of a repeated parameter, have no second name for lists, and take 86 us of
CPU for an empty query, on the machine where this takes 12.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)
from starlette.requests import HTTPConnection

from app.protocol.errors import InvalidRequest
from app.protocol.requests.bodies.create_response import IncludeValue
from app.protocol.requests.bodies.files import FilePurpose
from app.protocol.requests.bodies.operator import MAX_TIME
from app.protocol.requests.validation import NO_NUL, error_at, refused
from app.protocol.text import shortened
from app.protocol.types import Json
from app.responses.paging import DEFAULT_LIMIT, MAX_LIMIT
from app.store.paging import Page

MAX_SEQUENCE = 2**31 - 2
"""The column has 32 bits, and queries ask for the number after it."""
MAX_FILES = 10_000
"""Files of one page."""
MAX_WAIT = 300
"""Seconds. Clients and proxies give up sooner or later."""
MAX_VALUES = 100
"""Most values of a parameter that may be repeated."""
_MAX_DIGITS = 20
"""Longer numbers are out of range, and int() takes time that grows with the square of their length."""
_ENTRY = re.compile(r"(?P<field>\w+)\[(?P<key>.+)\]", re.DOTALL)
"""The name of an entry of an object: `metadata[run]`."""
_TWICE = "The query parameter '{path}' comes twice; send it once."


class Query(BaseModel, extra="forbid", frozen=True):
    """A query. Lists may be repeated, also as `name[]`, and objects come entry by entry, as `name[key]`; nothing else
    comes twice, nothing is ignored, and nothing has U+0000, which Postgres' text cannot hold."""

    _written: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    async def read(cls, request: HTTPConnection) -> Self:
        """Returns the query of a request. Raises InvalidRequest for its first parameter at fault."""
        if not request.scope["query_string"]:  # As of most requests.
            return cls._empty()
        sent: dict[str, Any] = {}
        written: dict[str, str] = {}
        for name, value in request.query_params.multi_items():
            if "\0" in name or "\0" in value:
                raise _refused(name, NO_NUL)
            is_list = cls._is_of(name.removesuffix("[]"), tuple)
            field = name.removesuffix("[]") if is_list else name
            if (entry := _ENTRY.fullmatch(name)) is not None and cls._is_of(entry["field"], dict):
                field = entry["field"]
                entries = sent.setdefault(field, {})
                if entry["key"] in entries:
                    raise _refused(name, _TWICE)
                entries[entry["key"]] = value
                written.setdefault(field, name)
                continue
            written.setdefault(field, name)
            if is_list:
                sent.setdefault(field, []).append(value)
            elif field not in sent:
                sent[field] = value
            else:
                raise _refused(name, _TWICE)
        return cls._checked(sent, written)

    @classmethod
    def parameters(cls) -> list[Json]:
        """Returns the parameters for the route's documentation."""
        schema = cls.model_json_schema()
        required = schema.get("required", ())
        return [_parameter(name, field, is_required=name in required) for name, field in schema["properties"].items()]

    def written(self, field: str) -> str:
        """Returns the name by which a parameter came."""
        return self._written.get(field, field)

    @classmethod
    def _checked(cls, sent: dict[str, Any], written: dict[str, str]) -> Self:
        try:
            query = cls.model_validate(sent)
        except ValidationError as error:
            raise _first_error(error, written) from None
        query._written.update(written)
        return query

    @classmethod
    @functools.cache
    def _empty(cls) -> Self:
        return cls._checked({}, {})

    @classmethod
    def _is_of(cls, name: str, kind: type) -> bool:
        field = cls.model_fields.get(name)
        return field is not None and get_origin(field.annotation) is kind


def _refused(name: str, message: str) -> InvalidRequest:
    shown = shortened(name)
    return InvalidRequest(message.format(path=shown), shown, "invalid_value")


def _parameter(name: str, field: Json, *, is_required: bool) -> Json:
    """A parameter is left out rather than null."""
    schema = {key: value for key, value in field.items() if key not in ("title", "anyOf")}
    if "anyOf" in field:
        schema = {**field["anyOf"][0], **schema}
    if not schema.get("default"):
        schema.pop("default", None)
    description = schema.pop("description", "")
    style = {"style": "deepObject", "explode": True} if schema.get("type") == "object" else {}
    return {
        "name": name,
        "in": "query",
        "required": is_required,
        "description": description,
        **style,
        "schema": schema,
    }


def _first_error(error: ValidationError, written: dict[str, str]) -> InvalidRequest:
    """The first in the order of the query; what is missing comes last."""

    def name_of(entry: Any) -> str:
        return str(entry["loc"][0]) if entry["loc"] else entry["ctx"]["field"]

    order = {name: place for place, name in enumerate(written)}
    first = min(error.errors(include_url=False), key=lambda entry: order.get(name_of(entry), len(order)))
    name = name_of(first)
    return error_at(shortened(written.get(name, name)), first)


def _number(value: str) -> int:
    """int() alone accepts spaces, underscores, signs and the digits of other scripts."""
    if not (value.isascii() and value.isdecimal()):
        raise refused(f"Invalid value for '{{path}}': '{shortened(value)}'. Expected an integer >= 0.", "invalid_value")
    return int(value.lstrip("0")[:_MAX_DIGITS] or "0")


def _flag(value: str) -> bool:
    if value not in ("true", "false"):
        message = f"Invalid value for '{{path}}': '{shortened(value)}'. Supported values are: 'true' and 'false'."
        raise refused(message, "invalid_value")
    return value == "true"


DIGITS = BeforeValidator(_number)
"""Behind the bounds of an integer."""
Flag = Annotated[bool, BeforeValidator(_flag)]
Time = Annotated[int, Field(ge=0, le=MAX_TIME, description="Epoch seconds."), DIGITS]
Order = Annotated[Literal["asc", "desc"], Field(description="`asc`: the oldest first; `desc`: the newest first.")]
Names = Annotated[tuple[str, ...], Field(max_length=MAX_VALUES)]


class WaitQuery(Query):
    wait: Annotated[int, Field(ge=0, le=MAX_WAIT), DIGITS] = Field(
        0, description="Wait for the end, up to so many seconds. An extension."
    )


class Including(Query):
    """Query of routes that answer with items."""

    include: tuple[IncludeValue, ...] = Field(
        (), description="Parts that items always have, or that were included at creation."
    )


class ListQuery(Query):
    """Query of a list in the order of creation."""

    after: str | None = Field(None, description="Entries after the one with this id.")
    limit: Annotated[int, Field(ge=1, le=MAX_LIMIT), DIGITS] = Field(DEFAULT_LIMIT, description="How many entries.")

    @property
    def page(self) -> Page:
        return Page(self.limit, self.after)


class NewestFirstQuery(ListQuery):
    """Query of a list that has its newest entries first."""

    @property
    def page(self) -> Page:
        return replace(super().page, descending=True)


class OrderedQuery(ListQuery):
    order: Order = "asc"

    @property
    def page(self) -> Page:
        return replace(super().page, descending=self.order == "desc")


class ItemsQuery(OrderedQuery, Including):
    order: Order = "desc"


class FilesQuery(OrderedQuery):
    """Query of `GET /v1/files`."""

    limit: Annotated[int, Field(ge=1, le=MAX_FILES), DIGITS] = Field(MAX_FILES, description="How many files.")
    order: Order = "desc"
    purpose: FilePurpose | None = Field(None, description="Only files with this purpose.")


class BothWaysQuery(ListQuery):
    """Query of a list that can be read backwards, too."""

    before: str | None = Field(None, description="Entries before the one with this id.")

    @property
    def page(self) -> Page:
        """Raises InvalidRequest."""
        if self.after is not None and self.before is not None:
            raise InvalidRequest("Send 'after' or 'before', but not both.", "before", "invalid_value")
        return Page(self.limit, self.after, self.before)


class ReadyQuery(Query):
    """Query of `GET /health/ready`."""

    model: str | None = Field(None, description="Ask for this model alone, and whether it can answer now.")


class StartingAfterQuery(Query):
    """Query of a response's events."""

    starting_after: Annotated[int, Field(ge=0), DIGITS] | None = Field(
        None, description="Events after this sequence number only."
    )

    @property
    def last_seen(self) -> int:
        """Events after this sequence number are wanted; -1: all events."""
        return -1 if self.starting_after is None else min(self.starting_after, MAX_SEQUENCE)


class ReadQuery(StartingAfterQuery, Including, WaitQuery):
    """Query of `GET /v1/responses/{id}`."""

    include_obfuscation: Flag = Field(False, description="With `stream`: pad deltas to hide their length.")
    stream: Flag = Field(False, description="Read events instead of the object.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stream and self.wait:
            raise refused("'{path}' cannot be used with 'stream'.", "invalid_value", "wait")
        asked = {"starting_after": self.starting_after is not None, "include_obfuscation": self.include_obfuscation}
        for name in () if self.stream else (name for name, is_asked in asked.items() if is_asked):
            raise refused("'{path}' needs 'stream' to be true.", "invalid_value", name)
        return self

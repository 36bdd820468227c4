"""The base of all request models, and the checks and discriminators that they share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Field, Tag

from app.protocol.answerable import MAX_CALL_ID_CHARS
from app.protocol.requests.validation import NO_NUL, refused, wrong_kind
from app.protocol.text import shortened
from app.protocol.types import Json


class RequestModel(BaseModel, extra="forbid", strict=True, frozen=True):
    """A part of a request. Values are not converted between JSON types, and unknown keys are refused."""

    def stored(self) -> Json:
        """Returns this part as the store keeps it."""
        return self.model_dump(by_alias=True)


class Part(RequestModel, extra="ignore"):
    """An item, a tool, a message, or a part of one. Clients write fields of their own into these: they are dropped."""


def check_no_nul(value: str) -> str:
    """Postgres' text cannot hold U+0000."""
    if "\0" in value:
        raise refused(NO_NUL, "invalid_value")
    return value


ItemId = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(check_no_nul)]
CallId = Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID_CHARS), AfterValidator(check_no_nul)]
ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.-]+$")]
"""The name of a client's tool. Clients put dots into names, so no format of calls may give dots a meaning."""
ChosenName = Annotated[str, Field(min_length=1, max_length=257, pattern=r"^[A-Za-z0-9_.-]+$")]
"""The name of a tool, with its namespace and a dot before it if it has one."""
ItemStatus = Literal["in_progress", "completed", "incomplete", "failed", "searching", "interpreting", "calling"]


def check_object_type(
    known: Collection[str], unsupported: Collection[str] = (), key: str = "type", hidden: Collection[str] = ()
) -> Callable[[Any], Any]:
    """Returns a validator for an object whose `key` is one of `known`; its model checks the other fields.

    `hidden` are further values, which no error tells of.
    """

    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong_kind("an object", value)
        if key not in value:
            raise missing_type(key)
        if value[key] not in hidden:
            check_type(value[key], known, unsupported, key)
        return value

    return check


def check_type(value: Any, known: Collection[str], unsupported: Collection[str] = (), key: str = "type") -> None:
    """Raises an error about the `key` of an object, unless `value` is one of `known`.

    `unsupported` may have, for each value, what to do instead.
    """
    if not isinstance(value, str):
        raise refused("Invalid type for '{path}': expected a string.", "invalid_type", key)
    if value in unsupported:
        advice = f"; {unsupported[value]}" if isinstance(unsupported, Mapping) else ""
        raise refused(f"'{{path}}': '{value}' is not supported yet{advice}.", "unsupported_parameter", key)
    if value not in known:
        raise unsupported_value(value, sorted(known), key)


def missing_type(key: str = "type") -> Exception:
    """Returns an error for a validator to raise: the object has no `key`."""
    return refused("Missing required parameter: '{path}'.", "missing_required_parameter", key)


def unsupported_value(value: str, known: Collection[str], field: str = "") -> Exception:
    """Returns an error for a validator to raise: the value is not one of `known`."""
    allowed = ", ".join(f"'{name}'" for name in known)
    message = f"Invalid value for '{{path}}': '{shortened(value)}'. Supported values are: {allowed}."
    return refused(message, "invalid_value", field)


def tag_of(value: Any) -> str:
    """The discriminator of a union of objects, or of their models: each member has the tag `<type>`."""
    return f"<{value['type'] if isinstance(value, dict) else value.type}>"


def _check_text_or_list(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise wrong_kind("a string or an array", value)
    return value


StringType = TypeVar("StringType")
ListType = TypeVar("ListType")
TextOrList = Annotated[
    Annotated[StringType, Tag("<text>")] | Annotated[ListType, Tag("<list>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<list>"),
    BeforeValidator(_check_text_or_list),
]
"""A string of the one type, or an array of the other."""

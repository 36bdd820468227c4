"""The base of all request models, and the checks and discriminators that they share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Field, GetCoreSchemaHandler, Tag
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import CoreSchema, core_schema

from app.protocol.answerable import MAX_CALL_ID_CHARS
from app.protocol.requests.validation import NO_NUL, refused, wrong_kind
from app.protocol.text import shortened
from app.protocol.types import Json


class RequestModel(BaseModel, extra="forbid", strict=True, frozen=True):
    """A part of a request. Values are not converted between JSON types, and unknown keys are refused.

    `/docs` shows the `example` of a class.
    """

    def __init_subclass__(cls, example: Json | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if example is not None:
            cls.model_config = {**cls.model_config, "json_schema_extra": {"examples": [example]}}

    def stored(self) -> Json:
        """Returns this part as the store keeps it."""
        return self.model_dump(by_alias=True)


class Part(RequestModel, extra="ignore"):
    """An item, a tool, a message, or a part of one. Clients write fields of their own into these: they are dropped."""


OR_ABSENT = Field(exclude_if=lambda value: value is None)
"""Marks a field that the store has only if it was sent."""


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


@dataclass(frozen=True, slots=True, eq=False)
class ByType:
    """Marks a union of models, or one model: the `key` of an object is a Literal in the model that checks the others.

    One member may be a string. No error tells of the values of a member with SkipJsonSchema.
    """

    unsupported: Collection[str] = ()
    """Known values of the key that are refused; it may have, for each, what to do instead."""
    key: str = "type"
    tags: Mapping[Any, Collection[str]] | None = None
    """The tags of models whose key is no Literal."""
    tag: Callable[[Any], str] | None = None
    """Returns the tag of an object, or of its model, in `<>`; None: it is the key's value."""
    check: Callable[[Any], Any] | None = None
    """Validates the object before its model does; None: only its key."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        known: dict[bool, list[str]] = {True: [], False: []}
        choices: dict[Any, CoreSchema] = {}
        for member in get_args(source) or (source,):
            model, *marks = get_args(member) if hasattr(member, "__metadata__") else (member,)
            if isinstance(model, type) and issubclass(model, BaseModel):
                tags = (self.tags or {}).get(model) or get_args(model.model_fields[self.key].annotation)
                known[any(type(mark) is SkipJsonSchema for mark in marks)] += tags
                choices |= {f"<{tag}>": handler.generate_schema(member) for tag in tags}
            else:
                choices[_STRING] = handler.generate_schema(member)
        has_string = _STRING in choices
        check = self.check or _key_check(self.key, known[False], self.unsupported, known[True], has_string=has_string)
        union = core_schema.tagged_union_schema(choices, self.tag or _tagger(self.key))
        return core_schema.no_info_before_validator_function(check, union if get_args(source) else handler(source))


_STRING = "<string>"


def _key_check(
    key: str, known: Collection[str], unsupported: Collection[str], hidden: Collection[str], *, has_string: bool
) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if has_string and isinstance(value, str):
            return value
        if not isinstance(value, dict):
            raise wrong_kind("a string or an object" if has_string else "an object", value)
        if key not in value:
            raise refused("Missing required parameter: '{path}'.", "missing_required_parameter", key)
        if value[key] not in hidden:
            check_type(value[key], known, unsupported, key)
        return value

    return check


def _tagger(key: str) -> Callable[[Any], str]:
    def tag_of(value: Any) -> str:
        if isinstance(value, dict):
            return f"<{value[key]}>"
        return _STRING if isinstance(value, str) else f"<{getattr(value, key)}>"

    return tag_of


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


def unsupported_value(value: str, known: Collection[str], field: str = "") -> Exception:
    """Returns an error for a validator to raise: the value is not one of `known`."""
    allowed = ", ".join(f"'{name}'" for name in known)
    message = f"Invalid value for '{{path}}': '{shortened(value)}'. Supported values are: {allowed}."
    return refused(message, "invalid_value", field)


def of_shape(expected: str, *shapes: type) -> BeforeValidator:
    """Returns a validator for a value of one of these types, which are `expected`."""

    def check(value: Any) -> Any:
        if not isinstance(value, shapes):
            raise wrong_kind(expected, value)
        return value

    return BeforeValidator(check)


StringType = TypeVar("StringType")
ListType = TypeVar("ListType")
TextOrList = Annotated[
    Annotated[StringType, Tag("<text>")] | Annotated[ListType, Tag("<list>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<list>"),
    of_shape("a string or an array", str, list),
]
"""A string of the one type, or an array of the other."""

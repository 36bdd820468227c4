"""What the models of a request have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.protocol.requests.validation import refused, wrong_kind
from app.protocol.text import shortened

Json = dict[str, Any]


class RequestModel(BaseModel):
    """A part of a request: JSON types are taken as they are, unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


ItemId = Annotated[str, Field(min_length=1, max_length=128)]
CallId = Annotated[str, Field(min_length=1, max_length=128)]
ToolName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_-]+$")]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]


def check_kind(known: Collection[str], not_yet: Collection[str] = ()) -> Callable[[Any], Any]:
    """A validator: an object whose `type` is one that we know; its model checks the rest."""

    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            raise wrong_kind("an object", value)
        if "type" not in value:
            raise refused("Missing required parameter: '{path}'.", "missing_required_parameter", "type")
        check_type(value["type"], known, not_yet)
        return value

    return check


def check_type(kind: Any, known: Collection[str], not_yet: Collection[str] = ()) -> None:
    """Raises the error about the key `type` of the object at hand."""
    if not isinstance(kind, str):
        raise refused("Invalid type for '{path}': expected a string.", "invalid_type", "type")
    if kind in not_yet:
        raise refused(f"'{{path}}': '{kind}' is not supported yet.", "unsupported_parameter", "type")
    if kind not in known:
        raise unsupported_value(kind, sorted(known), "type")


def unsupported_value(value: str, known: Collection[str], field: str = "") -> Exception:
    """An error for a validator to raise: not one of these values."""
    allowed = ", ".join(f"'{name}'" for name in known)
    message = f"Invalid value for '{{path}}': '{shortened(value)}'. Supported values are: {allowed}."
    return refused(message, "invalid_value", field)


def tag_of(value: Any) -> str:
    """The discriminator of a union of objects: its members are tagged `<type>`."""
    return f"<{value['type']}>"


def text_or_list(value: Any) -> str:
    """The discriminator of a string or an array."""
    return "<text>" if isinstance(value, str) else "<list>"


def check_text_or_list(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise wrong_kind("a string or an array", value)
    return value

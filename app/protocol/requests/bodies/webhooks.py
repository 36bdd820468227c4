"""The bodies of `/v1/webhook_endpoints`, and the types of events."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from app.protocol.requests.base import RequestModel
from app.protocol.requests.fields import OneOf
from app.protocol.requests.validation import refused
from app.protocol.status import BatchStatus, Status

EVENT_TYPES = (
    *(f"response.{each.value}" for each in Status if each.final),
    *(f"batch.{each.value}" for each in BatchStatus if each.final),
)
"""What there is to be told: a background response, or a batch, has ended."""


def _check_url(value: str) -> str:
    try:
        url = urlsplit(value)
        is_good = url.scheme in ("http", "https") and bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        is_good = False
    if not is_good or url.username is not None or url.fragment or not value.isprintable() or " " in value:
        message = "Invalid '{path}': expected an https:// URL, without a user name, a password and a fragment."
        raise refused(message, "invalid_value")
    return value


EventType = Annotated[str, OneOf(EVENT_TYPES)]
_Types = Annotated[
    list[EventType], Field(min_length=1, max_length=64), AfterValidator(lambda types: sorted(set(types)))
]
_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Url = Annotated[str, Field(min_length=1, max_length=2048), AfterValidator(_check_url)]


class CreateEndpoint(
    RequestModel,
    example={"name": "jobs", "url": "https://hooks.example/longhaul", "event_types": ["batch.completed"]},
):
    """The body of `POST /v1/webhook_endpoints`."""

    event_types: _Types
    name: _Name
    url: _Url


class UpdateEndpoint(RequestModel, example={"disabled": False}):
    """The body of `POST /v1/webhook_endpoints/{webhook_endpoint_id}`; what is left out stays. `disabled` is an
    extension."""

    event_types: _Types | None = None
    name: _Name | None = None
    url: _Url | None = None
    disabled: bool | None = None


class RotateSecret(RequestModel, example={"keep_old_secret_active_for_24_hours": True}):
    """The body of `POST /v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret`."""

    keep_old_secret_active_for_24_hours: bool = False


class TestEndpoint(RequestModel, example={"event_type": "response.completed"}):
    """The body of `POST /v1/webhook_endpoints/{webhook_endpoint_id}/test`."""

    event_type: EventType

"""The bodies of requests to `/v1/conversations`."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from app.protocol.requests.base import RequestModel
from app.protocol.requests.bodies.create_response import IncludeValue
from app.protocol.requests.fields import MAX_INCLUDED, Metadata
from app.protocol.requests.items.any_item import Item

MAX_ITEMS = 20

Items = Annotated[list[Item], Field(max_length=MAX_ITEMS, fail_fast=True)]


class CreateConversation(RequestModel):
    """The body of `POST /v1/conversations`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"items": [{"role": "user", "content": "Hello!"}], "metadata": {"topic": "x"}}]}
    )

    items: Items | None = None
    metadata: Metadata | None = None


class UpdateConversation(RequestModel, json_schema_extra={"examples": [{"metadata": {"topic": "y"}}]}):
    """The body of `POST /v1/conversations/{id}`: metadata that replaces the old."""

    metadata: Metadata | None


class CreateItems(RequestModel, json_schema_extra={"examples": [{"items": [{"role": "user", "content": "Hello!"}]}]}):
    """The body of `POST /v1/conversations/{id}/items`."""

    items: Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
    include: Annotated[list[IncludeValue], Field(max_length=MAX_INCLUDED, fail_fast=True)] | None = None

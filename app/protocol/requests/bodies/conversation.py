"""The bodies of requests to `/v1/conversations`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from app.protocol.requests.base import RequestModel
from app.protocol.requests.bodies.create_response import IncludeValue
from app.protocol.requests.fields import MAX_INCLUDED, Metadata
from app.protocol.requests.items.any_item import Item

MAX_ITEMS = 20

Items = Annotated[list[Item], Field(max_length=MAX_ITEMS, fail_fast=True)]


class CreateConversation(
    RequestModel,
    example={"items": [{"role": "user", "content": "Hello!"}], "metadata": {"topic": "x"}},
):
    """The body of `POST /v1/conversations`."""

    items: Items | None = None
    metadata: Metadata | None = None


class UpdateConversation(RequestModel, example={"metadata": {"topic": "y"}}):
    """The body of `POST /v1/conversations/{id}`: metadata that replaces the old."""

    metadata: Metadata | None


class CreateItems(RequestModel, example={"items": [{"role": "user", "content": "Hello!"}]}):
    """The body of `POST /v1/conversations/{id}/items`."""

    items: Annotated[list[Item], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True)]
    include: Annotated[list[IncludeValue], Field(max_length=MAX_INCLUDED, fail_fast=True)] | None = None

"""The queries of lists of responses: of a client's own, and of the operators' of all projects."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from app.api.queries import Names, OrderedQuery, Time, stored_text
from app.protocol.requests.bodies.operator import MAX_IDS, StatusName
from app.protocol.requests.validation import refused
from app.protocol.status import Status
from app.store.operations.filters import ResponseFilter, moment

MAX_PAIRS = 16
"""As many as a response has in its metadata."""

Text = Annotated[str, AfterValidator(stored_text)]


def _whole(pairs: dict[str, str]) -> dict[str, str]:
    if any("\0" in text for pair in pairs.items() for text in pair):
        raise refused("Invalid '{path}': the character U+0000 is not allowed.", "invalid_value")
    return pairs


class ResponsesQuery(OrderedQuery):
    """Of `GET /v1/responses`."""

    order: Literal["asc", "desc"] = Field("desc", description="The newest first, or the oldest.")
    status: tuple[StatusName, ...] = Field((), max_length=len(Status), description="Responses of these statuses only.")
    model: Text | None = Field(None, description="Responses of this model only.")
    service_tier: Literal["default", "flex", "priority"] | None = Field(None, description="Of this tier only.")
    metadata: Annotated[dict[str, str], Field(max_length=MAX_PAIRS), AfterValidator(_whole)] = Field(
        {}, description="Responses with these values in their metadata only: `metadata[run]=nightly`."
    )
    created_after: Time | None = Field(None, description="Created at this time or later.")
    created_before: Time | None = Field(None, description="Created before this time.")

    def as_filter(self) -> ResponseFilter:
        return ResponseFilter(
            statuses=tuple(map(Status, self.status)),
            model=self.model,
            tier=self.service_tier,
            metadata=tuple(self.metadata.items()),
            since=None if self.created_after is None else moment(self.created_after),
            until=None if self.created_before is None else moment(self.created_before),
        )


class OperatorResponsesQuery(ResponsesQuery):
    """Of `GET /v1/operator/responses`."""

    ids: Names = Field((), max_length=MAX_IDS, description="These responses only.")
    project: Text | None = Field(None, description="Responses of this project only.")
    key: Text | None = Field(None, description="Responses that this API key has created only, by its id.")
    request_id: Text | None = Field(None, description="Responses of requests with this `x-request-id` only.")
    error_code: Text | None = Field(None, description="Responses that failed with this code only.")

    def as_filter(self) -> ResponseFilter:
        own = super().as_filter()
        more = {name: getattr(self, name) for name in ("ids", "project", "key", "request_id", "error_code")}
        return ResponseFilter(**{**{name: getattr(own, name) for name in ResponseFilter.__slots__}, **more})

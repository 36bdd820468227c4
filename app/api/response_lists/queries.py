"""The queries of lists of responses: of a client's own, and of the operators' of all projects."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from app.api.queries import Names, Order, OrderedQuery, Time
from app.protocol.requests.bodies.operator import MAX_IDS, ResponsesFilter, StatusName
from app.protocol.status import Status
from app.store.operations.filters import ResponseFilter

MAX_PAIRS = 16
"""As many as a response has in its metadata."""

Text = Annotated[str, Field(min_length=1)]


class ResponsesQuery(OrderedQuery):
    """Query of `GET /v1/responses`."""

    order: Order = "desc"
    status: tuple[StatusName, ...] = Field((), max_length=len(Status), description="Responses of these statuses only.")
    model: Text | None = Field(None, description="Responses of this model only.")
    batch: Text | None = Field(None, description="Responses that are lines of this batch only.")
    service_tier: Literal["default", "flex", "priority"] | None = Field(None, description="Of this tier only.")
    metadata: Annotated[dict[str, str], Field(max_length=MAX_PAIRS)] = Field(
        {}, description="Responses with these values in their metadata only: `metadata[run]=nightly`."
    )
    created_after: Time | None = Field(None, description="Created at this time or later.")
    created_before: Time | None = Field(None, description="Created before this time.")


class OperatorResponsesQuery(ResponsesQuery):
    """Query of `GET /v1/operator/responses`."""

    ids: Names = Field((), max_length=MAX_IDS, description="These responses only.")
    project: Text | None = Field(None, description="Responses of this project only.")
    key: Text | None = Field(None, description="Responses that this API key has created only, by its id.")
    request_id: Text | None = Field(None, description="Responses of requests with this `x-request-id` only.")
    error_code: Text | None = Field(None, description="Responses that failed with this code only.")


def filter_of(sent: ResponsesQuery | ResponsesFilter) -> ResponseFilter:
    """The filter of a query or of an action's body; a field that it does not have limits nothing."""
    return ResponseFilter.from_json({name: value for name, value in sent if name not in OrderedQuery.model_fields})

"""`/v1/webhook_endpoints`, `/v1/webhook_event_types` and `/v1/events`: a project is told what has ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from app.api.dependencies import HoldOf, Project, RuntimeOf
from app.api.docs import schemas
from app.api.docs.routes import EVENTS
from app.api.errors import encoded_reply, reply
from app.api.queries import DIGITS, Flag, NewestFirstQuery, Query
from app.api.routes.route import Asked, Body, Route, Sent
from app.api.sse import SSE, LineStream
from app.protocol.requests.bodies.webhooks import (
    EVENT_TYPES,
    CreateEndpoint,
    RotateSecret,
    TestEndpoint,
    UpdateEndpoint,
)
from app.webhooks.feed import BEGINNING

router = APIRouter(tags=["webhooks"], route_class=Route)
_ENDPOINTS = "/v1/webhook_endpoints"
_ENDPOINT = f"{_ENDPOINTS}/{{webhook_endpoint_id}}"
_Rotation = Annotated[RotateSecret, Depends(Body(RotateSecret, may_be_empty=True).read)]


class EventsQuery(Query):
    """Query of `GET /v1/events`."""

    after: str | None = Field(None, description="Events after the one with this id.")
    limit: Annotated[int, Field(ge=1, le=1000), DIGITS] = Field(100, description="How many events a page has.")
    stream: Flag = Field(False, description="Events as they come, as Server-Sent Events; so does `Accept`.")


@router.post(_ENDPOINTS, summary="Create a webhook endpoint", response_model=schemas.NewWebhookEndpoint)
async def create_endpoint(sent: Sent[CreateEndpoint], runtime: RuntimeOf, project: Project) -> Response:
    """The answer has `signing_secret`, which is shown once."""
    return reply(await runtime.webhooks.create(project, sent))


@router.get(_ENDPOINTS, summary="List webhook endpoints", response_model=schemas.WebhookEndpointList)
async def list_endpoints(query: Asked[NewestFirstQuery], runtime: RuntimeOf, project: Project) -> Response:
    return encoded_reply(await runtime.webhooks.page(project, query.page))


@router.get(_ENDPOINT, summary="Read a webhook endpoint", response_model=schemas.WebhookEndpoint)
async def get_endpoint(webhook_endpoint_id: str, runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.webhooks.get(project, webhook_endpoint_id))


@router.post(_ENDPOINT, summary="Change a webhook endpoint", response_model=schemas.WebhookEndpoint)
async def update_endpoint(
    webhook_endpoint_id: str, sent: Sent[UpdateEndpoint], runtime: RuntimeOf, project: Project
) -> Response:
    """`disabled: false` enables an endpoint again, with a clean record. An extension."""
    return reply(await runtime.webhooks.update(project, webhook_endpoint_id, sent))


@router.delete(_ENDPOINT, summary="Delete a webhook endpoint", response_model=schemas.WebhookEndpointDeleted)
async def delete_endpoint(webhook_endpoint_id: str, runtime: RuntimeOf, project: Project) -> Response:
    """Its deliveries go with it."""
    return reply(await runtime.webhooks.delete(project, webhook_endpoint_id))


@router.post(f"{_ENDPOINT}/rotate_secret", summary="Rotate a secret", response_model=schemas.NewWebhookEndpoint)
async def rotate_secret(webhook_endpoint_id: str, sent: _Rotation, runtime: RuntimeOf, project: Project) -> Response:
    """The secret before is dead at once, or signs beside the new one for a day."""
    keep_old = sent.keep_old_secret_active_for_24_hours
    return reply(await runtime.webhooks.rotate(project, webhook_endpoint_id, keep_old=keep_old))


@router.post(f"{_ENDPOINT}/test", summary="Test a webhook endpoint", response_model=schemas.WebhookTest)
async def test_endpoint(
    webhook_endpoint_id: str, sent: Sent[TestEndpoint], runtime: RuntimeOf, project: Project
) -> Response:
    """Sends a sample of the event, once."""
    return reply(await runtime.webhooks.test(project, webhook_endpoint_id, sent.event_type))


@router.get(f"{_ENDPOINT}/deliveries", summary="List deliveries", response_model=schemas.WebhookDeliveryList)
async def list_deliveries(
    webhook_endpoint_id: str, query: Asked[NewestFirstQuery], runtime: RuntimeOf, project: Project, hold: HoldOf
) -> Response:
    """The newest events first, with every attempt. An extension."""
    return encoded_reply(await runtime.webhooks.deliveries(project, webhook_endpoint_id, query.page, hold))


@router.post(
    f"{_ENDPOINT}/deliveries/{{event_id}}/replay", summary="Send again", response_model=schemas.WebhookDelivery
)
async def replay_delivery(webhook_endpoint_id: str, event_id: str, runtime: RuntimeOf, project: Project) -> Response:
    """Sends the event once more, with the same id. An extension."""
    return reply(await runtime.webhooks.replay(project, webhook_endpoint_id, event_id))


@router.get("/v1/webhook_event_types", summary="List event types", response_model=schemas.WebhookEventTypes)
async def list_event_types() -> Response:
    return reply({"object": "list", "data": list(EVENT_TYPES)})


@router.get("/v1/events", summary="Read or follow events", response_model=schemas.EventList, responses=EVENTS)
async def list_events(request: Request, query: Asked[EventsQuery], runtime: RuntimeOf, project: Project) -> Response:
    """The oldest first. To go on, send the last id as `after`, or as the header `Last-Event-ID`. An extension."""
    # EventSource names the last event beside the URL, with its older `after`, when it connects again.
    after = request.headers.get("last-event-id") or query.after or BEGINNING
    if not query.stream and "text/event-stream" not in request.headers.get("accept", ""):
        return encoded_reply(await runtime.feed.page(project, after, query.limit))
    await runtime.feed.check(after)

    async def opened() -> AsyncGenerator[bytes, None]:
        return runtime.feed.follow(project, after)

    return LineStream(opened, runtime.reader.readers, project, runtime.shutdown.begun, SSE)

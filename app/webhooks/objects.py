"""Endpoints, deliveries and events as clients see them. Pure."""

from __future__ import annotations

from datetime import datetime

from app.protocol.types import Json
from app.store.webhooks.deliveries import DeliveryRow
from app.store.webhooks.endpoints import EndpointRow
from app.store.webhooks.events import EventRow


def endpoint_object(row: EndpointRow, secret: str | None = None) -> Json:
    """`disabled` and what is behind it are extensions. `secret` is shown when it is new."""
    return {
        "id": row.id,
        "object": "webhook_endpoint",
        "name": row.name,
        "url": row.url,
        "event_types": list(row.event_types),
        "signing_secret_hint": row.secret_hint,
        "created_at": _epoch(row.created_at),
        "updated_at": _epoch(row.updated_at),
        "disabled": row.disabled_at is not None,
        "disabled_at": _epoch(row.disabled_at),
        "disabled_reason": row.disabled_reason,
        "failing_since": _epoch(row.failing_since),
        **({} if secret is None else {"signing_secret": secret}),
    }


def delivery_object(row: DeliveryRow) -> Json:
    """The id of a delivery is that of its event."""
    return {
        "id": row.id,
        "object": "webhook_endpoint.delivery",
        "event_type": row.type,
        "data": {"id": row.object_id},
        "status": row.status,
        "created_at": _epoch(row.created_at),
        "next_attempt_at": _epoch(row.due_at),
        "ended_at": _epoch(row.ended_at),
        "attempts": list(row.attempts),
    }


def event_object(row: EventRow) -> Json:
    """As webhooks have it."""
    created_at = _epoch(row.at)
    return {"id": row.id, "object": "event", "created_at": created_at, "type": row.type, "data": {"id": row.object_id}}


def _epoch(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())

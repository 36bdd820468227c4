"""A new response with the request of an old one."""

from __future__ import annotations

from datetime import UTC, datetime

from app.ids import new_response_id
from app.responses.create.acceptor import opening_of
from app.store.operations.retries import OldResponse
from app.store.responses.new_rows import NewResponse, Reserving
from app.store.rows import Origin


def retried(old: OldResponse, reserving: Reserving | None) -> NewResponse:
    """Returns the row of a response that repeats the request of `old`, and continues what that one continued."""
    response_id, created_at = new_response_id(), datetime.now(UTC)
    opening, _ = opening_of(old.request, response_id, created_at)
    return NewResponse(
        id=response_id,
        project=old.project,
        model=old.model,
        queue=old.queue,
        priority=old.priority,
        request=old.request,
        created_at=created_at,
        opening=opening,
        queue_seconds=old.queue_seconds,
        run_seconds=old.run_seconds,
        window_seconds=old.window_seconds,
        chain_length=old.chain_length,
        context_bytes=old.context_bytes,
        origin=Origin(old.key_id),
        reserving=reserving,
        ran_on=old.ran_on,
        retry_of=old.id,
    )

"""A new response with the request of an old one."""

from __future__ import annotations

from collections.abc import Set
from datetime import UTC, datetime

from app.ids import new_id
from app.protocol.limits import CHARGED, TOKENS, LimitKind
from app.responses.create.acceptor import opening_of
from app.responses.create.reserving import reserving_of
from app.responses.models.catalog import Terms
from app.store.operations.retries import OldResponse
from app.store.responses.new_rows import NewResponse
from app.store.rows import Origin


def retried(old: OldResponse, limits: Set[LimitKind], reserved_tokens: int) -> NewResponse:
    """Returns the row of a response that repeats the request of `old`, and continues what that one continued.

    `limits`: those that its project has. `reserved_tokens`: of output, for a request that names no bound of its own.
    """
    response_id, created_at = new_id("resp"), datetime.now(UTC)
    terms = Terms(is_limited=bool(limits - CHARGED), reserves_tokens=bool(limits & TOKENS))
    context_bytes = old.context_bytes + old.conversation_bytes
    reserving = reserving_of(old.request, terms, context_bytes, reserved_tokens, old.context_length)
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

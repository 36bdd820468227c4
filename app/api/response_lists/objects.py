"""A list of responses, and its entries: what a client sees of its own, without what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from app.api.admin_objects import Entry, List, RowShape, Seconds
from app.protocol.types import Json
from app.queue.message import class_of
from app.store.operations.listing import ListedResponse, ResponsePage


class ResponsesPage(List[Entry]):
    """A page may have fewer entries than were asked for while `has_more` is true; the next begins after `last_id`.

    That is the last entry, or, in a page that was cut, the last response that was read.
    """

    cut: bool
    """Whether the page ended because it had read for as long, or as many responses, as a page may."""

    @classmethod
    def of_found(cls, found: ResponsePage, entry_of: Callable[[ListedResponse], Entry]) -> ResponsesPage[Entry]:
        entries = found.entries
        last = (found.last_id if found.has_more else None) or (entries[-1].id if entries else "")
        first = entries[0].id if entries else ""
        data = [entry_of(entry) for entry in entries]
        return cls(data=data, first_id=first, last_id=last, has_more=found.has_more, cut=found.is_cut)


class ListedObject(RowShape):
    """A response as lists show it: no input and no output. `GET /v1/responses/{id}` has all of it."""

    id: str
    object: str = "response.summary"
    created_at: Seconds
    completed_at: Seconds | None
    status: str
    model: str
    service_tier: str
    background: bool
    store: bool
    metadata: Json
    previous_response_id: str | None
    conversation: Json | None
    batch_id: str | None
    """The batch of which it is a line."""
    error: Json | None
    incomplete_details: Json | None
    usage: Json | None
    retry_of: str | None
    """The response whose request this one repeats, because an operator said so."""

    @classmethod
    def of(cls, row: ListedResponse, **given: Any) -> Self:
        tier, _ = class_of(row.priority)
        conversation = None if row.conversation_id is None else {"id": row.conversation_id}
        done_at = row.finished_at if row.status == "completed" else None
        return super().of(
            row,
            completed_at=done_at,
            service_tier=tier,
            conversation=conversation,
            metadata=row.metadata or {},
            **given,
        )

"""What a request continues: a previous response, a conversation, or nothing."""

from __future__ import annotations

from collections.abc import Collection

from app.protocol.errors import InvalidRequest, NotFound
from app.protocol.requests.request import ResponseRequest
from app.protocol.status import Status
from app.protocol.text import shortened
from app.protocol.types import Json
from app.responses.ids import may_exist
from app.store import conversations, responses
from app.store.context import ContextGone, chain_items, conversation_context
from app.store.database import Database

_CONTINUABLE = frozenset({Status.COMPLETED, Status.INCOMPLETE})


def no_such_conversation(conversation_id: str, param: str | None = None) -> NotFound:
    message = f"Conversation with id '{shortened(conversation_id)}' not found."
    return NotFound(message, param, "conversation_not_found")


def _no_such_previous(response_id: str) -> InvalidRequest:
    message = f"Previous response with id '{shortened(response_id)}' not found."
    return InvalidRequest(message, "previous_response_id", "previous_response_not_found")


async def check_continuation(
    db: Database, project: str, request: ResponseRequest, unstored: Collection[str]
) -> int | None:
    """Checks that the request's previous response or conversation exists and can be continued.

    Returns the position in the conversation of its last item, or None without a conversation. Raises InvalidRequest
    and NotFound. The context may still be deleted before a worker reads it.
    """
    if (previous := request.fields.previous_response_id) is not None:
        await _check_previous(db, project, previous, unstored)
    if (conversation := request.fields.conversation_id) is None:
        return None
    if not (may_exist(conversation) and await conversations.get(db, project, conversation)):
        raise no_such_conversation(conversation, "conversation")
    return await conversations.last_position(db, conversation)


async def _check_previous(db: Database, project: str, response_id: str, unstored: Collection[str]) -> None:
    row = await responses.get(db, project, response_id) if may_exist(response_id) else None
    if row is None or not (row.store or response_id in unstored):
        raise _no_such_previous(response_id)
    if row.status not in _CONTINUABLE:
        message = (
            f"The previous response is '{row.status.value}'. "
            "Only a completed or an incomplete response can be continued."
        )
        raise InvalidRequest(message, "previous_response_id", "previous_response_not_finished")


async def continued_items(db: Database, project: str, document: Json) -> list[Json]:
    """Returns the items before the input of a request `document`, oldest first.

    Raises InvalidRequest if the previous response, or one before it, was deleted.
    """
    if (previous := document["previous_response_id"]) is not None:
        try:
            return await chain_items(db, project, previous)
        except ContextGone:
            raise _no_such_previous(previous) from None
    if (conversation := document["conversation"]) is not None:
        return await conversation_context(db, conversation["id"], document["conversation_until"])
    return []

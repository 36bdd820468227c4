"""What a request continues: a previous response, a conversation, or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from app.heavy import off_loop
from app.protocol.answerable import given_ids
from app.protocol.errors import InvalidRequest, NotFound
from app.protocol.requests.bodies.consistency import no_such_call, outputs_without_call
from app.protocol.requests.bodies.request import ResponseRequest
from app.protocol.status import Status
from app.protocol.text import shortened
from app.protocol.types import Json
from app.store.context import calls
from app.store.context.calls import Past
from app.store.context.size import ContextSize, PreviousResponse, conversation_size, find_previous
from app.store.database import Database
from config.settings import Settings

MAX_CHAIN_LENGTH = 10_000
"""Responses in a chain of `previous_response_id`s."""
MAX_CONVERSATION_ITEMS = 20_000
"""Most items of a conversation that a request continues or adds to."""
_NO_CHAIN = ContextSize()

_CONTINUABLE = frozenset({Status.COMPLETED, Status.INCOMPLETE})


def no_such_conversation(conversation_id: str, param: str | None = None) -> NotFound:
    message = f"Conversation with id '{shortened(conversation_id)}' not found."
    return NotFound(message, param, "conversation_not_found")


def _no_such_previous(response_id: str) -> InvalidRequest:
    message = f"Previous response with id '{shortened(response_id)}' not found."
    return InvalidRequest(message, "previous_response_id", "previous_response_not_found")


@dataclass(frozen=True, slots=True)
class Continuation:
    """The context that a request continues, as it was when the request was accepted."""

    previous: PreviousResponse | None = None
    conversation: str | None = None
    last_position: int | None = None
    """Position of its last item in the conversation."""
    conversation_bytes: int = 0
    """Size of all items of the conversation."""
    chain: ContextSize = _NO_CHAIN
    """The previous response and all that it continues."""

    def past(self, project: str) -> Past | None:
        """Where the items are that it continues; None: it continues nothing."""
        if self.previous is not None:
            return Past(project, self.previous.id)
        return None if self.conversation is None else Past(project, self.conversation, self.last_position or 0)


_NOTHING = Continuation()


@dataclass(frozen=True, slots=True)
class ContextLimits:
    """The most that a request may continue."""

    bytes: int
    responses: int
    """Most responses of a chain."""
    items: int
    """Most items of a conversation."""

    @classmethod
    def of(cls, settings: Settings) -> ContextLimits:
        return cls(settings.max_context_bytes, MAX_CHAIN_LENGTH, MAX_CONVERSATION_ITEMS)

    def for_compaction(self) -> ContextLimits:
        """A context at its bound can still be compacted."""
        return ContextLimits(2 * self.bytes, 2 * self.responses, 2 * self.items)

    def check_chain(self, size: ContextSize) -> None:
        """Raises InvalidRequest if a response that continues a chain of this size would be too long."""
        way_out = "Compact it (POST /v1/responses/compact), and continue with the output of that as 'input'."
        if size.count >= self.responses:
            message = f"'previous_response_id' continues {size.count} responses; a chain may have {self.responses}."
            raise _too_large("previous_response_id", f"{message} {way_out}")
        if size.bytes > self.bytes:
            message = f"'previous_response_id' continues {size.bytes} bytes; at most {self.bytes} are accepted."
            raise _too_large("previous_response_id", f"{message} {way_out}")

    def check_conversation(self, size: ContextSize, param: str = "conversation") -> None:
        """Raises InvalidRequest about the field `param` if a conversation of this size is too large."""
        way_out = "Start another conversation, or delete items."
        if size.count > self.items:
            message = f"Invalid '{param}': the conversation has {size.count} items; at most {self.items} are accepted."
            raise _too_large(param, f"{message} {way_out}")
        if size.bytes > self.bytes:
            message = f"Invalid '{param}': the conversation has {size.bytes} bytes; at most {self.bytes} are accepted."
            raise _too_large(param, f"{message} {way_out}")


def _too_large(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param, "context_too_large")


async def check_continuation(
    db: Database, project: str, request: ResponseRequest, unstored: Collection[str], limits: ContextLimits
) -> Continuation:
    """Checks that the request's previous response or conversation exists, can be continued, and is within `limits`.

    Raises InvalidRequest and NotFound. The context may still be deleted before a worker reads it.
    """
    if (previous := request.fields.previous_response_id) is not None:
        return await _check_previous(db, project, previous, unstored, limits)
    if (conversation := request.fields.conversation_id) is None:
        return _NOTHING
    found = await conversation_size(db, project, conversation)
    if found is None:
        raise no_such_conversation(conversation, "conversation")
    limits.check_conversation(found.size)
    return Continuation(
        conversation=conversation, last_position=found.last_position, conversation_bytes=found.size.bytes
    )


async def check_ids(
    db: Database, project: str, continued: Continuation, items: Sequence[Json], response_id: str, size: int, count: int
) -> None:
    """Checks that no item of the response's input is there twice, nor in what it continues.

    `size` and `count` are the items' bytes, and how many items and parts they are. Raises InvalidRequest. Input without
    ids of the client's costs no query.
    """
    given = await off_loop(partial(_distinct_ids, items, response_id), size, count)
    if not given or (past := continued.past(project)) is None:
        return
    if (taken := await calls.taken(db, past, given)) is not None:
        raise _duplicate(taken)


def _distinct_ids(items: Sequence[Json], response_id: str) -> list[str]:
    """Returns the ids of the input that its client gave. Raises InvalidRequest about one that comes twice."""
    given = given_ids(items, response_id)
    for item_id, number in Counter(given).items():
        if number > 1:
            raise _duplicate(item_id)
    return given


def _duplicate(item_id: str) -> InvalidRequest:
    """As OpenAI's API says it: clients look for these words."""
    message = (
        f"Duplicate item found with id {shortened(item_id)}. Remove duplicate items from your input and try again."
    )
    return InvalidRequest(message, "input", "duplicate_item")


async def check_outputs(
    db: Database, project: str, continued: Continuation, items: Sequence[Json], size: int, count: int
) -> None:
    """Checks that each output among `items`, the stored input, has its call in them or in what they continue.

    `size` and `count` are the items' bytes, and how many items and parts they are.

    Raises InvalidRequest about the first output without a call. Input without outputs costs no query, nor do outputs
    whose calls the previous response made.
    """
    if not (missing := await off_loop(partial(outputs_without_call, items), size, count)):
        return
    unknown, past = set(missing), continued.past(project)
    if (previous := continued.previous) is not None:
        unknown -= previous.call_ids
        past = None if previous.previous is None else Past(project, previous.previous)
    if unknown and past is not None:
        unknown = await calls.without_call(db, past, unknown)
    for call_id, index in missing.items():
        if call_id in unknown:
            raise no_such_call(call_id, index)


async def _check_previous(
    db: Database, project: str, response_id: str, unstored: Collection[str], limits: ContextLimits
) -> Continuation:
    found = await find_previous(db, project, response_id)
    if found is None or not (found.store or response_id in unstored):
        raise _no_such_previous(response_id)
    if found.status not in _CONTINUABLE:
        message = (
            f"The previous response is '{found.status.value}'. "
            "Only a completed or an incomplete response can be continued."
        )
        raise InvalidRequest(message, "previous_response_id", "previous_response_not_finished")
    limits.check_chain(found.chain)
    return Continuation(previous=found, chain=found.chain)


async def earlier_approvals(db: Database, project: str, continued: Continuation) -> list[Json]:
    """Returns what the request continues of approvals, their requests, calls and compactions, oldest first."""
    past = continued.past(project)
    return [] if past is None else await calls.approvals(db, past)

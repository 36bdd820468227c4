"""What a response continues: the items before its own, from its chain of responses or from its conversation.

Nothing is copied from turn to turn: each response keeps the items that it added, and the chain is walked by primary
key. Branches from one response share their past and nothing else. Of a conversation, a response continues the items
that were there when it was accepted, because a worker that takes it over must find the same ones.

A column of its own, `tool_results`, holds what models were told of hosted tools' calls. Only workers see it: they get
it as the `call` of an item (workers/formats/chat/messages.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import select, text

from app.protocol.item_types import HOSTED_CALLS
from app.protocol.types import Json
from app.store.context_size import BYTES, conversation_size
from app.store.database import Database
from app.store.items import INPUT, input_in, responses_of
from app.store.rows import ResponseRow
from app.store.tables import conversation_items

NO_LIMIT = 2**62

CALL = "call"
"""The key under which a worker finds the call of a hosted tool in an item."""

_CHAIN = text(
    f"""
    WITH RECURSIVE chain (id, previous, project, input, output, tool_results, bytes, depth) AS (
        SELECT r.id, r.previous_response_id, r.project, {INPUT}, r.output, r.tool_results, CAST({BYTES} AS bigint), 0
        FROM responses r WHERE r.id = :id AND r.project = :project
        UNION ALL
        SELECT
            r.id, r.previous_response_id, r.project, {INPUT}, r.output, r.tool_results, c.bytes + {BYTES}, c.depth + 1
        FROM responses r JOIN chain c ON r.id = c.previous AND r.project = c.project WHERE c.bytes <= :most_bytes
    )
    SELECT previous, input, output, tool_results, bytes FROM chain ORDER BY depth DESC
    """
)

_TOOL_RESULTS_BYTES = text(
    """
    SELECT coalesce(sum(octet_length(CAST(r.output AS text)) + octet_length(CAST(r.tool_results AS text))), 0)
    FROM responses r
    WHERE r.id = ANY(CAST(:responses AS text[])) AND r.project = :project AND r.tool_results IS NOT NULL
    """
)
_TOOL_RESULTS = text(
    """
    SELECT r.output, r.tool_results FROM responses r
    WHERE r.id = ANY(CAST(:responses AS text[])) AND r.project = :project AND r.tool_results IS NOT NULL
    """
)


class ContextGone(Exception):
    """A response in the chain was deleted, by a client or by retention."""


class ContextTooLarge(Exception):
    """The context has more bytes than the reader can hold."""


async def chain_items(db: Database, project: str, response_id: str, most_bytes: int = NO_LIMIT) -> list[Json]:
    """The items of a response and of every response it continues, oldest first, as workers see them.

    Raises ContextGone and ContextTooLarge.
    """
    values = {"id": response_id, "project": project, "most_bytes": most_bytes}
    async with db.autocommit() as connection:
        rows = (await connection.execute(_CHAIN, values)).all()
    if rows and rows[0].bytes > most_bytes:
        raise ContextTooLarge(response_id)
    if not rows or rows[0].previous is not None:
        raise ContextGone(response_id)
    return [item for row in rows for item in (*input_in(row.input), *_with_calls(row.output or [], row.tool_results))]


async def conversation_context(
    db: Database, conversation_id: str, until: int | None, most_bytes: int = NO_LIMIT
) -> list[Json]:
    """The items of a conversation up to position `until`, or all of them, oldest first, as workers see them.

    Raises ContextTooLarge.
    """
    if most_bytes != NO_LIMIT and (await conversation_size(db, conversation_id)).size.bytes > most_bytes:
        raise ContextTooLarge(conversation_id)
    table = conversation_items.c
    statement = (
        select(table.item, table.tool_results).where(table.conversation_id == conversation_id).order_by(table.position)
    )
    if until is not None:
        statement = statement.where(table.position <= until)
    async with db.autocommit() as connection:
        return [_with_call(row.item, row.tool_results) for row in await connection.execute(statement)]


async def context_items(db: Database, row: ResponseRow, most_bytes: int = NO_LIMIT) -> list[Json]:
    """The items before the response's own input, as workers see them. Raises ContextGone and ContextTooLarge."""
    previous = row.request.get("previous_response_id")
    if previous is not None:
        return await chain_items(db, row.project, previous, most_bytes)
    if row.conversation_id is not None:
        until = row.request.get("conversation_until")
        return await conversation_context(db, row.conversation_id, until, most_bytes)
    return []


async def restore_calls(db: Database, project: str, items: Iterable[Json], most_bytes: int = NO_LIMIT) -> list[Json]:
    """The same items; those that a client copied from a stored response get back the calls that it never saw.

    Raises ContextTooLarge if the responses that the items come from are too large together.
    """
    items = list(items)
    copied = {item["id"] for item in items if item["type"] in HOSTED_CALLS and CALL not in item and item.get("id")}
    responses = list(responses_of(copied))
    if not responses:
        return items
    values = {"responses": responses, "project": project}
    async with db.autocommit() as connection:
        if (await connection.execute(_TOOL_RESULTS_BYTES, values)).scalar_one() > most_bytes:
            raise ContextTooLarge(responses[0])
        rows = (await connection.execute(_TOOL_RESULTS, values)).all()
    stored = (item for row in rows for item in _with_calls(row.output, row.tool_results))
    calls = {item["id"]: item[CALL] for item in stored if CALL in item}
    return [item if CALL in item else _with_call(item, calls.get(item.get("id"))) for item in items]


def _with_calls(output: list[Json], tool_results: Mapping[str, Json] | None) -> list[Json]:
    if not tool_results:
        return output
    return [_with_call(item, tool_results.get(str(index))) for index, item in enumerate(output)]


def _with_call(item: Json, call: Json | None) -> Json:
    return item if call is None else {**item, CALL: call}

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
from app.store.database import Database
from app.store.items import INPUT, input_in, responses_of
from app.store.rows import ResponseRow
from app.store.tables import conversation_items

CALL = "call"
"""The key under which a worker finds the call of a hosted tool in an item."""

_CHAIN = text(
    f"""
    WITH RECURSIVE chain (id, previous, project, input, output, tool_results, depth) AS (
        SELECT r.id, r.previous_response_id, r.project, {INPUT}, r.output, r.tool_results, 0 FROM responses r
        WHERE r.id = :id AND r.project = :project
        UNION ALL
        SELECT r.id, r.previous_response_id, r.project, {INPUT}, r.output, r.tool_results, c.depth + 1
        FROM responses r JOIN chain c ON r.id = c.previous AND r.project = c.project
    )
    SELECT previous, input, output, tool_results FROM chain ORDER BY depth DESC
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


async def chain_items(db: Database, project: str, response_id: str) -> list[Json]:
    """The items of a response and of every response it continues, oldest first, as workers see them.

    Raises ContextGone.
    """
    async with db.autocommit() as connection:
        rows = (await connection.execute(_CHAIN, {"id": response_id, "project": project})).all()
    if not rows or rows[0].previous is not None:
        raise ContextGone(response_id)
    return [item for row in rows for item in (*input_in(row.input), *_with_calls(row.output or [], row.tool_results))]


async def conversation_context(db: Database, conversation_id: str, until: int | None) -> list[Json]:
    """The items of a conversation up to position `until`, or all of them, oldest first, as workers see them."""
    table = conversation_items.c
    statement = (
        select(table.item, table.tool_results).where(table.conversation_id == conversation_id).order_by(table.position)
    )
    if until is not None:
        statement = statement.where(table.position <= until)
    async with db.autocommit() as connection:
        return [_with_call(row.item, row.tool_results) for row in await connection.execute(statement)]


async def context_items(db: Database, row: ResponseRow) -> list[Json]:
    """The items before the response's own input, as workers see them. Raises ContextGone."""
    previous = row.request.get("previous_response_id")
    if previous is not None:
        return await chain_items(db, row.project, previous)
    if row.conversation_id is not None:
        return await conversation_context(db, row.conversation_id, row.request.get("conversation_until"))
    return []


async def restore_calls(db: Database, project: str, items: Iterable[Json]) -> list[Json]:
    """The same items; those that a client copied from a stored response get back the calls that it never saw."""
    items = list(items)
    copied = {item["id"] for item in items if item["type"] in HOSTED_CALLS and CALL not in item and item.get("id")}
    responses = list(responses_of(copied))
    if not responses:
        return items
    async with db.autocommit() as connection:
        rows = (await connection.execute(_TOOL_RESULTS, {"responses": responses, "project": project})).all()
    stored = (item for row in rows for item in _with_calls(row.output, row.tool_results))
    calls = {item["id"]: item[CALL] for item in stored if CALL in item}
    return [item if CALL in item else _with_call(item, calls.get(item.get("id"))) for item in items]


def _with_calls(output: list[Json], tool_results: Mapping[str, Json] | None) -> list[Json]:
    if not tool_results:
        return output
    return [_with_call(item, tool_results.get(str(index))) for index, item in enumerate(output)]


def _with_call(item: Json, call: Json | None) -> Json:
    return item if call is None else {**item, CALL: call}

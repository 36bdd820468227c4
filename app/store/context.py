"""What a response continues: the items before its own, from its chain of responses or its conversation.

Nothing is copied from turn to turn: each response keeps the items that it added, and the chain is walked by
primary key. Branches from one response share their past and do not touch each other. Of a conversation it is the
items that were there when the response was accepted: a worker that takes over must find the same ones.

What models were told of calls that ran on the server is kept apart from the items (`hidden`), and shown to workers
alone: there an item has it as `call` (workers/formats/chat/messages.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import select, text

from app.store.database import Database
from app.store.items import responses_of
from app.store.rows import ResponseRow
from app.store.tables import conversation_items

Json = dict[str, Any]

CALL = "call"
"""The hidden key of items that a model called the server by."""

_RAN_HERE = frozenset({"code_interpreter_call", "web_search_call", "mcp_call"})

_CHAIN = text(
    """
    WITH RECURSIVE chain (id, previous, project, input, output, hidden, depth) AS (
        SELECT id, previous_response_id, project, request -> 'input', output, hidden, 0 FROM responses
        WHERE id = :id AND project = :project
        UNION ALL
        SELECT r.id, r.previous_response_id, r.project, r.request -> 'input', r.output, r.hidden, c.depth + 1
        FROM responses r JOIN chain c ON r.id = c.previous AND r.project = c.project
    )
    SELECT previous, input, output, hidden FROM chain ORDER BY depth DESC
    """
)

_HIDDEN = text(
    """
    SELECT r.output, r.hidden FROM responses r
    WHERE r.id = ANY(CAST(:responses AS text[])) AND r.project = :project AND r.hidden IS NOT NULL
    """
)


class ContextGone(Exception):
    """A response in the chain was deleted, by a client or by retention."""


async def chain_items(db: Database, project: str, response_id: str) -> list[Json]:
    """The items of a response and of all it continues, oldest first, as workers see them. Raises ContextGone."""
    async with db.autocommit() as connection:
        rows = (await connection.execute(_CHAIN, {"id": response_id, "project": project})).all()
    if not rows or rows[0].previous is not None:
        raise ContextGone(response_id)
    return [item for row in rows for items in (row.input, _revealed(row.output or [], row.hidden)) for item in items]


async def conversation_context(db: Database, conversation_id: str, until: int | None) -> list[Json]:
    """The items of a conversation up to a position (all where it is None), oldest first, as workers see them."""
    table = conversation_items.c
    statement = (
        select(table.item, table.hidden).where(table.conversation_id == conversation_id).order_by(table.position)
    )
    if until is not None:
        statement = statement.where(table.position <= until)
    async with db.autocommit() as connection:
        return [_with_call(row.item, row.hidden) for row in await connection.execute(statement)]


async def context_items(db: Database, row: ResponseRow) -> list[Json]:
    """The items before the response's own input, as workers see them. Raises ContextGone."""
    previous = row.request.get("previous_response_id")
    if previous is not None:
        return await chain_items(db, row.project, previous)
    if row.conversation_id is not None:
        return await conversation_context(db, row.conversation_id, row.request.get("conversation_until"))
    return []


async def recalled(db: Database, project: str, items: Iterable[Json]) -> list[Json]:
    """The same with what was hidden of the items that clients took from here and sent again, where it still is."""
    items = list(items)
    ours = {item["id"] for item in items if item["type"] in _RAN_HERE and CALL not in item and item.get("id")}
    responses = list(responses_of(ours))
    if not responses:
        return items
    async with db.autocommit() as connection:
        rows = (await connection.execute(_HIDDEN, {"responses": responses, "project": project})).all()
    calls = {item["id"]: item[CALL] for row in rows for item in _revealed(row.output, row.hidden) if CALL in item}
    return [item if CALL in item else _with_call(item, calls.get(item.get("id"))) for item in items]


def _revealed(output: list[Json], hidden: Mapping[str, Json] | None) -> list[Json]:
    if not hidden:
        return output
    return [_with_call(item, hidden.get(str(index))) for index, item in enumerate(output)]


def _with_call(item: Json, call: Json | None) -> Json:
    return item if call is None else {**item, CALL: call}

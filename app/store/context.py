"""What a response continues: the items before its own, from its chain of responses or its conversation.

Nothing is copied from turn to turn: each response keeps the items that it added, and the chain is walked by
primary key. Branches from one response share their past and do not touch each other. Of a conversation it is the
items that were there when the response was accepted: a worker that takes over must find the same ones.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, text

from app.store.database import Database
from app.store.rows import ResponseRow
from app.store.tables import conversation_items

Json = dict[str, Any]

_CHAIN = text(
    """
    WITH RECURSIVE chain (id, previous, project, input, output, depth) AS (
        SELECT id, previous_response_id, project, request -> 'input', output, 0 FROM responses
        WHERE id = :id AND project = :project
        UNION ALL
        SELECT r.id, r.previous_response_id, r.project, r.request -> 'input', r.output, c.depth + 1
        FROM responses r JOIN chain c ON r.id = c.previous AND r.project = c.project
    )
    SELECT previous, input, output FROM chain ORDER BY depth DESC
    """
)


class ContextGone(Exception):
    """A response in the chain was deleted, by a client or by retention."""


async def chain_items(db: Database, project: str, response_id: str) -> list[Json]:
    """The items of a response and of all it continues, oldest first. Raises ContextGone."""
    async with db.autocommit() as connection:
        rows = (await connection.execute(_CHAIN, {"id": response_id, "project": project})).all()
    if not rows or rows[0].previous is not None:
        raise ContextGone(response_id)
    return [item for row in rows for items in (row.input, row.output or []) for item in items]


async def conversation_context(db: Database, conversation_id: str, until: int | None) -> list[Json]:
    """The items of a conversation up to a position (all of them where it is None), oldest first."""
    table = conversation_items.c
    statement = select(table.item).where(table.conversation_id == conversation_id).order_by(table.position)
    if until is not None:
        statement = statement.where(table.position <= until)
    async with db.autocommit() as connection:
        return list((await connection.execute(statement)).scalars())


async def context_items(db: Database, row: ResponseRow) -> list[Json]:
    """The items before the response's own input. Raises ContextGone."""
    previous = row.request.get("previous_response_id")
    if previous is not None:
        return await chain_items(db, row.project, previous)
    if row.conversation_id is not None:
        return await conversation_context(db, row.conversation_id, row.request.get("conversation_until"))
    return []

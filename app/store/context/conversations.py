"""Conversations: ordered items that responses read and add to.

A response's items are added when it ends, in the transaction that ends it (`journal.append`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.types import Json
from app.store.columns import to_json
from app.store.context.size import ContextSize, size_on
from app.store.database import Database
from app.store.tables import conversation_items as items
from app.store.tables import conversations


@dataclass(frozen=True, slots=True)
class ConversationRow:
    """A conversation, without its items."""

    id: str
    project: str
    metadata: dict[str, str]
    created_at: datetime

    def as_object(self) -> Json:
        """The conversation as clients see it, with the time in epoch seconds."""
        created = int(self.created_at.timestamp())
        return {"id": self.id, "object": "conversation", "created_at": created, "metadata": self.metadata}


class DuplicateItem(Exception):
    """The conversation already has an item with that id; nothing was added."""

    def __init__(self, item_id: str) -> None:
        super().__init__(item_id)
        self.item_id = item_id


def _row(row: Row[Any]) -> ConversationRow:
    return ConversationRow(**row._mapping)


async def create(db: Database, new: ConversationRow, first: Sequence[Json]) -> None:
    """Inserts a conversation and its first items. Raises DuplicateItem."""
    async with db.begin() as connection:
        await connection.execute(
            insert(conversations).values(
                id=new.id, project=new.project, metadata=new.metadata, created_at=new.created_at
            )
        )
        await _add(connection, new.id, first)


async def get(db: Database, project: str, conversation_id: str) -> ConversationRow | None:
    statement = select(conversations).where(conversations.c.id == conversation_id, conversations.c.project == project)
    async with db.autocommit() as connection:
        row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _row(row)


async def set_metadata(
    db: Database, project: str, conversation_id: str, metadata: dict[str, str]
) -> ConversationRow | None:
    """Returns the conversation with its new metadata, or None if there is none."""
    statement = (
        update(conversations)
        .where(conversations.c.id == conversation_id, conversations.c.project == project)
        .values(metadata=metadata)
        .returning(*conversations.c)
    )
    async with db.autocommit() as connection:
        row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _row(row)


async def remove(db: Database, project: str, conversation_id: str) -> bool:
    """Deletes a conversation and its items; responses stay. Returns False if there is none."""
    statement = (
        delete(conversations)
        .where(conversations.c.id == conversation_id, conversations.c.project == project)
        .returning(conversations.c.id)
    )
    async with db.autocommit() as connection:
        return (await connection.execute(statement)).one_or_none() is not None


# -- items -------------------------------------------------------------------------------------------------


async def add_items(
    db: Database, project: str, conversation_id: str, new: Sequence[Json], check: Callable[[ContextSize], None]
) -> bool:
    """Adds all items at the end. Returns False if there is no such conversation.

    `check` gets the conversation's size, which no other call changes until the items are added, and may raise. Raises
    DuplicateItem, too; then it adds none. Responses that end meanwhile add theirs, and wait for nothing.
    """
    async with db.begin() as connection:
        await connection.execute(
            select(conversations.c.id)
            .where(conversations.c.id == conversation_id, conversations.c.project == project)
            .with_for_update(key_share=True)
        )
        if (found := await size_on(connection, project, conversation_id)) is None:
            return False
        check(found.size)
        await _add(connection, conversation_id, new)
        return True


async def _add(connection: AsyncConnection, conversation_id: str, new: Sequence[Json]) -> None:
    """One statement for each item, so that positions follow the order of the items."""
    for item in new:
        size = len((to_json(item) or "").encode())
        statement = upsert(items).values(conversation_id=conversation_id, id=item["id"], item=item, bytes=size)
        added = await connection.execute(statement.on_conflict_do_nothing().returning(items.c.id))
        if added.one_or_none() is None:
            raise DuplicateItem(item["id"])


async def get_item(db: Database, project: str, conversation_id: str, item_id: str) -> Json | None:
    statement = (
        select(items.c.item)
        .join(conversations, conversations.c.id == items.c.conversation_id)
        .where(items.c.conversation_id == conversation_id, items.c.id == item_id, conversations.c.project == project)
    )
    async with db.autocommit() as connection:
        found: Json | None = (await connection.execute(statement)).scalar_one_or_none()
    return found


async def remove_item(db: Database, conversation_id: str, item_id: str) -> bool:
    """Returns False if the conversation has no such item."""
    statement = (
        delete(items).where(items.c.conversation_id == conversation_id, items.c.id == item_id).returning(items.c.id)
    )
    async with db.autocommit() as connection:
        return (await connection.execute(statement)).one_or_none() is not None


async def list_items(
    db: Database, conversation_id: str, after: str | None, limit: int, *, descending: bool
) -> list[Json] | None:
    """Up to `limit` items after the item with the id `after`, in order of age; None if there is no such item."""
    async with db.autocommit() as connection:
        start = 0
        if after is not None:
            position = select(items.c.position).where(items.c.conversation_id == conversation_id, items.c.id == after)
            found = (await connection.execute(position)).one_or_none()
            if found is None:
                return None
            start = found.position
        is_after = items.c.position < start if descending and after is not None else items.c.position > start
        statement = (
            select(items.c.item)
            .where(items.c.conversation_id == conversation_id, is_after)
            .order_by(items.c.position.desc() if descending else items.c.position)
            .limit(limit)
        )
        return list((await connection.execute(statement)).scalars())

"""Conversations: ordered items that responses read and add to.

A response's items are added when it ends, in the transaction that ends it (`logs.append`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import orjson
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.protocol.answerable import approval_of, call_id_of
from app.protocol.types import Json
from app.sizes import is_large
from app.store.columns import Column, Columns, named_arrays, to_json
from app.store.context.size import ContextSize, conversation_size
from app.store.database import Database, one
from app.store.paging import Listing, Page
from app.store.responses.lookup import Hold
from app.store.tenants import projects
from app.store.tenants.limits import check_stored


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


@dataclass(frozen=True, slots=True)
class NewItem:
    """An item on its way into a conversation: its JSON, and what later items answer in it."""

    id: str
    item: bytes
    call_id: str | None
    approval: str | None

    @classmethod
    def of(cls, item: Json) -> NewItem:
        return cls(item["id"], orjson.dumps(item), call_id_of(item), approval_of(item))


_ITEM: Columns[NewItem] = Columns(
    Column("id", "text"), Column("item", "json", bytes.decode), Column("call_id", "text"), Column("approval", "text")
)
_CREATE = text(
    """
    INSERT INTO conversations (id, project, metadata, created_at) VALUES (:id, :project, :metadata, :created_at)
    """
)
_GET = text("SELECT id, project, metadata, created_at FROM conversations WHERE id = :id AND project = :project")
_METADATA_BYTES = text(
    "SELECT octet_length(CAST(metadata AS text)) FROM conversations WHERE id = :id AND project = :project"
)
_SET_METADATA = text(
    """
    UPDATE conversations SET metadata = :metadata, changed_at = now() WHERE id = :id AND project = :project
    RETURNING id, project, metadata, created_at
    """
)
_DELETE = text("DELETE FROM conversations WHERE id = :id AND project = :project RETURNING id")
_LOCK = text("SELECT id FROM conversations WHERE id = :id AND project = :project FOR NO KEY UPDATE")
# Postgres gives positions as it inserts.
_ADD = text(
    f"""
    INSERT INTO conversation_items (conversation_id, project, {_ITEM.names}, bytes)
    SELECT CAST(:conversation AS text), CAST(:project AS text), {_ITEM.select("i")}, octet_length(i.item)
    FROM unnest({named_arrays(_ITEM)}) WITH ORDINALITY AS i({_ITEM.names}, number)
    ORDER BY i.number
    ON CONFLICT DO NOTHING
    RETURNING id
    """
)


# The conversation is locked first, as when it is deleted: in the other order both would wait for each other. Its UPDATE
# alone locks it: with a lock before it, the statement locked two versions if another removal came between, and two
# removals waited for each other.
_REMOVE = text(
    """
    WITH changed AS (
        UPDATE conversations c SET changed_at = now() WHERE c.id = :conversation AND c.project = :project
            AND EXISTS (SELECT FROM conversation_items i WHERE i.conversation_id = c.id AND i.id = :item)
        RETURNING c.id
    )
    DELETE FROM conversation_items i USING changed c WHERE i.conversation_id = c.id AND i.id = :item RETURNING i.id
    """
)


_OF_CONVERSATION = (
    "SELECT position, id, bytes FROM conversation_items WHERE conversation_id = :id AND project = :project"
)
_MEASURE = text(f"{_OF_CONVERSATION} AND id = :item")
_LIST = Listing(_OF_CONVERSATION, age="position")
# As bytes, which an answer takes as they are: nobody parses a page of large items.
_READ = text(
    """
    SELECT position, id, convert_to(CAST(item AS text), 'UTF8') AS item FROM conversation_items
    WHERE conversation_id = :id AND project = :project AND position = ANY(CAST(:positions AS bigint[]))
    """
)


@dataclass(frozen=True, slots=True)
class _Measured:
    """An item that is not read yet."""

    position: int
    id: str
    bytes: int


class DuplicateItem(Exception):
    """The conversation already has an item with that id; nothing was added."""

    def __init__(self, item_id: str) -> None:
        super().__init__(item_id)
        self.item_id = item_id


def bytes_of(new: Iterable[NewItem]) -> int:
    return sum(len(each.item) for each in new)


async def create(db: Database, new: ConversationRow, first: Sequence[NewItem], *, is_limited: bool = False) -> None:
    """Inserts a conversation and its first items. Raises DuplicateItem, and LimitReached for what `is_limited`."""
    added = bytes_of(first)
    async with db.begin(large=is_large(added), waits=is_limited) as connection:
        if is_limited:
            await check_stored(connection, new.project, len(orjson.dumps(new.metadata)) + added)
        await connection.execute(_CREATE, {**asdict(new), "metadata": to_json(new.metadata)})
        await _add(connection, new.project, new.id, first)


async def get(db: Database, project: str, conversation_id: str) -> ConversationRow | None:
    return await one(ConversationRow, db, _GET, {"id": conversation_id, "project": project})


async def set_metadata(
    db: Database, project: str, conversation_id: str, metadata: dict[str, str], *, is_limited: bool = False
) -> ConversationRow | None:
    """Returns the conversation with its new metadata, or None if there is none. Raises LimitReached as `create`."""
    wanted = {"id": conversation_id, "project": project}
    changes = {**wanted, "metadata": to_json(metadata)}
    if not is_limited:
        async with db.autocommit(waits=True) as connection:
            return await one(ConversationRow, connection, _SET_METADATA, changes)
    async with db.begin(waits=True) as connection:
        await projects.lock(connection, project)  # nobody else changes the metadata until it is measured
        before = (await connection.execute(_METADATA_BYTES, wanted)).scalar()
        if before is not None and (growth := len(orjson.dumps(metadata)) - before) > 0:
            await check_stored(connection, project, growth)
        return await one(ConversationRow, connection, _SET_METADATA, changes)


async def remove(db: Database, project: str, conversation_id: str) -> bool:
    """Deletes a conversation and its items; responses stay. Returns False if there is none."""
    return bool(await db.execute(_DELETE, {"id": conversation_id, "project": project}, waits=True))


# -- items -------------------------------------------------------------------------------------------------


async def add_items(
    db: Database,
    project: str,
    conversation_id: str,
    new: Sequence[NewItem],
    check: Callable[[ContextSize], None],
    *,
    is_limited: bool = False,
) -> bool:
    """Adds all items at the end. Returns False if there is no such conversation.

    `check` gets the conversation's size, which no other call changes until the items are added, and may raise. Raises
    DuplicateItem, too, and LimitReached if the project `is_limited`; then it adds none. Responses that end meanwhile
    add theirs, and wait for nothing.
    """
    added = bytes_of(new)
    async with db.begin(large=is_large(added), waits=True) as connection:
        if is_limited:
            await check_stored(connection, project, added)
        await connection.execute(_LOCK, {"id": conversation_id, "project": project})
        if (found := await conversation_size(connection, project, conversation_id)) is None:
            return False
        check(found.size)
        await _add(connection, project, conversation_id, new)
        return True


async def _add(connection: AsyncConnection, project: str, conversation_id: str, new: Sequence[NewItem]) -> None:
    if not new:
        return
    values = {"conversation": conversation_id, "project": project, **_ITEM.named_parameters(new)}
    added = (await connection.execute(_ADD, values)).scalars().all()
    if len(added) < len(new):
        raise DuplicateItem(next(iter(Counter(each.id for each in new) - Counter(added))))


async def get_item(
    db: Database, project: str, conversation_id: str, item_id: str, hold: Hold | None = None
) -> bytes | None:
    """The JSON of an item, or None if there is none. Before it is read, `hold` is awaited with its bytes."""
    wanted = {"id": conversation_id, "project": project, "item": item_id}
    if (measured := await one(_Measured, db, _MEASURE, wanted)) is None:
        return None
    read = await _read(db, project, conversation_id, [measured], hold)
    return read[0].item if read else None


async def remove_item(db: Database, project: str, conversation_id: str, item_id: str) -> bool:
    """Returns False if the conversation has no such item."""
    wanted = {"conversation": conversation_id, "project": project, "item": item_id}
    return bool(await db.execute(_REMOVE, wanted, waits=True))


async def list_items(
    db: Database, project: str, conversation_id: str, page: Page, hold: Hold | None = None
) -> tuple[list[tuple[str, bytes]], bool]:
    """A page of the items, each by its id and its JSON, and whether there are more.

    Before they are read, `hold` is awaited with their bytes. Items that are deleted meanwhile are left out.
    """
    listed, has_more = await _LIST.read(db, page, _Measured, {"id": conversation_id, "project": project})
    near = listed[::-1] if page.is_backwards else listed
    fitting = page.fitting(row.bytes for row in near)
    rows = await _read(db, project, conversation_id, near[:fitting], hold)
    read = {row.position: (row.id, row.item) for row in rows}
    return [read[row.position] for row in listed if row.position in read], has_more or fitting < len(listed)


async def _read(
    db: Database, project: str, conversation_id: str, measured: Sequence[_Measured], hold: Hold | None
) -> Sequence[Row[Any]]:
    """The items that are `measured`. Reads large ones in their turn."""
    size = sum(each.bytes for each in measured)
    wanted = {"id": conversation_id, "project": project, "positions": [each.position for each in measured]}
    if not is_large(size):
        return await db.execute(_READ, wanted)
    if hold is not None:
        await hold(size)
    async with db.large_read(project):
        return await db.execute(_READ, wanted, large=True)

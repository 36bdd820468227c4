"""Conversations that have not changed for the days that their project keeps them are deleted, and no others."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from app.store import retention
from app.store.context import conversations
from app.store.context.conversations import ConversationRow, NewItem
from app.store.context.size import ContextSize
from app.store.database import Database
from app.store.responses import endings
from app.store.tables import DEFAULT_PROJECT
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.stored import stored

AGE = "UPDATE {table} SET {column} = {column} - interval '8 days'"


@pytest.fixture
async def week(db: Database) -> None:
    await _sql(db, "UPDATE projects SET conversation_days = 7")


async def _sql(db: Database, statement: str) -> None:
    async with db.begin() as connection:
        await connection.execute(text(statement))


async def made(db: Database, *names: str) -> None:
    for name in names:
        row = ConversationRow(f"conv_{name}", DEFAULT_PROJECT, {}, datetime.now(UTC))
        await conversations.create(db, row, [NewItem.of({**message("Hi"), "id": f"msg_{name}"})])


async def add(db: Database, name: str) -> bool:
    def any_size(_: ContextSize) -> None: ...

    items = [NewItem.of({**message("Hi"), "id": f"msg_later_{name}"})]
    return await conversations.add_items(db, DEFAULT_PROJECT, f"conv_{name}", items, any_size)


async def age(db: Database) -> None:
    await _sql(db, AGE.format(table="conversations", column="changed_at"))
    await _sql(db, AGE.format(table="conversation_items", column="added_at"))


async def left(db: Database) -> set[str]:
    async with db.autocommit() as connection:
        found = (await connection.execute(text("SELECT id FROM conversations"))).scalars()
        return {each.removeprefix("conv_") for each in found}


async def test_without_days_every_conversation_stays(db: Database) -> None:
    await made(db, "old")
    await age(db)
    assert await retention.delete_conversations(db) == 0


@pytest.mark.usefixtures("week")
async def test_a_conversation_is_deleted_when_its_last_change_is_too_old(db: Database) -> None:
    await made(db, "unchanged", "empty", "renamed", "longer", "shorter", "asked")
    await conversations.remove_item(db, DEFAULT_PROJECT, "conv_empty", "msg_empty")
    await age(db)
    await made(db, "new")
    await conversations.set_metadata(db, DEFAULT_PROJECT, "conv_renamed", {"a": "b"})
    assert await add(db, "longer")
    assert await conversations.remove_item(db, DEFAULT_PROJECT, "conv_shorter", "msg_shorter")
    assert not await conversations.remove_item(db, DEFAULT_PROJECT, "conv_asked", "msg_none")
    assert not await conversations.remove_item(db, "another", "conv_asked", "msg_asked")
    assert await retention.delete_conversations(db, limit=3) == 3
    assert await left(db) == {"new", "renamed", "longer", "shorter"}
    assert await stored(db, DEFAULT_PROJECT) > 0
    await age(db)
    assert await retention.delete_conversations(db) == 4
    assert await stored(db, DEFAULT_PROJECT) == 0


@pytest.mark.usefixtures("week")
async def test_a_conversation_that_an_unfinished_response_uses_stays(db: Database) -> None:
    await made(db, "used")
    response_id = await queued(db, conversation={"id": "conv_used"})
    await age(db)
    assert await retention.delete_conversations(db) == 0
    await endings.cancel(db, response_id, None)
    assert await retention.delete_conversations(db) == 0, "its use was a change"
    await age(db)
    assert await retention.delete_conversations(db) == 1


@pytest.mark.usefixtures("week")
async def test_a_conversation_that_is_kept_is_looked_at_once(db: Database) -> None:
    await made(db, "longer")
    await age(db)
    await add(db, "longer")
    await retention.delete_conversations(db)
    async with db.autocommit() as connection:
        moved = "SELECT changed_at = (SELECT max(added_at) FROM conversation_items) FROM conversations"
        assert (await connection.execute(text(moved))).scalar_one()


@pytest.mark.usefixtures("week")
async def test_an_item_that_is_added_meanwhile_keeps_its_conversation(db: Database) -> None:
    await made(db, "old")
    await age(db)
    async with db.begin() as connection:
        await connection.execute(text("SELECT FROM conversations FOR KEY SHARE"))
        assert await retention.delete_conversations(db) == 0
    assert await add(db, "old")
    results = await asyncio.gather(retention.delete_conversations(db), retention.delete_conversations(db))
    assert results == [0, 0] and await left(db) == {"old"}

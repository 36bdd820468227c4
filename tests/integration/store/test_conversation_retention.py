"""Conversations that have not changed for the days that their project keeps them are deleted, and no others."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text

from app.store import retention
from app.store.context import conversations
from app.store.context.conversations import NewItem
from app.store.context.size import ContextSize
from app.store.database import Database
from app.store.responses import endings
from app.store.tables import DEFAULT_PROJECT
from tests.integration.store.common import conversation, sql
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.stored import stored


@pytest.fixture(autouse=True)
async def _week(db: Database) -> None:
    await sql(db, "UPDATE projects SET conversation_days = 7")


async def made(db: Database, *names: str) -> None:
    for name in names:
        await conversation(db, {**message("Hi"), "id": f"msg_{name}"}, conversation_id=f"conv_{name}")


async def add(db: Database, name: str) -> bool:
    def any_size(_: ContextSize) -> None: ...

    items = [NewItem.of({**message("Hi"), "id": f"msg_later_{name}"})]
    return await conversations.add_items(db, DEFAULT_PROJECT, f"conv_{name}", items, any_size)


async def age(db: Database) -> None:
    await sql(db, "UPDATE conversations SET changed_at = changed_at - interval '8 days'")
    await sql(db, "UPDATE conversation_items SET added_at = added_at - interval '8 days'")


async def left(db: Database) -> set[str]:
    return {row.id.removeprefix("conv_") for row in await sql(db, "SELECT id FROM conversations")}


async def test_without_days_every_conversation_stays(db: Database) -> None:
    await sql(db, "UPDATE projects SET conversation_days = NULL")
    await made(db, "old")
    await age(db)
    assert await retention.delete_conversations(db) == 0


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


async def test_a_conversation_that_an_unfinished_response_uses_stays(db: Database) -> None:
    await made(db, "used")
    response_id = await queued(db, conversation={"id": "conv_used"})
    await age(db)
    assert await retention.delete_conversations(db) == 0
    await endings.cancel(db, response_id, None)
    assert await retention.delete_conversations(db) == 0, "its use was a change"
    await age(db)
    assert await retention.delete_conversations(db) == 1


async def test_an_item_that_is_added_meanwhile_keeps_its_conversation(db: Database) -> None:
    await made(db, "old")
    await age(db)
    async with db.begin() as connection:
        await connection.execute(text("SELECT FROM conversations FOR KEY SHARE"))
        assert await retention.delete_conversations(db) == 0
    assert await add(db, "old")
    results = await asyncio.gather(retention.delete_conversations(db), retention.delete_conversations(db))
    assert results == [0, 0] and await left(db) == {"old"}

"""The bytes that a project stores: counted exactly, whatever writes and deletes, and never more than its limit."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from app.protocol.errors import LimitReached
from app.protocol.limits import Allowance, LimitKind
from app.store import retention
from app.store.context import conversations
from app.store.context.conversations import ConversationRow, NewItem
from app.store.context.size import ContextSize
from app.store.database import Database
from app.store.paging import Page
from app.store.responses import endings, logs
from app.store.responses.inserts import Inserter
from app.store.tables import DEFAULT_PROJECT
from app.store.tenants import limits
from tests.integration.store.common import answered, begun, blocked, last_of, scalar, sql
from tests.support.limited import PROJECT, limited_project, put, reserving, used
from tests.support.requests import message
from tests.support.rows import merge_all, queued
from tests.support.stored import stored

STORED = LimitKind.STORED_BYTES.value
CONVERSATION = "conv_1"


def item(number: int, text: str = "Hi") -> dict[str, Any]:
    return {**message(text), "id": f"msg_{number}"}


async def made(db: Database, *items: dict[str, Any], project: str = DEFAULT_PROJECT, **more: bool) -> None:
    row = ConversationRow(CONVERSATION, project, {"a": "b"}, datetime.now(UTC))
    await conversations.create(db, row, list(map(NewItem.of, items)), **more)


async def add(db: Database, *items: dict[str, Any], project: str = DEFAULT_PROJECT, **more: bool) -> bool:
    def any_size(_: ContextSize) -> None: ...

    new = list(map(NewItem.of, items))
    return await conversations.add_items(db, project, CONVERSATION, new, any_size, **more)


async def ended(db: Database, **request: Any) -> str:
    """A response that ran to its end, with a log of several chunks."""
    return (await answered(db, "a" * 500, "b" * 500, **request)).row.id


async def aged(db: Database) -> datetime:
    """A time after the end of everything."""
    return await retention.now(db) + timedelta(hours=1)


class TestCounting:
    async def test_a_response_counts_with_its_log_messages_and_tool_results_from_its_end(self, db: Database) -> None:
        writer = await begun(db, "a" * 500)
        assert await stored(db, DEFAULT_PROJECT) == 0
        messages = {"input_messages": ["m" * 3000]}
        last = last_of(writer, messages=messages, tool_results={"0": {"a": "t" * 2000}})
        assert await asyncio.gather(*(logs.append(db, [last]) for _ in range(2))), "one counts"
        assert await stored(db, DEFAULT_PROJECT) > 6500  # the delta, the end of the text, the output

    @pytest.mark.parametrize("runs", [False, True])
    async def test_a_cancel_a_failure_and_a_deletion_count_what_is_left(self, db: Database, runs: bool) -> None:
        request = {"secrets": {"mcp": "s" * 1000}}  # which an ending erases
        ids = [
            (await begun(db, "a" * 100, **request)).row.id if runs else await queued(db, **request) for _ in range(3)
        ]
        await endings.cancel(db, ids[0], None)
        one = await stored(db, DEFAULT_PROJECT)
        await endings.fail(db, ids[1], "server_error", "no")
        assert await stored(db, DEFAULT_PROJECT) > one > 0
        for response_id in ids:
            assert await endings.delete(db, DEFAULT_PROJECT, response_id)
        assert await stored(db, DEFAULT_PROJECT) == 0

    @pytest.mark.parametrize("store", [True, False])
    async def test_merging_deleting_logs_and_deleting_responses_give_back(self, db: Database, store: bool) -> None:
        for _ in range(3):
            await ended(db, store=store)
        later = await aged(db)
        sizes = [await stored(db, DEFAULT_PROJECT)]
        assert await merge_all(db) == 3
        sizes.append(await stored(db, DEFAULT_PROJECT))
        assert await retention.delete_events(db, later) == 3
        sizes.append(await stored(db, DEFAULT_PROJECT))
        assert await retention.delete_expired(db, later, later) == 3
        sizes.append(await stored(db, DEFAULT_PROJECT))
        assert sizes == sorted(set(sizes), reverse=True) and sizes[-1] == 0

    async def test_a_log_that_cannot_be_merged_counts_as_it_is(self, db: Database) -> None:
        response_id = await ended(db)
        await sql(db, "UPDATE chunks SET last = last + 90 WHERE first = 0")
        before = await stored(db, DEFAULT_PROJECT)
        assert await merge_all(db) == 1
        assert await stored(db, DEFAULT_PROJECT) == before
        await endings.delete(db, DEFAULT_PROJECT, response_id)
        assert await stored(db, DEFAULT_PROJECT) == 0

    async def test_conversations_count_with_their_items_and_metadata(self, db: Database) -> None:
        await made(db, item(1, "x" * 1000), item(2))
        first = await stored(db, DEFAULT_PROJECT)
        assert await add(db, item(3, "é" * 1000), item(4))
        assert await stored(db, DEFAULT_PROJECT) > first + 2000
        await conversations.set_metadata(db, DEFAULT_PROJECT, CONVERSATION, {"long": "m" * 500})
        assert await conversations.remove_item(db, DEFAULT_PROJECT, CONVERSATION, "msg_3")
        assert first + 500 < await stored(db, DEFAULT_PROJECT) < first + 1000
        assert await conversations.remove(db, DEFAULT_PROJECT, CONVERSATION)
        assert await stored(db, DEFAULT_PROJECT) == 0

    async def test_the_items_that_a_response_adds_to_its_conversation_count_in_the_conversation(
        self, db: Database
    ) -> None:
        await made(db)
        response_id = await ended(db, conversation={"id": CONVERSATION}, input=[item(1, "x" * 1000)])
        found, _ = await conversations.list_items(db, DEFAULT_PROJECT, CONVERSATION, Page(10))
        assert len(found) == 2
        both = await stored(db, DEFAULT_PROJECT)
        await endings.delete(db, DEFAULT_PROJECT, response_id)
        assert 1000 < await stored(db, DEFAULT_PROJECT) < both - 1000

    async def test_an_item_and_its_conversation_that_are_deleted_at_once_count_once(self, db: Database) -> None:
        await made(db, item(1, "x" * 1000), item(2))
        async with db.begin() as connection:
            await connection.execute(text("DELETE FROM conversation_items WHERE id = 'msg_1'"))
            removing = asyncio.create_task(conversations.remove(db, DEFAULT_PROJECT, CONVERSATION))
            await blocked(db)
        assert await removing
        assert await stored(db, DEFAULT_PROJECT) == 0

    async def test_each_project_counts_its_own_and_maintenance_adds_up_the_notes_of_all(self, db: Database) -> None:
        await limited_project(db)
        await endings.cancel(db, await queued(db, PROJECT), PROJECT)
        assert await stored(db, DEFAULT_PROJECT) == 0 < await stored(db, PROJECT)
        await endings.cancel(db, await queued(db), None)
        await limits.settle(db)
        assert await scalar(db, "SELECT count(*) FROM stored_changes") == 0
        assert await scalar(db, "SELECT min(stored_bytes) FROM projects") > 0
        await stored(db, PROJECT)


class TestTheLimit:
    async def test_a_limit_that_is_set_later_starts_from_what_is_stored(self, db: Database) -> None:
        await limited_project(db)
        await endings.cancel(db, await queued(db, PROJECT), PROJECT)
        await put(db, LimitKind.STORED_BYTES, 10**6)
        assert await used(db) == {STORED: await stored(db, PROJECT)}

    async def test_an_unfinished_response_takes_its_request_and_an_ended_one_what_it_occupies(
        self, db: Database, inserter: Inserter
    ) -> None:
        await limited_project(db, stored_bytes=10**6)
        new = reserving()
        assert isinstance(await inserter.create(new), Allowance)
        assert await used(db) == {STORED: len(new.stored.json)}
        await endings.cancel(db, new.id, None)
        assert len(new.stored.json) < await stored(db, PROJECT) == (await used(db))[STORED]
        await endings.delete(db, PROJECT, new.id)
        assert await used(db) == {STORED: 0}

    async def test_metadata_that_does_not_fit_is_refused_and_shorter_metadata_never(self, db: Database) -> None:
        await limited_project(db)
        await made(db, project=PROJECT)
        await self._set(db, "x" * 900)
        await put(db, LimitKind.STORED_BYTES, 1000)
        with pytest.raises(LimitReached, match="stored_bytes"):
            await self._set(db, "x" * 1100)
        assert await self._set(db, "x" * 950) and await self._set(db, "x" * 10)
        await put(db, LimitKind.STORED_BYTES, 1)
        assert await self._set(db, "x" * 10) and await self._set(db, "x")
        with pytest.raises(LimitReached):
            await self._set(db, "xx")
        assert await stored(db, PROJECT) == len(b'{"long":"x"}')
        assert await conversations.set_metadata(db, PROJECT, "conv_none", {"a": "b"}, is_limited=True) is None

    async def _set(self, db: Database, value: str) -> ConversationRow | None:
        return await conversations.set_metadata(db, PROJECT, CONVERSATION, {"long": value}, is_limited=True)

    async def test_many_at_once_store_not_one_byte_too_many(self, db: Database, inserter: Inserter) -> None:
        await limited_project(db, stored_bytes=20_000)
        await made(db, project=PROJECT)
        creates = [inserter.create(reserving(input="x" * 1000)) for _ in range(16)]
        added = [add(db, item(number, "x" * 1000), project=PROJECT, is_limited=True) for number in range(8)]
        results = await asyncio.gather(*creates, *added, return_exceptions=True)
        assert {type(result) for result in results} == {Allowance, bool, LimitReached}
        assert 18_000 < (await used(db))[STORED] <= 20_000

"""The size of what a request continues, without reading it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from sqlalchemy import event, text

from app.responses.create.continuation import ContextLimits, check_continuation
from app.store.context.contents import chain_items
from app.store.context.conversations import ConversationRow, NewItem, create
from app.store.context.size import ContextSize, ConversationSize, conversation_size, find_previous
from app.store.database import Database
from tests.integration.store.test_context import turn
from tests.support.requests import message, parse_request
from tests.support.rows import claimed
from tests.support.worker import items_of
from workers.generation.turns.inputs import ContextTooLong


def size_of(items: list[dict[str, Any]]) -> int:
    """Without the brackets of the arrays."""
    return sum(len(orjson.dumps(item)) for item in items)


async def chain(db: Database, length: int) -> str:
    previous: dict[str, Any] = {}
    for _ in range(length):
        previous = {"previous_response_id": (await turn(db, "a", "A", **previous)).id}
    return str(previous["previous_response_id"])


async def chain_size(db: Database, response_id: str) -> ContextSize:
    found = await find_previous(db, "default", response_id)
    assert found is not None
    return found.chain


async def test_a_response_of_another_project_has_no_size(db: Database) -> None:
    assert await find_previous(db, "theirs", await chain(db, 1)) is None


async def test_a_chain_has_the_size_of_all_its_responses(db: Database) -> None:
    newest = await chain(db, 3)
    size = await chain_size(db, newest)
    items = size_of(await chain_items(db, "default", newest))
    assert size.count == 3
    assert items <= size.bytes < items + 100


async def test_an_empty_conversation_has_a_size(db: Database) -> None:
    await create(db, ConversationRow("conv_1", "default", {}, datetime.now(UTC)), [])
    assert await conversation_size(db, "default", "conv_1") == ConversationSize(ContextSize(), 0)


@pytest.mark.parametrize("of", ["previous_response_id", "conversation"])
async def test_what_a_request_continues_is_looked_at_in_one_query_that_reads_no_items(db: Database, of: str) -> None:
    newest = await chain(db, 2)
    await create(db, ConversationRow("conv_1", "default", {}, datetime.now(UTC)), [])
    continued = {"previous_response_id": newest, "conversation": "conv_1"}[of]
    request = parse_request(orjson.dumps({"model": "m", "input": "hi", of: continued}))
    made: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        made.append(statement)

    event.listen(db.engine.sync_engine, "before_cursor_execute", note)
    found = await check_continuation(db, "default", request, (), ContextLimits(2**30, 10, 10))
    event.remove(db.engine.sync_engine, "before_cursor_execute", note)
    assert len(made) == 1
    assert not re.search(r"\b(request|output|item)\b", made[0])
    if of == "conversation":
        assert (found.conversation, found.last_position) == ("conv_1", 0)
    else:
        assert found.previous is not None
        assert (found.chain.count, found.previous.id) == (2, newest)


async def test_nothing_before_a_row_that_knows_its_place_is_looked_at(db: Database) -> None:
    newest = await chain(db, 3)
    whole = await chain_size(db, newest)
    async with db.begin() as connection:
        await connection.execute(
            text("UPDATE responses SET chain_length = 8, context_bytes = 1000 WHERE id = :id"), {"id": newest}
        )
    size = await chain_size(db, newest)
    assert size.count == 8
    assert 1000 < size.bytes < 1000 + whole.bytes


async def test_a_worker_refuses_to_read_more_than_it_may_hold(db: Database) -> None:
    row = await claimed(db, previous_response_id=await chain(db, 3))
    size = (await chain_size(db, row.request["previous_response_id"])).bytes
    assert len(await items_of(db, row, size)) == 7
    with pytest.raises(ContextTooLong, match=f"more than {size - 1} bytes"):
        await items_of(db, row, size - 1)


async def test_items_of_a_conversation_know_their_size(db: Database) -> None:
    conversation = ConversationRow("conv_1", "default", {}, datetime.now(UTC))
    await create(db, conversation, [NewItem.of({**message("\u00fc"), "id": "msg_1"})])
    row = await turn(db, "b", "B", conversation={"id": conversation.id})
    found = await conversation_size(db, "default", conversation.id)
    assert found is not None
    assert await conversation_size(db, "theirs", conversation.id) is None
    items = [{**message("\u00fc"), "id": "msg_1"}, *row.request["input"]]
    async with db.begin() as connection:
        sizes = list(
            (await connection.execute(text("SELECT bytes FROM conversation_items ORDER BY position"))).scalars()
        )
        assert sizes[:2] == [size_of([item]) for item in items]
    assert (found.size.count, found.size.bytes) == (3, sum(sizes))
    row = await claimed(db, conversation={"id": conversation.id})
    assert len(await items_of(db, row, found.size.bytes)) == 4
    with pytest.raises(ContextTooLong):
        await items_of(db, row, found.size.bytes - 1)

"""The size of what a request continues, without reading it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.store.context.contents import chain_items
from app.store.context.size import ContextSize, ConversationSize, conversation_size, find_previous
from app.store.database import Database
from tests.integration.store.common import conversation, sql, turn
from tests.support.requests import message
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


async def test_a_chain_has_the_size_of_all_its_responses_in_their_project(db: Database) -> None:
    newest = await chain(db, 3)
    size = await chain_size(db, newest)
    items = size_of(await chain_items(db, "default", newest))
    assert size.count == 3
    assert items <= size.bytes < items + 100
    assert await find_previous(db, "theirs", newest) is None


async def test_nothing_before_a_row_that_knows_its_place_is_looked_at(db: Database) -> None:
    newest = await chain(db, 3)
    whole = await chain_size(db, newest)
    await sql(db, "UPDATE responses SET chain_length = 8, context_bytes = 1000 WHERE id = :id", id=newest)
    size = await chain_size(db, newest)
    assert size.count == 8
    assert 1000 < size.bytes < 1000 + whole.bytes


async def test_the_row_of_a_response_does_not_grow_with_its_chain(db: Database) -> None:
    newest = await chain(db, 5)
    size = "octet_length(CAST(request AS text)) + octet_length(CAST(output AS text))"
    sizes = [row.size for row in await sql(db, f"SELECT {size} AS size FROM responses ORDER BY position")]
    assert len(await chain_items(db, "default", newest)) == 10
    assert sizes[-1] == sizes[1]


async def test_a_worker_refuses_to_read_more_than_it_may_hold(db: Database) -> None:
    row = await claimed(db, previous_response_id=await chain(db, 3))
    size = (await chain_size(db, row.request["previous_response_id"])).bytes
    assert len(await items_of(db, row, size)) == 7
    with pytest.raises(ContextTooLong, match=f"more than {size - 1} bytes"):
        await items_of(db, row, size - 1)


async def test_items_of_a_conversation_know_their_size(db: Database) -> None:
    first = {**message("\u00fc"), "id": "msg_1"}
    made = await conversation(db, first)
    row = await turn(db, "b", "B", conversation={"id": made})
    found = await conversation_size(db, "default", made)
    assert found is not None
    assert await conversation_size(db, "theirs", made) is None
    sizes = [each.bytes for each in await sql(db, "SELECT bytes FROM conversation_items ORDER BY position")]
    assert sizes[:2] == [size_of([item]) for item in (first, *row.request["input"])]
    assert (found.size.count, found.size.bytes) == (3, sum(sizes))
    row = await claimed(db, conversation={"id": made})
    assert len(await items_of(db, row, found.size.bytes)) == 4
    with pytest.raises(ContextTooLong):
        await items_of(db, row, found.size.bytes - 1)
    empty = await conversation(db, conversation_id="conv_2")
    assert await conversation_size(db, "default", empty) == ConversationSize(ContextSize(), 0)

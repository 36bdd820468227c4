"""Results of hosted tools are stored, given to workers, and never shown to clients."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import insert, text

from app.protocol.events.deltas import McpArguments, McpStart, Text, ToolEnded, TurnEnd
from app.store.context import conversations as conversation_store
from app.store.context.contents import chain_items, context_items, copied_from, restore_calls
from app.store.database import Database
from app.store.paging import Page
from app.store.responses import endings, logs, lookup
from app.store.rows import ResponseRow
from app.store.tables import DEFAULT_PROJECT, conversations
from tests.support.requests import message
from tests.support.rows import Writer, claimed, merge_all

CALL = {"name": "s__t", "arguments": "{}", "result": "told\u0000 to the model"}
STEPS = ({"end": {"items": [0, 1]}}, {"result": {"index": 0, "call": CALL}})


async def called(db: Database, **request: Any) -> ResponseRow:
    """A finished response that called a tool, and said something."""
    row = await claimed(db, **request)
    writer = Writer(row)
    await logs.append(db, [writer.begin()])
    shown = {"output": "shown\u0000"}  # Postgres cannot look into JSON with U+0000
    deltas = (McpStart("s", "t"), McpArguments("{}"), TurnEnd(), ToolEnded(0, True, shown), Text("x"))
    for delta in deltas:
        await logs.append(db, [writer.entry(writer.stream.feed(delta))])
    last = writer.finish()
    assert last.ending is not None
    await logs.append(db, [replace(last, ending=replace(last.ending, tool_results={"0": CALL}))])
    return row


async def conversation(db: Database) -> str:
    async with db.begin() as connection:
        row = {"id": "conv_1", "project": "default", "metadata": {}, "created_at": datetime.now(UTC)}
        await connection.execute(insert(conversations).values(**row))
    return "conv_1"


async def test_steps_come_back_as_they_were_written_and_no_steps_are_null(db: Database) -> None:
    row = await claimed(db)
    writer = Writer(row)
    begun = writer.begin()
    stepped = writer.say("x", 1)
    stepped = replace(stepped, chunk=replace(stepped.chunk, steps=STEPS))
    for entry in (begun, stepped, stepped):  # a repeated append is the same chunk
        assert await logs.append(db, [entry]) == {row.id}
    reading = await logs.read(db, row.id)
    assert [chunk.steps for chunk in reading.chunks] == [(), (), STEPS]
    async with db.begin() as connection:
        assert (await connection.execute(text("SELECT count(*) FROM chunks WHERE steps IS NULL"))).scalar_one() == 2


async def test_merging_a_log_drops_its_steps(db: Database) -> None:
    row = await called(db)
    await merge_all(db)
    [chunk] = (await logs.read(db, row.id)).chunks
    assert chunk.steps == ()


async def test_a_chain_gives_tool_results_to_workers_and_not_to_clients(db: Database) -> None:
    first = await called(db)
    second = await claimed(db, previous_response_id=first.id)
    [_, call, said] = await context_items(db, second)
    assert call["call"] == CALL
    assert "call" not in said
    found = await lookup.find(db, first.id)
    assert found is not None
    shown = json.dumps(found.as_object())
    assert "told" not in shown
    assert "shown" in shown


async def test_a_conversation_keeps_the_tool_results_of_a_deleted_response(db: Database) -> None:
    await conversation(db)
    first = await called(db, conversation={"id": "conv_1"})
    await endings.delete(db, "default", first.id)
    second = await claimed(db, conversation={"id": "conv_1"}, input=[message("b") | {"id": "msg_b"}])
    assert [item.get("call") for item in await context_items(db, second)] == [None, CALL, None]
    listed = await conversation_store.list_items(db, DEFAULT_PROJECT, "conv_1", Page(20))
    assert "told" not in str(listed)


@pytest.mark.parametrize("project", ["default", "theirs"])
async def test_items_copied_by_a_client_get_their_calls_back_only_in_their_own_project(
    db: Database, project: str
) -> None:
    row = await called(db)
    [_, call, said] = await chain_items(db, "default", row.id)
    del call["call"]
    items = [message("a"), call, said]
    again = await restore_calls(db, project, items, copied_from(items))
    assert again[1].get("call") == (CALL if project == "default" else None)
    assert again[2] == said


async def test_items_of_deleted_responses_stay_unchanged(db: Database) -> None:
    items = [{"type": "mcp_call", "id": "mcp_0123_4"}, {"type": "mcp_call", "id": "theirs"}, {"type": "mcp_call"}]
    assert await restore_calls(db, "default", items, copied_from(items)) == items

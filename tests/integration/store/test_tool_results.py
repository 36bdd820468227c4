"""Results of hosted tools are stored, given to workers, and never shown to clients."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from app.protocol.events.deltas import McpArguments, McpStart, Text, ToolEnded, TurnEnd
from app.store.context import conversations
from app.store.context.contents import chain_items, context_items, copied_from, restore_calls
from app.store.database import Database
from app.store.paging import Page
from app.store.responses import endings, logs
from app.store.rows import ResponseRow
from app.store.tables import DEFAULT_PROJECT
from tests.integration.store.common import begun, conversation, last_of, scalar
from tests.support.logs import row_of
from tests.support.requests import message
from tests.support.rows import Writer, claimed, merge_all

CALL = {"name": "s__t", "arguments": "{}", "result": "told\u0000 to the model"}
STEPS = ({"end": {"items": [0, 1]}}, {"result": {"index": 0, "call": CALL}})


async def called(db: Database, **request: Any) -> ResponseRow:
    """A finished response that called a tool, and said something."""
    writer = await begun(db, **request)
    shown = {"output": "shown\u0000"}  # Postgres cannot look into JSON with U+0000
    deltas = (McpStart("s", "t"), McpArguments("{}"), TurnEnd(), ToolEnded(0, True, shown), Text("x"))
    for delta in deltas:
        await logs.append(db, [writer.entry(writer.stream.feed(delta))])
    await logs.append(db, [last_of(writer, tool_results={"0": CALL})])
    return writer.row


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
    assert await scalar(db, "SELECT count(*) FROM chunks WHERE steps IS NULL") == 2
    await logs.append(db, [writer.finish()])
    await merge_all(db)
    [chunk] = (await logs.read(db, row.id)).chunks
    assert chunk.steps == (), "nobody needs them any more"


async def test_a_chain_gives_tool_results_to_workers_and_not_to_clients(db: Database) -> None:
    first = await called(db)
    second = await claimed(db, previous_response_id=first.id)
    [_, call, said] = await context_items(db, second)
    assert call["call"] == CALL
    assert "call" not in said
    shown = json.dumps((await row_of(db, first.id)).as_object())
    assert "told" not in shown
    assert "shown" in shown


async def test_a_conversation_keeps_the_tool_results_of_a_deleted_response(db: Database) -> None:
    await conversation(db)
    first = await called(db, conversation={"id": "conv_1"})
    await endings.delete(db, "default", first.id)
    second = await claimed(db, conversation={"id": "conv_1"}, input=[message("b") | {"id": "msg_b"}])
    assert [item.get("call") for item in await context_items(db, second)] == [None, CALL, None]
    listed = await conversations.list_items(db, DEFAULT_PROJECT, "conv_1", Page(20))
    assert "told" not in str(listed)


async def test_items_copied_by_a_client_get_their_calls_back_only_in_their_own_project(db: Database) -> None:
    row = await called(db)
    [_, call, said] = await chain_items(db, "default", row.id)
    del call["call"]
    items = [message("a"), call, said]
    for project, expected in (("default", CALL), ("theirs", None)):
        again = await restore_calls(db, project, [dict(item) for item in items], copied_from(items))
        assert (again[1].get("call"), again[2]) == (expected, said), project
    unknown = [{"type": "mcp_call", "id": "mcp_0123_4"}, {"type": "mcp_call", "id": "theirs"}, {"type": "mcp_call"}]
    assert await restore_calls(db, "default", unknown, copied_from(unknown)) == unknown

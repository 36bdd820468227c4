"""What later items answer is stored beside the items: nothing looks for it in a context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from app.protocol.answerable import MAX_CALL_ID_CHARS
from app.store.context.calls import Past, approvals, without_call
from app.store.database import Database
from app.store.responses import logs
from app.store.tables import DEFAULT_PROJECT
from tests.integration.store.common import begun, conversation, last_of, sql
from tests.support.requests import message
from tests.support.rows import queued

Json = dict[str, Any]

ASKED: Json = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "s", "name": "t", "arguments": "\0{}"}
GIVEN: Json = {"id": "mcpa_1", "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
CALLED: Json = {"id": "mcp_1", "type": "mcp_call", "server_label": "s", "approval_request_id": "mcpr_1", "output": "x"}
SUMMED: Json = {"id": "cmp_1", "type": "compaction", "encrypted_content": "x"}
ODD = {**message('"mcp_call" \0'), "id": "msg_odd"}
ODD_CALL = 'call "odd", {\\} \u00fc'


def brief(*items: Json) -> list[Json]:
    return [{key: item.get(key) for key in ("id", "type", "server_label", "approval_request_id")} for item in items]


def call(call_id: str) -> Json:
    item_id = f"fc_{call_id.encode().hex()[:40]}"
    return {"id": item_id, "type": "function_call", "call_id": call_id, "name": "f", "arguments": "\0"}


async def ended(db: Database, output: list[Json], **request: Any) -> str:
    """A response that has ended with this output."""
    writer = await begun(db, **request)
    await logs.append(db, [last_of(writer, output=output)])
    return writer.row.id


async def test_a_chain_has_approvals_in_order(db: Database) -> None:
    first = await ended(db, [ASKED], input=[message("a"), ODD])
    second = await ended(db, [SUMMED], input=[GIVEN, CALLED], previous_response_id=first)
    third = await queued(db, input=[message("b")], previous_response_id=second)
    assert await approvals(db, Past("default", third)) == brief(ASKED, GIVEN, CALLED, SUMMED)
    assert await approvals(db, Past("default", first)) == brief(ASKED)
    assert await approvals(db, Past("theirs", third)) == []


async def test_a_conversation_has_approvals_up_to_a_position(db: Database) -> None:
    made = await conversation(db, ODD, ASKED, message("a"), GIVEN)
    assert await approvals(db, Past(DEFAULT_PROJECT, made, 2**62)) == brief(ASKED, GIVEN)
    assert await approvals(db, Past(DEFAULT_PROJECT, made, 0)) == []


async def test_calls_of_inputs_and_of_outputs_are_found_in_a_chain(db: Database) -> None:
    first = await ended(db, [call("call_3"), call(ODD_CALL)], input=[call("call_1"), call("call_2")])
    second = await ended(db, [message("b")], input=[message("b")], previous_response_id=first)
    third = await ended(db, [call("call_4")], input=[message("c")], previous_response_id=second)
    asked = {"call_1", "call_2", "call_3", "call_4", "call_5", ODD_CALL}
    assert await without_call(db, Past("default", third), asked) == {"call_5"}
    assert await without_call(db, Past("default", first), asked) == {"call_4", "call_5"}
    assert await without_call(db, Past("theirs", third), asked) == asked


async def test_calls_that_no_output_can_name_harm_no_ending(db: Database) -> None:
    calls = [call("a\0b"), call("x" * (MAX_CALL_ID_CHARS + 1)), call(""), call("call_1")]
    made = await conversation(db)
    response_id = await ended(db, calls, input=[message("a")], conversation={"id": made})
    assert await without_call(db, Past("default", response_id), {"call_1", "call_2"}) == {"call_2"}


async def test_an_ending_adds_its_calls_and_approvals_to_the_conversation(db: Database) -> None:
    made = await conversation(db, call("call_1"))
    writer = await begun(db, input=[call("call_2")], conversation={"id": made})
    last = last_of(writer, output=[call("call_3"), ASKED])
    await logs.append(db, [replace(last, conversation_input=[call("call_2"), GIVEN])])
    asked = {"call_1", "call_2", "call_3", "call_4"}
    assert await without_call(db, Past(DEFAULT_PROJECT, made, 2**62), asked) == {"call_4"}
    assert await approvals(db, Past(DEFAULT_PROJECT, made, 2**62)) == brief(GIVEN, ASKED)


async def test_no_context_is_searched(db: Database) -> None:
    """What they are found by stays when the items themselves are others."""
    made = await conversation(db, call("call_1"), ASKED)
    response_id = await ended(db, [call("call_2"), GIVEN], input=[call("call_1"), ASKED])
    await sql(db, "UPDATE conversation_items SET item = '{}'")
    await sql(db, "UPDATE responses SET request = :request, output = '[]'", request='{"input": []}')
    assert await without_call(db, Past(DEFAULT_PROJECT, made, 2**62), {"call_1"}) == set()
    assert await without_call(db, Past("default", response_id), {"call_1", "call_2"}) == set()
    assert await approvals(db, Past(DEFAULT_PROJECT, made, 2**62)) == brief(ASKED)
    assert await approvals(db, Past("default", response_id)) == brief(ASKED, GIVEN)

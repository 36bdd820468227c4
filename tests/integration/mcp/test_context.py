"""Hosted tools of earlier responses: chains, conversations, approvals."""

from __future__ import annotations

from typing import Any

from app.protocol.status import Status
from app.store.database import Database
from app.streaming.pubsub import PubSub
from config.tools import McpServer
from tests.integration.mcp.cases import DONE, answer
from tests.support.logs import events_of, items, text_of
from tests.support.requests import message
from tests.support.rows import claim, queued
from tests.support.tool_servers import CODE_INTERPRETER, WEB_SEARCH, ToolProcess, call, mcp_tool, turns
from tests.support.worker import items_of, scripted_model, worker
from workers.formats.builder import build_turn, plan_turn
from workers.generation.turns.mcp_setup import listings_of

Json = dict[str, Any]


def servers(tools: ToolProcess) -> tuple[McpServer, ...]:
    return tools.server(), tools.server("box", "python"), tools.server("web", "browser")


async def prompt(db: Database, pubsub: PubSub, response_id: str) -> str:
    """The prompt of a request, as the scripted engine reads it."""
    async with worker(db, pubsub) as w:
        row = await claim(db, response_id, "nobody")
        assert row is not None
        items = await items_of(db, row)
        turn = await build_turn(
            await plan_turn(w.engine, scripted_model(), row.request, items, (), 0, listings_of(items)),
            items,
        )
    return bytes(token for token in turn.prompt if token < 256).decode()


EVERY = call("python", code="1+1") + call("browser_search", query="q") + call("tests__echo", text="e")
EVERY_TOOL = [CODE_INTERPRETER, WEB_SEARCH, mcp_tool()]
TOLD = ("python 1+1", "L0: q", "echo e")


async def test_a_chain_shows_the_model_earlier_calls_and_their_results(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    first = await answer(db, pubsub, servers(tools), EVERY, "Done.", tools=EVERY_TOOL)
    shown = await prompt(db, pubsub, await queued(db, previous_response_id=first.id, tools=EVERY_TOOL))
    calls = shown.index('"name": "python"'), shown.index('"browser_search"'), shown.index('"tests__echo"')
    results = [shown.index(text) for text in TOLD]
    assert list(calls) == sorted(calls)
    assert results == sorted(results)
    assert calls[-1] < results[0]  # one message with three calls, then three results
    assert results[-1] < shown.rindex("Done.")


async def test_tools_are_listed_once_in_a_chain_and_once_more_if_more_are_allowed(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    request: Json = {"tools": [mcp_tool(allowed_tools=["echo"])]}
    first = await answer(db, pubsub, servers(tools), "Hi", **request)
    second = await answer(
        db, pubsub, servers(tools), call("tests__echo", text="x"), DONE, previous_response_id=first.id, **request
    )
    assert items(first, "mcp_list_tools")
    assert not items(second, "mcp_list_tools")
    assert text_of(second) == "It said: echo x"
    request = {"tools": [mcp_tool(allowed_tools=["echo", "slow"])]}
    third = await answer(db, pubsub, servers(tools), "Hi", previous_response_id=second.id, **request)
    assert [tool["name"] for tool in items(third, "mcp_list_tools")[0]["tools"]] == ["echo", "slow"]


async def test_a_failed_list_is_requested_by_the_next_response(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    request: Json = {"tools": [mcp_tool()]}
    response_id = await queued(db, input=[message("/say Hi")], **request)
    async with worker(db, pubsub) as w:
        await w.run(response_id)
    second = await answer(db, pubsub, servers(tools), "Hi", previous_response_id=response_id, **request)
    assert items(second, "mcp_list_tools")[0]["error"] is None


# -- approvals -------------------------------------------------------------------------------------------------

ASKING: Json = {"tools": [mcp_tool(require_approval="always")]}


def answered(request: Json, approve: bool, reason: str | None = None) -> Json:
    fields = {"approval_request_id": request["id"], "approve": approve, "reason": reason}
    return {"type": "mcp_approval_response", "id": "mcpa_1", **fields}


async def test_a_call_that_needs_approval_is_requested_and_runs_once_approved(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    first = await answer(db, pubsub, servers(tools), call("tests__echo", text="please"), "never", **ASKING)
    assert [item["type"] for item in first.output or ()] == ["mcp_list_tools", "mcp_approval_request"]
    [request] = items(first, "mcp_approval_request")
    assert (request["server_label"], request["name"], request["arguments"]) == ("tests", "echo", '{"text": "please"}')
    assert tools.count("begun echo please") == 0

    input_items = [answered(request, True), message(turns("never", DONE))]
    second = await answer(db, pubsub, servers(tools), previous_response_id=first.id, input=input_items, **ASKING)
    [made] = items(second, "mcp_call")
    assert (second.output or [])[0] == made
    assert (made["approval_request_id"], made["output"]) == (request["id"], "echo please")
    assert tools.count("ended echo please") == 1
    kinds = [event["type"] for event in await events_of(db, second.id)]
    assert kinds.index("response.mcp_call.completed") < kinds.index("response.output_text.delta")

    shown = await prompt(db, pubsub, await queued(db, previous_response_id=second.id, **ASKING))
    assert shown.count("tests__echo") == 3  # in the tools, in the user's message, and in the call
    assert shown.count("echo please") == 1


async def test_the_model_is_told_of_a_denied_call(db: Database, pubsub: PubSub, tools: ToolProcess) -> None:
    first = await answer(db, pubsub, servers(tools), call("tests__echo", text="denied"), "It is: {results}", **ASKING)
    [request] = items(first, "mcp_approval_request")
    input_items = [answered(request, False, "Too dear.")]
    second = await answer(db, pubsub, servers(tools), previous_response_id=first.id, input=input_items, **ASKING)
    assert text_of(second) == "It is: The user did not allow this call. Too dear."
    assert tools.count("begun echo denied") == 0


async def test_an_unanswered_approval_request_is_not_shown_and_not_run(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    first = await answer(db, pubsub, servers(tools), call("tests__echo", text="open"), "never", **ASKING)
    second = await answer(db, pubsub, servers(tools), "Hi", previous_response_id=first.id, **ASKING)
    assert [item["type"] for item in second.output or ()] == ["message"]
    shown = await prompt(db, pubsub, await queued(db, previous_response_id=second.id, **ASKING))
    assert shown.count("open") == 2  # in the user's message, and in the tools


async def test_an_approved_call_of_a_tool_that_is_no_longer_offered_is_not_made(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    first = await answer(db, pubsub, servers(tools), call("tests__echo", text="late"), "{results}", **ASKING)
    [request] = items(first, "mcp_approval_request")
    theirs = [message("a"), *(first.output or ())[1:], answered(request, True)]
    fewer = {"tools": [mcp_tool(require_approval="always", allowed_tools=["slow"])]}
    second = await answer(db, pubsub, servers(tools), input=theirs, **fewer)
    assert items(second, "mcp_call")[0]["status"] == "failed"
    assert tools.count("begun echo late") == 0
    assert second.status is Status.COMPLETED

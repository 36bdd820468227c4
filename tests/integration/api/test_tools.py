"""Tools at the API: which are allowed, what clients see of them, secret headers, approvals, and local tools' calls."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from app.api.docs import schemas
from app.protocol.events.deltas import (
    Approval,
    CodeStart,
    CodeText,
    Delta,
    Finish,
    FinishReason,
    Listed,
    Listing,
    McpArguments,
    McpStart,
    Text,
    ToolEnded,
    TurnEnd,
    WholeCall,
)
from app.protocol.hosted_kinds import WEB_SEARCH
from app.protocol.usage import Usage
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.rows import Ending
from app.store.sealing import unseal_headers
from config.models import ModelCatalog
from config.tools import McpServer
from tests.integration.api.common import answer_to, creation, socket_of
from tests.support.api import MODEL, Api, served, serving, settings_for
from tests.support.logs import row_of
from tests.support.player import Player, ids
from tests.support.refusals import FUNCTION, SHELL_CALL, SHELL_OUTPUT

Json = dict[str, Any]

URL = "https://docs.example/mcp"
MODELS = ModelCatalog(
    (replace(served(), tool_parser="hermes"), replace(served("oss"), format="harmony")),
    (
        McpServer("python", "python", command=("longhaul", "tools", "python", "--stdio")),
        McpServer("browser", "browser", "http://127.0.0.1:1/mcp"),
        McpServer("docs", "mcp", URL, request_headers=True),
        McpServer("closed", "mcp", "https://closed.example/mcp"),
    ),
)
CODE: Json = {"type": "code_interpreter", "container": {"type": "auto"}}
MCP: Json = {"type": "mcp", "server_label": "docs", "server_url": URL}
ANSWER: Json = {"type": "mcp_approval_response", "approve": True}

DELTAS: list[Delta] = [
    Listing("docs"),
    Listed(0, ({"name": "read", "input_schema": {}, "description": None, "annotations": None},)),
    CodeStart("python"),
    CodeText("1 + 1"),
    WholeCall(WEB_SEARCH, "browser.search", "{}", {"action": {"type": "search", "query": "x", "queries": ["x"]}}),
    McpStart("docs", "read"),
    McpArguments("{}"),
    TurnEnd(),
    ToolEnded(3, False, {"error": {"type": "http_error", "code": 502, "message": "bad gateway"}}),
    ToolEnded(1, True, {"outputs": [{"type": "logs", "logs": "2"}]}),
    ToolEnded(2, True, {}),
    Text("Two."),
    Approval("docs", "write", '{"x":1}'),
]


async def play(player: Player, response_id: str, deltas: list[Delta] = DELTAS) -> str:
    """Plays a whole response with these deltas, in two turns; returns the id of its last item."""
    run = await player.begin(response_id)
    for delta in deltas:
        await run.write(run.entry(run.stream.feed(delta)))
    usage = Usage.of([Usage(5, 0, 7), Usage(20, 5, 2, 0, 8)])
    events = run.stream.finish(Finish(FinishReason.STOP, usage), 1_700_000_000)
    now = run.row.created_at
    await run.write(run.entry(events, (), Ending.of(run.stream.response, now)))
    last: str = run.stream.response["output"][-1]["id"]
    return last


async def test_what_the_model_or_its_servers_cannot_do_is_refused_before_anything_is_stored(
    api: Api, db: Database
) -> None:
    closed = {"type": "mcp", "server_label": "closed", "authorization": "hunter2"}
    for fields, named, code in (
        ({"tools": [CODE, {"type": "mcp", "server_label": "x"}]}, "tools[1].server_label", "tool_server_not_allowed"),
        ({"tools": [closed]}, "tools[0].authorization", "tool_server_not_allowed"),
        ({"previous_input_messages": [{"role": "user"}]}, "previous_input_messages", "unsupported_parameter"),
        ({"model": "oss", "top_logprobs": 1}, "top_logprobs", "unsupported_parameter"),
        (
            {"input": [{**ANSWER, "approval_request_id": "mcpr_1"}], "tools": [MCP]},
            "input[0].approval_request_id",
            "invalid_value",
        ),
    ):
        for form in ({"background": True}, {"stream": True}):
            answer = await api.post(**{**fields, **form})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["code"]) == (400, named, code)
            assert "hunter2" not in answer.text
    counted = {"model": MODEL, "input": "x", "tools": [{**MCP, "server_url": "http://169.254.169.254/"}]}
    answer = await api.client.post("/v1/responses/input_tokens", json=counted)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0].server_url")
    assert await ids(db) == []


async def test_web_search_needs_a_browser_server(services: Any, db: Database, tmp_path: Path) -> None:
    catalog = replace(MODELS, tools=())
    async with serving(settings_for(services, tmp_path), catalog) as bare:
        for tool in (CODE, {"type": "web_search"}):
            error = (await bare.post(tools=[tool])).json()["error"]
            assert (error["param"], error["code"]) == ("tools[0].type", "tool_server_not_allowed")
        assert "send 'external_web_access': false" in error["message"]
        assert "LONGHAUL_OMIT_TOOLS=web_search" in error["message"]


async def test_a_tool_that_the_operator_leaves_out_is_named_in_every_mode(
    services: Any, db: Database, tmp_path: Path
) -> None:
    tools = [{"type": "web_search", "external_web_access": False}, {"type": "function", "name": "f"}]
    async with serving(settings_for(services, tmp_path, omit_tools="web_search"), replace(MODELS, tools=())) as bare:
        queued = (await bare.post(tools=tools, background=True)).json()
        read = (await bare.client.get(f"/v1/responses/{queued['id']}")).json()
        for response in (queued, read):
            assert response["omitted_tools"] == ["web_search"]
            assert [tool["type"] for tool in response["tools"]] == ["function"]
        async with socket_of(bare) as socket:
            assert (await answer_to(socket, creation(tools=tools)))["response"]["omitted_tools"] == ["web_search"]


async def test_tools_are_shown_as_they_were_sent_and_harmony_models_accept_their_own_messages(
    api: Api, db: Database, client: openai.AsyncOpenAI
) -> None:
    choice = {"type": "mcp", "server_label": "docs", "name": "read"}
    sent = [CODE, {"type": "web_search_preview"}, {**MCP, "require_approval": "never", "allowed_tools": ["read"]}]
    response = await client.responses.create(
        model=MODEL,
        input="x",
        tools=sent,  # type: ignore[arg-type]
        tool_choice=choice,  # type: ignore[arg-type]
        include=["code_interpreter_call.outputs", "web_search_call.action.sources"],
        max_tool_calls=3,
        background=True,
    )
    assert [tool.type for tool in response.tools] == ["code_interpreter", "web_search_preview", "mcp"]
    shown = (await api.get(response.id)).json()
    schemas.Response.model_validate(shown)
    assert (shown["tools"][2]["require_approval"], shown["tools"][2]["allowed_tools"]) == ("never", ["read"])
    assert (shown["tool_choice"], shown["max_tool_calls"]) == (choice, 3)
    own = {"previous_input_messages": [{"role": "user", "content": "Hello!"}], "enable_response_messages": True}
    request = (await row_of(db, await api.background(model="oss", input="x", tools=[CODE], **own))).request
    assert {name: request[name] for name in own} == own


async def test_headers_for_an_mcp_server_are_sealed_and_never_shown(
    api: Api, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    secret = {**MCP, "authorization": "hunter2", "headers": {"X-Key": "hunter3"}}
    async with api.streaming(background=True, tools=[secret]) as reader:
        created = await reader.event()
    assert created is not None
    response_id = created["response"]["id"]
    for shown in (orjson.dumps(created), (await api.get(response_id)).content):
        assert b"hunter" not in shown
        assert b"secrets" not in shown
    row = await row_of(db, response_id)
    assert b"hunter" not in orjson.dumps(row.request)
    sealer = await SharedSealer(db).get("default")
    headers = unseal_headers(sealer, row.request["secrets"]["docs"])
    assert headers == {"Authorization": "Bearer hunter2", "X-Key": "hunter3"}
    assert "hunter" not in caplog.text


async def test_a_response_shows_hosted_calls_and_its_usage_by_turns_and_they_can_be_sent_back(
    api: Api, player: Player, client: openai.AsyncOpenAI
) -> None:
    response_id = await api.background(stream=True, tools=[CODE, MCP])
    await play(player, response_id)
    shown = (await api.get(response_id)).json()
    schemas.Response.model_validate(shown)
    assert [(item["type"], item.get("status")) for item in shown["output"]] == [
        ("mcp_list_tools", None),
        ("code_interpreter_call", "completed"),
        ("web_search_call", "completed"),
        ("mcp_call", "failed"),
        ("message", "completed"),
        ("mcp_approval_request", None),
    ]
    assert shown["usage"]["input_tokens_details"]["input_tokens_per_turn"] == [5, 20]
    assert shown["usage"]["output_tokens_details"]["tool_output_tokens"] == 8
    read = await client.responses.retrieve(response_id)
    assert [item.type for item in read.output] == [item["type"] for item in shown["output"]]
    async with client.responses.stream(response_id=response_id, starting_after=0) as stream:
        final = await stream.get_final_response()
    assert [item.id for item in final.output] == [item["id"] for item in shown["output"]]
    sent = [item.model_dump(exclude_none=True) for item in read.output]
    sent.append({**ANSWER, "approval_request_id": read.output[-1].id})
    second: Any = await client.responses.create(model=MODEL, input=sent, tools=[MCP], background=True)  # type: ignore[arg-type]
    page = await client.responses.input_items.list(second.id, order="asc")
    assert [item.type for item in page.data] == [item["type"] for item in sent]
    raw = await api.client.get(f"/v1/responses/{second.id}/input_items")
    schemas.ItemList.model_validate(raw.json())


async def test_a_poll_shows_calls_while_they_run(api: Api, player: Player) -> None:
    response_id = await api.background(tools=[CODE, MCP])
    run = await player.begin(response_id)
    for delta in DELTAS[:8]:
        await run.write(run.entry(run.stream.feed(delta)))
    shown = (await api.get(response_id)).json()
    schemas.Response.model_validate(shown)
    statuses = [item.get("status") for item in shown["output"]]
    assert statuses == [None, "interpreting", "searching", "in_progress"]
    cancelled = (await api.client.post(f"/v1/responses/{response_id}/cancel")).json()
    schemas.Response.model_validate(cancelled)
    assert [item.get("status") for item in cancelled["output"]] == [None, *["incomplete"] * 3]


async def test_a_read_can_include_only_outputs_included_at_creation(api: Api, player: Player) -> None:
    for wanted in ([], ["code_interpreter_call.outputs"]):
        response_id = await api.background(stream=True, tools=[CODE], include=wanted)
        await player.answer("Hi", response_id=response_id)
        for query in ({}, {"stream": "true"}):
            answer = await api.get(response_id, **query, **{"include[]": "code_interpreter_call.outputs"})
            assert answer.status_code == (200 if wanted else 400)
            if not wanted:
                assert answer.json()["error"]["param"] == "include[]"


async def test_an_approval_is_given_to_a_request_of_the_previous_response_or_the_conversation(
    api: Api, db: Database, player: Player
) -> None:
    first = await api.background(tools=[MCP])
    request_id = await play(player, first)
    answer = {**ANSWER, "approval_request_id": request_id}
    second = await api.background(input=[answer], previous_response_id=first, tools=[MCP])
    (kept,) = (await row_of(db, second)).request["input"]
    assert (kept["approval_request_id"], kept["approve"]) == (request_id, True)
    await player.answer("Done.", response_id=second)

    again = await api.post(input=[answer], previous_response_id=second, tools=[MCP], background=True)
    assert (again.status_code, again.json()["error"]["code"]) == (400, "approval_already_given")
    missing = await api.post(input=[answer], previous_response_id=first, background=True)
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "input[0].approval_request_id")

    asked = {"type": "mcp_approval_request", "server_label": "docs", "name": "write", "arguments": "{}"}
    made = await api.client.post("/v1/conversations", json={"items": [{**asked, "id": "mcpr_mine"}]})
    context: Json = {"conversation": made.json()["id"], "tools": [MCP], "background": True}
    assert (await api.post(input=[{**ANSWER, "approval_request_id": "mcpr_mine"}], **context)).status_code == 200
    refused = await api.post(input=[{**ANSWER, "approval_request_id": "mcpr_other"}], **context)
    assert refused.json()["error"]["param"] == "input[0].approval_request_id"


async def test_a_conversation_holds_the_calls_of_local_tools_and_searches_of_the_server(api: Api) -> None:
    own = {"execution": "server", "call_id": None}
    late = {**FUNCTION, "name": "late", "defer_loading": True}
    items = [
        {"type": "tool_search_call", "id": "tsc_1", "arguments": {"query": "x"}, **own},
        {"type": "tool_search_output", "id": "tso_1", "tools": [late], **own},
        SHELL_CALL,
    ]
    made = (await api.client.post("/v1/conversations", json={"items": items})).json()
    tools = [{"type": "shell"}, {"type": "tool_search"}, late]
    asked = {"conversation": made["id"], "tools": tools, "background": True}
    answer = await api.post(**asked, input=[SHELL_OUTPUT])
    assert answer.status_code == 200, answer.text
    assert [tool["type"] for tool in answer.json()["tools"]] == ["shell", "tool_search", "function"]
    items = (await api.client.get(f"/v1/responses/{answer.json()['id']}/input_items")).json()
    assert items["data"][0]["output"] == SHELL_OUTPUT["output"]
    error = (await api.post(**asked, input=[{**SHELL_OUTPUT, "call_id": "other"}])).json()["error"]
    assert error["param"] == "input[0].call_id"
    card = (await api.client.get(f"/v1/models/{MODEL}")).json()
    assert {"shell", "apply_patch", "local_shell", "tool_search"} <= set(card["tool_types"])

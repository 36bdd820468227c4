"""Hosted calls, through a whole worker and real MCP servers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.bounds import Bound
from app.local.ports import free_port
from app.protocol.status import Status
from app.protocol.tasks import COUNT
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.rows import PromptSource
from app.store.sealing import seal_headers
from app.streaming.pubsub import PubSub
from config.tools import McpServer
from tests.integration.mcp.cases import DONE, FUNCTION, answer
from tests.support.logs import events_of, items, text_of, types, whole
from tests.support.requests import message
from tests.support.rows import queued
from tests.support.tool_servers import (
    CODE_INTERPRETER,
    WEB_SEARCH,
    ToolProcess,
    call,
    mcp_tool,
    served_tools,
    tool_sessions,
    turns,
)
from tests.support.waiting import until
from tests.support.worker import worker
from workers.generation.outcome import Outcome, ResponseFailed
from workers.generation.turns.tool_calls import TOO_MANY
from workers.mcp import session

Json = dict[str, Any]


# -- kinds of calls --------------------------------------------------------------------------------------------


async def test_an_mcp_tool_is_listed_and_called_and_the_model_gets_its_result(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    script = f"Look: {call('tests__echo', text='é👋')}"
    row = await answer(db, pubsub, (tools.server(),), script, DONE, tools=[mcp_tool(allowed_tools=["echo", "slow"])])
    assert types(row) == ["mcp_list_tools", "message", "mcp_call", "message"]
    listing, _, made, _ = items(row)
    assert [tool["name"] for tool in listing["tools"]] == ["echo", "slow"]
    assert listing["tools"][0]["annotations"] == {"readOnlyHint": True}
    assert (made["name"], made["server_label"], made["status"]) == ("echo", "tests", "completed")
    assert (json.loads(made["arguments"]), made["output"], made["error"]) == ({"text": "é👋"}, "echo é👋", None)
    assert text_of(row) == "Look: It said: echo é👋"
    kinds = [event["type"].removeprefix("response.") for event in await events_of(db, row.id)]
    expected = ("mcp_list_tools.in_progress", "mcp_list_tools.completed", "mcp_call.in_progress")
    expected += ("mcp_call_arguments.delta", "mcp_call_arguments.done", "mcp_call.completed")
    positions = [kinds.index(kind) for kind in expected]
    assert positions == sorted(positions)


async def test_code_is_streamed_as_it_is_written_and_its_output_is_shown_if_included(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    include = ["code_interpreter_call.outputs"]
    code = 'print("é")\nx = 1'
    script = call("python", code=code)
    server = tools.server("box", "python")
    row = await answer(db, pubsub, (server,), script, DONE, tools=[CODE_INTERPRETER], include=include)
    [made] = items(row, "code_interpreter_call")
    assert (made["code"], made["status"]) == (code, "completed")
    assert made["outputs"] == [{"type": "logs", "logs": f"python {code}"}]
    assert text_of(row) == f"It said: python {code}"
    deltas = [event["delta"] for event in await events_of(db, row.id) if event["type"].endswith("_call_code.delta")]
    assert "".join(deltas) == code
    assert len(deltas) > 3


async def test_web_search_searches_opens_and_finds(db: Database, pubsub: PubSub, tools: ToolProcess) -> None:
    script = (call("browser_search", query="x"), call("browser_open", id=0), call("browser_find", pattern="x"), DONE)
    row = await answer(db, pubsub, (tools.server("web", "browser"),), *script, tools=[WEB_SEARCH])
    assert [item["action"] for item in items(row, "web_search_call")] == [
        {"type": "search", "query": "x", "queries": ["x"]},
        {"type": "open_page", "url": "https://example.test/page"},
        {"type": "find_in_page", "pattern": "x", "url": "https://example.test/page"},
    ]
    kinds = [event["type"] for event in await events_of(db, row.id) if "web_search_call" in event["type"]]
    assert kinds == [f"response.web_search_call.{kind}" for kind in ("in_progress", "searching", "completed")] * 3


async def test_a_search_that_its_server_cannot_make_is_refused_by_its_field(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    web, spec = tools.server("web", "browser"), {**WEB_SEARCH, "filters": {"blocked_domains": ["a.example"]}}
    with pytest.raises(ResponseFailed, match=r"invalid_prompt: tools\[0\]\.filters\.blocked_domains: "):
        await answer(db, pubsub, (web,), DONE, tools=[spec])


# -- several calls ---------------------------------------------------------------------------------------------


async def test_calls_of_one_turn_run_side_by_side_and_end_in_any_order(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    script = call("tests__slow", text="side-a") + call("tests__slow", text="side-b")
    response_id = await queued(db, input=[message(turns(script, DONE))], tools=[mcp_tool()])
    async with worker(db, pubsub, mcp_sessions=tool_sessions((tools.server(),))) as w:
        job = w.start(response_id)
        await until(lambda: tools.count("begun slow side-a") and tools.count("begun slow side-b"))
        tools.release("side-b")

        async def ended() -> bool:
            kinds = [event["type"] for event in await events_of(db, response_id)]
            return kinds.count("response.mcp_call.completed") == 1

        await until(ended)
        tools.release("side-a")
        assert await job.task is Outcome.COMPLETED
    row = await whole(db, response_id)
    assert text_of(row) == "It said: slow side-a; slow side-b"  # in the order of the calls
    ends = [
        event["output_index"] for event in await events_of(db, response_id) if event["type"].endswith("l.completed")
    ]
    assert ends == [2, 1]


async def test_one_session_serves_all_turns_and_is_closed_at_the_end(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    before = tools.lines()
    script = [call("tests__echo", text=str(number)) for number in range(4)]
    row = await answer(db, pubsub, (tools.server(),), *script, DONE, tools=[mcp_tool()])
    assert types(row) == ["mcp_list_tools", *["mcp_call"] * 4, "message"]
    assert text_of(row) == "It said: echo 3"
    lines = tools.lines()[len(before) :]
    calls = [f"{what} echo {number}" for number in range(4) for what in ("begun", "ended")]
    assert lines == ["opened", "listed", *calls, "closed"]


async def test_usage_has_the_tokens_of_each_turn(db: Database, pubsub: PubSub, tools: ToolProcess) -> None:
    row = await answer(db, pubsub, (tools.server(),), call("tests__echo", text="x"), "Done.", tools=[mcp_tool()])
    assert row.usage is not None
    read, written = row.usage["input_tokens_details"], row.usage["output_tokens_details"]
    assert sum(read["input_tokens_per_turn"]) == row.usage["input_tokens"]
    assert sum(written["output_tokens_per_turn"]) == row.usage["output_tokens"]
    assert written["output_tokens_per_turn"][1] == len("Done.") + 1
    tool_tokens = (
        read["input_tokens_per_turn"][1] - read["input_tokens_per_turn"][0] - written["output_tokens_per_turn"][0]
    )
    assert written["tool_output_tokens_per_turn"] == [0, tool_tokens]
    assert written["tool_output_tokens"] == tool_tokens > 0


async def test_a_clients_call_in_the_same_turn_ends_the_response_after_the_hosted_calls(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    script = call("mine", a=1) + call("tests__echo", text="x")
    row = await answer(db, pubsub, (tools.server(),), script, "never", tools=[mcp_tool(), FUNCTION])
    assert types(row) == ["mcp_list_tools", "function_call", "mcp_call"]
    assert items(row)[2]["output"] == "echo x"


async def test_tools_that_nobody_has_listed_yet_are_listed_to_count_the_tokens_of_a_prompt(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    request = {"input": [message("Hi")], "tools": [mcp_tool(allowed_tools=["echo"])]}

    async def counted(*servers: McpServer) -> int:
        """The prompt's tokens, by `generate: false` and by a count, which is no response."""
        before, row = len(tools.lines()), await answer(db, pubsub, servers, task=COUNT, **request)
        listed = ["opened", "listed", "closed"] if servers else []
        assert tools.lines()[before:] == listed
        async with worker(db, pubsub, mcp_sessions=tool_sessions(servers)) as w:
            source = PromptSource("default", row.request, None, 0, int(row.created_at.timestamp()))
            tokens = await w.counter.tokens(source)
        assert tools.lines()[before:] == listed * 2
        assert row.usage is not None and row.output == []
        assert row.usage["input_tokens"] == tokens
        return tokens

    answered = await answer(db, pubsub, (tools.server(),), **request)
    assert answered.usage is not None
    assert await counted(tools.server()) == answered.usage["input_tokens"]
    assert await counted() < answered.usage["input_tokens"]


async def test_with_tool_choice_none_no_server_lists_its_tools(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    row = await answer(db, pubsub, (tools.server(),), "Hi", tools=[mcp_tool()], tool_choice="none")
    assert types(row) == ["message"]


# -- limits ----------------------------------------------------------------------------------------------------


async def test_calls_beyond_max_tool_calls_fail_and_the_model_is_told(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    script = (
        call("tests__echo", text="most-1") + call("tests__echo", text="most-2") + call("tests__echo", text="most-3")
    )
    row = await answer(db, pubsub, (tools.server(),), script, DONE, tools=[mcp_tool()], max_tool_calls=2)
    assert [item["status"] for item in items(row, "mcp_call")] == ["completed", "completed", "failed"]
    assert text_of(row) == f"It said: echo most-1; echo most-2; {TOO_MANY}"
    assert tools.count("begun echo most-3") == 0


async def test_max_output_tokens_counts_over_all_turns(db: Database, pubsub: PubSub, tools: ToolProcess) -> None:
    script = call("tests__echo", text="x")
    spent = len(script.encode()) - len("<tool_call></tool_call>") + 2 + 1  # two special tokens, and the end
    request = {"tools": [mcp_tool()], "max_output_tokens": spent + 4, "status": Status.INCOMPLETE}
    row = await answer(db, pubsub, (tools.server(),), script, "0123456789", **request)
    assert row.incomplete_details == {"reason": "max_output_tokens"}
    assert text_of(row) == "0123"
    assert row.usage is not None
    assert row.usage["output_tokens"] == spent + 4


async def test_calls_of_a_turn_that_used_all_tokens_are_not_made(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    script = call("tests__echo", text="spent")
    spent = len(script.encode()) - len("<tool_call></tool_call>") + 2 + 1
    request = {"tools": [mcp_tool()], "max_output_tokens": spent, "status": Status.INCOMPLETE}
    row = await answer(db, pubsub, (tools.server(),), script, DONE, **request)
    assert items(row, "mcp_call")[0]["status"] == "incomplete"
    assert tools.count("begun echo spent") == 0


async def test_results_that_leave_no_room_for_an_answer_end_it_incomplete(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    response_id = await queued(db, input=[message(turns(call("tests__huge", text="9000"), DONE))], tools=[mcp_tool()])
    async with worker(db, pubsub, context_length=8000, mcp_sessions=tool_sessions((tools.server(),))) as w:
        assert await w.run(response_id) is Outcome.INCOMPLETE
    row = await whole(db, response_id, Status.INCOMPLETE)
    assert items(row, "mcp_call")[0]["status"] == "completed"


# -- failures --------------------------------------------------------------------------------------------------


async def test_the_model_gets_the_error_of_a_tool(db: Database, pubsub: PubSub, tools: ToolProcess) -> None:
    script = call("tests__failing", text="this") + call("tests__refusing", text="that")
    row = await answer(db, pubsub, (tools.server(),), script, DONE, tools=[mcp_tool()])
    failing, refusing = items(row, "mcp_call")
    assert (failing["status"], failing["output"]) == ("failed", None)
    assert failing["error"] == {
        "type": "mcp_tool_execution_error",
        "content": [{"type": "text", "text": "cannot do this"}],
    }
    assert refusing["error"]["type"] == "mcp_protocol_error"
    assert (refusing["error"]["code"], refusing["status"]) == (-32602, "failed")
    assert text_of(row) == "It said: cannot do this; The MCP server 'tests' refused: no that here"


async def test_the_model_is_told_of_arguments_that_are_no_object_and_they_are_not_sent(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    before = tools.count("begun echo ")
    calls = (f'<tool_call>{{"name": "tests__echo", "arguments": {each}}}</tool_call>' for each in ("[1]", '"x"'))
    row = await answer(db, pubsub, (tools.server(),), "".join(calls), DONE, tools=[mcp_tool()])
    assert text_of(row) == f"It said: {'; '.join(['The arguments are not a JSON object.'] * 2)}"
    assert tools.count("begun echo ") == before


async def test_a_call_that_hangs_ends_at_its_deadline(db: Database, pubsub: PubSub, tools: ToolProcess) -> None:
    server = tools.server(timeout_seconds=2.0)
    row = await answer(db, pubsub, (server,), call("tests__slow", text="never"), DONE, tools=[mcp_tool()])
    [made] = items(row, "mcp_call")
    assert (made["status"], made["error"]["code"]) == ("failed", -32001)
    assert text_of(row) == "It said: The MCP server 'tests' did not answer within 2 s; the call was given up."
    await until(lambda: tools.count("cut slow never"))


async def test_a_server_that_is_away_or_none_lists_nothing_and_the_answer_goes_on(db: Database, pubsub: PubSub) -> None:
    servers = [McpServer("tests", "mcp", f"http://127.0.0.1:{free_port()}/mcp")]
    servers += [McpServer("tests", "mcp", None, (program,)) for program in ("false", "/nowhere/at/all")]
    for server in servers:
        row = await answer(db, pubsub, (server,), "Well.", tools=[mcp_tool()])
        [listing, _] = items(row)
        assert (listing["tools"], listing["error"]) == ([], "The MCP server 'tests' cannot be reached."), server
        assert text_of(row) == "Well."


async def test_a_server_that_goes_away_fails_its_calls_and_comes_back_for_the_next(
    db: Database, pubsub: PubSub, broken_tools: ToolProcess
) -> None:
    script = (call("tests__slow", text="x"), call("tests__echo", text="y"), DONE)
    response_id = await queued(db, input=[message(turns(*script))], tools=[mcp_tool()])
    async with worker(db, pubsub, mcp_sessions=tool_sessions((broken_tools.server(),))) as w:
        job = w.start(response_id)
        await until(lambda: broken_tools.count("begun slow x"))
        broken_tools.stop()
        broken_tools.start()
        assert await job.task is Outcome.COMPLETED
    row = await whole(db, response_id)
    first, second = items(row, "mcp_call")
    assert (first["status"], second["output"]) == ("failed", "echo y")
    assert broken_tools.count("begun slow x") == 1  # never


async def test_the_model_is_told_of_a_label_that_is_no_longer_configured(
    db: Database, pubsub: PubSub, tools: ToolProcess
) -> None:
    row = await answer(db, pubsub, (), "Well.", tools=[mcp_tool()])
    assert items(row)[0]["error"] is not None
    row = await answer(db, pubsub, (), call("python", code="1"), DONE, tools=[CODE_INTERPRETER])
    assert text_of(row) == "It said: There is no MCP server 'python' any more."


async def test_calls_and_results_are_not_logged(
    db: Database, pubsub: PubSub, tools: ToolProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    script = "".join(call(f"tests__{name}", text="sesame") for name in ("echo", "failing", "refusing"))
    await answer(db, pubsub, (tools.server(),), script, DONE, tools=[mcp_tool()])
    records = [record for record in caplog.records if record.name.startswith("longhaul")]
    assert records
    assert "sesame" not in "".join(record.getMessage() for record in caplog.records)


# -- servers ---------------------------------------------------------------------------------------------------


async def test_headers_come_from_the_environment_and_if_allowed_from_the_request(
    db: Database, pubsub: PubSub, tools: ToolProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTS_TOKEN", "sesame")
    sealed = seal_headers(await SharedSealer(db).get("default"), {"X-Mine": "theirs"})
    script = call("tests__header", text="authorization") + call("tests__header", text="x-mine")
    for allowed, theirs in ((True, "theirs"), (False, "none")):
        server = tools.server(headers={"Authorization": "Bearer ${TESTS_TOKEN}"}, request_headers=allowed)
        request = {"tools": [mcp_tool()], "secrets": {"tests": sealed}}
        row = await answer(db, pubsub, (server,), script, DONE, **request)
        assert text_of(row) == f"It said: Bearer sesame; {theirs}"
        assert row.request["secrets"] == {}


async def test_a_server_of_the_sessionless_protocol_works_too(db: Database, pubsub: PubSub, tmp_path: Path) -> None:
    with served_tools(tmp_path, "modern") as modern:
        script = (call("tests__echo", text="x"), call("tests__failing", text="y"), DONE)
        row = await answer(db, pubsub, (modern.server(),), *script, tools=[mcp_tool()])
        assert [item["status"] for item in items(row, "mcp_call")] == ["completed", "failed"]
        assert modern.count("closed") == 0


async def test_sessions_of_a_worker_are_bounded(
    db: Database, pubsub: PubSub, tools: ToolProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "SESSIONS", bound := Bound("sessions with MCP servers", 1, seconds=0.05))
    with bound.take("others"):
        row = await answer(db, pubsub, (tools.server(),), "Well.", tools=[mcp_tool()])
    [listed] = items(row, "mcp_list_tools")
    assert "all 1 sessions with MCP servers that a worker holds are in use" in listed["error"]
    assert bound.held == 0


async def test_a_command_starts_at_first_use_if_the_worker_may_run_one_more_and_ends_with_the_response(
    db: Database, pubsub: PubSub, tools: ToolProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "COMMANDS", bound := Bound("commands of MCP servers", 1, seconds=0.05))
    with bound.take("others"):
        row = await answer(db, pubsub, (tools.command(),), "Well.", tools=[mcp_tool("local")])
    [listed] = items(row, "mcp_list_tools")
    assert "all 1 commands of MCP servers that a worker holds are in use" in listed["error"]
    before = len(tools.lines())
    row = await answer(db, pubsub, (tools.command(),), call("local__echo", text="x"), DONE, tools=[mcp_tool("local")])
    assert text_of(row) == "It said: echo x"
    lines = tools.lines()[before:]
    assert lines[1:-1] == ["listed", "begun echo x", "ended echo x"]
    assert lines[-1] == lines[0].replace("opened", "closed")
    assert not psutil.pid_exists(int(lines[0].split()[1]))
    assert bound.held == 0
